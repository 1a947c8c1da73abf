"""Measures on rows of features, synthetic and real: Fréchet distance, precision and recall, Inception score.

The Fréchet distance takes the sets as Gaussians (Heusel et al. 2017): on Inception's features it is FID.

    d^2 = |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The root needs no covariance. With X the centred rows over sqrt(n - 1), C = X'X, and X = Q R by orthogonal triangles:

    tr C = |R|^2,    tr (C1 C2)^(1/2) = sum of the singular values of R1 R2'

since C1 C2 has the eigenvalues of (R1 R2')(R1 R2')'. So nothing is squared that a root must undo: rows of any rank have
a distance right to about 13 digits, where the root of a product of covariances loses half of them. All in float64.

Precision and recall (Kynkäänniemi et al. 2019) take a set as the union of balls around its rows, each as large as the
distance to the k-th nearest other row:

    precision   the share of synthetic rows inside the real manifold     are they like real ones?
    recall      the share of real rows inside the synthetic manifold     are all kinds of real ones among them?

The Inception score (Salimans et al. 2016) asks to be sure of each image's class, and to see all classes alike:

    IS = exp( mean over images of KL( p(y|x) || p(y) ) ),    p(y) the mean of p(y|x) over the images of a part

It is 1 where every image is judged alike, and at most the number of classes. It never looks at real images.

Distances between all rows are taken a block of rows at a time, so that 50,000 by 50,000 fit into memory:

    |x - y|^2 = |x|^2 - 2 x'y + |y|^2    in float64, both sets moved by the same mean first, which keeps the terms small

What this formula cannot tell from 0 is 0: rows that differ by less than about a millionth of their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError

Progress = Callable[[int, int], None]

NEIGHBOURS = 3  # of the balls
PARTS = 10  # of the Inception score
AT_A_TIME = 4096  # rows of a covariance
AT_ONCE = 1 << 24  # distances of a block: 128 MB
FLOOR = 2.0**-42  # share of |x|^2 + |y|^2 below which a squared distance is rounding


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """d^2 of two sets (n, d) and (m, d). It is biased upwards by few rows: compare at the same n and m only."""
    require_rows(x, y)
    (mean_x, root_x), (mean_y, root_y) = moments(x), moments(y)
    together = torch.linalg.svdvals(root_x @ root_y.T).sum()
    apart = (mean_x - mean_y).square().sum() + root_x.square().sum() + root_y.square().sum()
    return max(0.0, float(apart - 2 * together))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and R (at most d rows) with R'R the covariance (divided by n - 1); a block of rows at a time."""
    n, width = x.shape
    if n < 2:
        raise DataError(f"a spread needs 2 images at least, and there is {n}. Fix: more images.")
    mean = x.mean(0, dtype=torch.float64)
    root = mean.new_zeros(0, width)
    for block in x.split(max(AT_A_TIME, width)):
        root = torch.linalg.qr(torch.cat([root, block.double() - mean]), mode="r").R
    return mean, root / (n - 1) ** 0.5


@dataclass(frozen=True)
class PrecisionRecall:
    precision: float
    recall: float
    neighbours: int


def precision_recall(
    synthetic: Tensor, real: Tensor, *, neighbours: int = NEIGHBOURS, progress: Progress = lambda *_: None
) -> PrecisionRecall:
    """Of two sets of rows; both shares come from one pass over the distances between the sets."""
    if neighbours < 1:
        raise ConfigError(f"{neighbours} neighbours make no ball: at least 1.")
    if min(len(synthetic), len(real)) <= neighbours:
        raise DataError(
            f"precision and recall need more than {neighbours} images of each kind, and there are {len(synthetic)} "
            f"synthetic and {len(real)} real ones. Fix: more images."
        )
    total = 2 * len(synthetic) + len(real)
    of_real = nearest(real, count=neighbours, progress=lambda done, _: progress(done, total))[0][:, -1]
    of_synthetic = nearest(synthetic, count=neighbours, progress=lambda done, _: progress(len(real) + done, total))[0][
        :, -1
    ]
    inside, covered = 0, torch.zeros(len(real), dtype=torch.bool, device=real.device)
    for rows, block in squared(synthetic, real):
        inside += int((block <= of_real).any(1).sum())
        covered |= (block <= of_synthetic[rows, None]).any(0)
        progress(len(real) + len(synthetic) + rows.stop, total)
    return PrecisionRecall(inside / len(synthetic), float(covered.double().mean()), neighbours)


def inception_score(probabilities: Tensor, *, parts: int = PARTS) -> tuple[float, float]:
    """Mean and deviation over `parts` equal parts of (N, classes) probabilities, as is the custom.

    Parts are taken as the images lie, so images that are sorted by class must be mixed first.
    """
    p = probabilities.double()
    if p.dim() != 2 or not bool((p >= 0).all()) or not torch.allclose(p.sum(1), p.new_ones(len(p)), atol=1e-4):
        raise ConfigError("the Inception score needs rows of probabilities, each with a sum of 1.")
    if not 1 <= parts <= len(p):
        raise DataError(f"{len(p)} images cannot be cut into {parts} parts. Fix: more images.")
    scores = torch.stack([_score(part) for part in p.tensor_split(parts)])
    return float(scores.mean()), float(scores.std(correction=0))


def _score(p: Tensor) -> Tensor:
    """sum_y p log p is 0 where p is 0."""
    return (torch.xlogy(p, p) - torch.xlogy(p, p.mean(0))).sum(1).mean().exp()


def squared(x: Tensor, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Which rows of x, and their squared distances (rows, len(y)) to all rows of y."""
    require_rows(x, y)
    centre = y.mean(0, dtype=torch.float64)
    y = y.double() - centre
    of_y = y.square().sum(1)
    step = max(1, AT_ONCE // len(y))
    for start in range(0, len(x), step):
        rows = slice(start, min(start + step, len(x)))
        some = x[rows].double() - centre
        sizes = some.square().sum(1, keepdim=True) + of_y
        found = torch.addmm(sizes, some, y.T, alpha=-2.0)
        yield rows, found.masked_fill_(found <= FLOOR * sizes, 0.0)


def nearest(
    x: Tensor, y: Tensor | None = None, *, count: int, progress: Progress = lambda *_: None
) -> tuple[Tensor, Tensor]:
    """(len(x), count) squared distances to the nearest rows of y, the nearest first, and which rows they are.

    Without y: to the other rows of x, each row itself left out.
    """
    others = len(x) - 1 if y is None else len(y)
    if not 1 <= count <= others:
        raise ConfigError(f"{count} nearest neighbours cannot be found among {others}. Fix: more images.")
    distances, places = [], []
    for rows, block in squared(x, x if y is None else y):
        if y is None:
            block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = torch.inf
        found = block.topk(count, largest=False)
        distances.append(found.values)
        places.append(found.indices)
        progress(rows.stop, len(x))
    return torch.cat(distances), torch.cat(places)


def require_rows(*sets: Tensor) -> None:
    """Finite rows of one width."""
    for rows in sets:
        if rows.dim() != 2 or not rows.shape[0] or rows.shape[1] != sets[0].shape[1]:
            raise ConfigError(f"features must be rows of one width: they are {[tuple(s.shape) for s in sets]}.")
        if not bool(rows.isfinite().all()):
            raise ConfigError("some features are not numbers. Fix: other weights of the network, or a sound image.")
