"""Measures that compare synthetic and real images: Fréchet distance, precision, recall, Inception score, memorisation.

The Fréchet distance treats both sets as Gaussians (Heusel et al. 2017). On Inception features it is the FID.

    d^2 = |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The covariances need not be formed. With X the centred rows over sqrt(n - 1), C = X'X, and X = Q R (QR decomposition):

    tr C = |R|^2,    tr (C1 C2)^(1/2) = sum of the singular values of R1 R2'

because C1 C2 has the eigenvalues of (R1 R2')(R1 R2')'. The distance then has about 13 correct digits at any rank,
whereas the square root of a product of covariances loses half of them.

Precision and recall (Kynkäänniemi et al. 2019) model a set as the union of balls around its rows. The radius of a ball
is the distance to the k-th nearest other row.

    precision   the fraction of synthetic rows inside the real balls     are synthetic images realistic?
    recall      the fraction of real rows inside the synthetic balls     do they cover all kinds of real images?

The Inception score (Salimans et al. 2016) is high if each image is classified confidently and all classes are equally
frequent:

    IS = exp( mean over images of KL( p(y|x) || p(y) ) ),    p(y) the mean of p(y|x) over the images of a part

It ranges from 1, if all images are classified alike, to the number of classes. It does not use real images.

Memorisation is the copying of images that a model was fitted to. For an image x with nearest real images r1, r2, ...
(other than itself),

    ratio(x) = |x - r1| / mean of |x - r2|, ..., |x - r51|

is near 1 for an image that resembles several, and near 0 for a copy of one, in sparse and dense regions of the space
alike (after Carlini et al. 2023). The limit is the `level` quantile of the ratios of the real images. About the same
fraction of new images is at or below the limit, and so is every copy. A share well above `expected` therefore indicates
memorisation.

All pairwise distances are computed in blocks of rows, so that 50,000 by 50,000 fit in memory:

    |x - y|^2 = |x|^2 - 2 x'y + |y|^2    in float64, after subtracting one mean from both sets to keep the terms small

The formula cannot resolve distances below about a millionth of the rows' norms; these are set to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError

Progress = Callable[[int, int], None]

NEIGHBOURS = 3  # k, for the radius of a ball
PARTS = 10  # of the Inception score
COVARIANCE_ROWS = 4096  # per block
BLOCK_DISTANCES = 1 << 24  # 128 MB
LEVEL, OTHERS = 0.01, 50  # fraction of real images at or below the limit, and number of neighbours to compare with
FLOOR = 2.0**-42  # fraction of |x|^2 + |y|^2 below which a squared distance is rounding error


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """Return d^2 for two sets (n, d) and (m, d). Few rows bias it upwards: compare only for the same n and m."""
    require_rows(x, y)
    (mean_x, root_x), (mean_y, root_y) = moments(x), moments(y)
    cross = torch.linalg.svdvals(root_x @ root_y.T).sum()
    separate = (mean_x - mean_y).square().sum() + root_x.square().sum() + root_y.square().sum()
    return max(0.0, float(separate - 2 * cross))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and R, where R'R is the covariance (with n - 1) and R has at most d rows. Works in blocks."""
    n, width = x.shape
    if n < 2:
        raise DataError(f"a covariance needs at least 2 images, but there is {n}. Fix: use more images.")
    mean = x.mean(0, dtype=torch.float64)
    root = mean.new_zeros(0, width)
    for block in x.split(max(COVARIANCE_ROWS, width)):
        root = torch.linalg.qr(torch.cat([root, block.double() - mean]), mode="r").R
    return mean, root / (n - 1) ** 0.5


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision and recall, and the number of neighbours used."""

    precision: float
    recall: float
    neighbours: int


def precision_recall(
    synthetic: Tensor, real: Tensor, *, neighbours: int = NEIGHBOURS, progress: Progress = lambda *_: None
) -> PrecisionRecall:
    """Compute precision and recall of two sets of rows in one pass over the distances between them."""
    if neighbours < 1:
        raise ConfigError(f"neighbours is {neighbours}: it must be at least 1.")
    if min(len(synthetic), len(real)) <= neighbours:
        raise DataError(
            f"precision and recall need more than {neighbours} images of each kind, but there are {len(synthetic)} "
            f"synthetic and {len(real)} real images. Fix: use more images."
        )
    total = 2 * len(synthetic) + len(real)
    distances, _ = nearest(real, count=neighbours, progress=lambda done, _: progress(done, total))
    real_radii = distances[:, -1]
    distances, _ = nearest(synthetic, count=neighbours, progress=lambda done, _: progress(len(real) + done, total))
    synthetic_radii = distances[:, -1]
    inside, covered = 0, torch.zeros(len(real), dtype=torch.bool, device=real.device)
    for rows, block in squared_distances(synthetic, real):
        inside += int((block <= real_radii).any(1).sum())
        covered |= (block <= synthetic_radii[rows, None]).any(0)
        progress(len(real) + len(synthetic) + rows.stop, total)
    return PrecisionRecall(inside / len(synthetic), float(covered.double().mean()), neighbours)


def inception_score(probabilities: Tensor, *, parts: int = PARTS) -> tuple[float, float]:
    """Return the score's mean and standard deviation over `parts` equal parts of (N, classes) probabilities.

    Parts are consecutive rows, so images sorted by class must be shuffled first.
    """
    p = probabilities.double()
    if p.dim() != 2 or not bool((p >= 0).all()) or not torch.allclose(p.sum(1), p.new_ones(len(p)), atol=1e-4):
        raise ConfigError("the Inception score needs rows of probabilities that sum to 1.")
    if not 1 <= parts <= len(p):
        raise DataError(f"{len(p)} images cannot be divided into {parts} parts. Fix: use more images.")
    scores = torch.stack([_score(part) for part in p.tensor_split(parts)])
    return float(scores.mean()), float(scores.std(correction=0))


def _score(p: Tensor) -> Tensor:
    """Return the score of one part; p log p is 0 where p is 0."""
    return (torch.xlogy(p, p) - torch.xlogy(p, p.mean(0))).sum(1).mean().exp()


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Suspected copies among synthetic images."""

    share: float  # fraction of the synthetic images at or below the limit
    expected: float  # fraction of the real images at or below it: the level, or more if there are duplicates
    limit: float
    ratios: Tensor  # (synthetic images,)
    neighbours: Tensor  # (synthetic images,): index of the nearest real image


