"""Gradients of single images in the plane of two mean gradients: do the gradients of a class point the same way?

The two groups of images are two classes, or two data sets (Figures 4 and 7 of Park et al.). Their mean gradients span
the plane, and the gradient of each image is projected onto it. A normalised gradient is in the unit disc; the closer to
the edge, the better the plane represents it. An image contributes to its own mean, so even orthogonal gradients are
1 / sqrt(n) from the centre. The mean cosines over pairs of different images, `within` and `between`, are unbiased.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import ClippedSum, Loss

Group = tuple[Tensor, Tensor]  # images and their targets
OnProgress = Callable[[int, int], None]

AT_A_TIME = 8  # images whose gradients are in memory together
PARALLEL = 1e-6  # sine of the smallest angle between two means that span a plane


@dataclass(frozen=True)
class Cloud:
    """One group in the plane."""

    points: Tensor  # (n, 2), the gradients
    norms: Tensor  # (n,), of the full gradients
    mean: tuple[float, float]  # the mean gradient
    within: float  # mean cosine of two different images' gradients

    @property
    def directions(self) -> Tensor:
        """The (n, 2) points of the normalised gradients, in the unit disc. A zero gradient is at the centre."""
        return self.points / self.norms.clamp(min=torch.finfo(self.norms.dtype).tiny).unsqueeze(1)


@dataclass(frozen=True)
class Concentration:
    """Two groups in their common plane."""

    first: Cloud
    second: Cloud
    between: float  # mean cosine of an image of one group and an image of the other
    means: float  # cosine of the two mean gradients


def axes(first: Tensor, second: Tensor) -> Tensor:
    """Return (2, size) orthonormal axes: the first mean, and the part of the second that is orthogonal to it."""
    one = first / first.norm()
    rest = second - (second @ one) * one
    if not bool(first.norm() > 0) or not bool(rest.norm() > PARALLEL * second.norm()):
        raise DataError("the two mean gradients are parallel or zero, so they span no plane. Fix: use other classes.")
    two = rest - (rest @ one) * one
    return torch.stack([one, two / two.norm()])


def mean_cosine(directions: Tensor, count: int) -> float:
    """Return the mean cosine over pairs of `count` unit vectors, from their sum: (|sum|^2 - n) / (n (n - 1))."""
    return float(directions @ directions - count) / (count * (count - 1))


def measure_concentration(
    model: nn.Module, loss: Loss, groups: Sequence[Group], *, progress: OnProgress = lambda *_: None
) -> Concentration:
    """Project both groups onto their plane.

    Gradients may exceed memory, so they are computed twice: for the means and for the points.
    """
    if len(groups) != 2 or any(len(images) < 2 for images, _ in groups):
        raise ConfigError("a plane needs two groups of at least 2 images each. Fix: use more images, or other classes.")
    clipped = ClippedSum(model, loss, clip=1.0)
    total, done = 2 * sum(len(images) for images, _ in groups), 0
    means: list[Tensor] = []
    sums_of_directions: list[Tensor] = []
    counts: list[int] = []  # of nonzero gradients
    for group in groups:
        mean = torch.zeros(clipped.size, dtype=torch.float64, device=group[0].device)
        directions, count = torch.zeros_like(mean), 0
        for rows in _gradients(clipped, group):
            norms = rows.norm(dim=1, keepdim=True)
            mean += rows.sum(0) / len(group[0])
            directions += (rows / norms).nan_to_num(0.0).sum(0)
            count, done = count + int((norms > 0).sum()), done + len(rows)
            progress(done, total)
        means.append(mean)
        sums_of_directions.append(directions)
        counts.append(count)
    if min(counts) < 2:
        raise DataError("fewer than 2 images of a group have a nonzero gradient. Fix: use other images.")
    plane = axes(*means)
    clouds = []
    for group, mean, directions, count in zip(groups, means, sums_of_directions, counts, strict=True):
        parts = []
        for rows in _gradients(clipped, group):
            parts.append(torch.cat([rows @ plane.T, rows.norm(dim=1, keepdim=True)], dim=1).cpu())
            done += len(rows)
            progress(done, total)
        points, norms = torch.cat(parts).split([2, 1], dim=1)
        x, y = (plane @ mean).tolist()
        clouds.append(Cloud(points, norms.squeeze(1), (x, y), mean_cosine(directions, count)))
    return Concentration(
        first=clouds[0],
        second=clouds[1],
        between=float(sums_of_directions[0] @ sums_of_directions[1]) / math.prod(counts),
        means=float(means[0] @ means[1] / (means[0].norm() * means[1].norm())),
    )


def _gradients(clipped: ClippedSum, group: Group) -> Iterator[Tensor]:
    """Yield the gradients of the images in float64, a few at a time, without clipping or noise."""
    images, targets = group
    for start in range(0, len(images), AT_A_TIME):
        chunk = slice(start, start + AT_A_TIME)
        rows = clipped.gradients(images[chunk], targets[chunk], [1] * len(images[chunk])).double()
        if not bool(torch.isfinite(rows).all()):
            raise DataError("the gradient of an image is not finite at these weights. Fix: use other weights.")
        yield rows