def detect_copies(
    synthetic: Tensor, real: Tensor, *, level: float = LEVEL, progress: Progress = lambda *_: None
) -> Memorisation:
    """Search for copies among rows of pixels or features. `real` should be all images that the model was fitted to."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: it must be above 0 and below 1.")
    minimum = max(3, round(1 / level))
    if len(real) < minimum:
        raise DataError(
            f"{len(real)} real images are too few for a limit that 1 in {minimum} of them is below. Fix: use "
            "more images."
        )
    count, total = min(OTHERS + 1, len(real) - 1), len(real) + len(synthetic)
    among_real, _ = nearest(real, count=count, progress=lambda done, _: progress(done, total))
    to_real, indices = nearest(synthetic, real, count=count, progress=lambda done, _: progress(len(real) + done, total))
    real_ratios, ratios = distance_ratio(among_real), distance_ratio(to_real)
    limit = real_ratios.sort().values[max(1, int(level * len(real))) - 1]
    share, expected = (float((r <= limit).double().mean()) for r in (ratios, real_ratios))
    return Memorisation(share, expected, float(limit), ratios.cpu(), indices[:, 0].cpu())


def distance_ratio(squared: Tensor) -> Tensor:
    """Return ratio(x) for squared distances (N, count), nearest first; it is 0 where all distances are 0."""
    distances = squared.sqrt()
    return distances[:, 0] / distances[:, 1:].mean(1).clamp(min=torch.finfo(torch.float64).tiny)


def squared_distances(x: Tensor, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of rows of x with their squared distances (rows, len(y)) to all rows of y."""
    require_rows(x, y)
    centre = y.mean(0, dtype=torch.float64)
    y = y.double() - centre
    y_sizes = y.square().sum(1)
    step = max(1, BLOCK_DISTANCES // len(y))
    for start in range(0, len(x), step):
        rows = slice(start, min(start + step, len(x)))
        block = x[rows].double() - centre
        sizes = block.square().sum(1, keepdim=True) + y_sizes
        squared = torch.addmm(sizes, block, y.T, alpha=-2.0)
        yield rows, squared.masked_fill_(squared <= FLOOR * sizes, 0.0)


def nearest(
    x: Tensor, y: Tensor | None = None, *, count: int, progress: Progress = lambda *_: None
) -> tuple[Tensor, Tensor]:
    """Return the squared distances (len(x), count) to the nearest rows of y, nearest first, and the rows' indices.

    Without y, the neighbours are the other rows of x.
    """
    others = len(x) - 1 if y is None else len(y)
    if not 1 <= count <= others:
        raise ConfigError(f"{count} nearest neighbours cannot be found among {others}. Fix: use more images.")
    distances, indices = [], []
    for rows, block in squared_distances(x, x if y is None else y):
        if y is None:
            block[torch.arange(len(block)), torch.arange(rows.start, rows.stop)] = torch.inf
        smallest = block.topk(count, largest=False)
        distances.append(smallest.values)
        indices.append(smallest.indices)
        progress(rows.stop, len(x))
    return torch.cat(distances), torch.cat(indices)


def require_rows(*sets: Tensor) -> None:
    """Require finite rows of equal width."""
    for rows in sets:
        if rows.dim() != 2 or not rows.shape[0] or rows.shape[1] != sets[0].shape[1]:
            shapes = [tuple(s.shape) for s in sets]
            raise ConfigError(f"features must be rows of the same width, but their shapes are {shapes}.")
        if not bool(rows.isfinite().all()):
            raise ConfigError("some features are not finite. Fix: use other weights for the network, or other images.")
