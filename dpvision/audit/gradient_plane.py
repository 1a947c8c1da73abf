"""Gradients of single images in the plane of two mean gradients: do those of a class point one way?

Figures 4 and 7 of Park et al. The two groups are two classes, or two data sets. Their mean gradients span the plane;
each image is a point in it, as long as its gradient is or, normalised, by its direction alone: then it lies in the unit
disc, and the nearer to the edge, the better the plane tells where it points. An image takes part in its own mean, so
that even gradients at right angles to each other would lie 1 / sqrt(n) from the centre. `within` and `between` are free
of that: they are mean cosines over pairs of different images.
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
Progress = Callable[[int, int], None]

AT_A_TIME = 8  # images whose gradients are in memory together
PARALLEL = 1e-6  # sine of the angle below which two means span no plane


@dataclass(frozen=True)
class Cloud:
    """One group in the plane."""

    points: Tensor  # (n, 2), of the gradients as they are
    norms: Tensor  # (n,), of the whole gradients
    mean: tuple[float, float]  # where the mean gradient is
    within: float  # mean cosine of two different images' gradients

    @property
    def directions(self) -> Tensor:
        """(n, 2) in the unit disc: the points of gradients of length 1. A zero gradient stays at the centre."""
        return self.points / self.norms.clamp(min=torch.finfo(self.norms.dtype).tiny).unsqueeze(1)


@dataclass(frozen=True)
class Concentration:
    """Two groups in their common plane."""

    first: Cloud
    second: Cloud
    between: float  # mean cosine of an image of one and an image of the other
    means: float  # cosine of the two mean gradients


def axes(first: Tensor, second: Tensor) -> Tensor:
    """(2, size), orthonormal: the first mean, then what the second one adds to it."""
    one = first / first.norm()
    rest = second - (second @ one) * one
    if not bool(first.norm() > 0) or not bool(rest.norm() > PARALLEL * second.norm()):
        raise DataError("the two mean gradients are parallel or zero, so they span no plane. Fix: other classes.")
    two = rest - (rest @ one) * one
    return torch.stack([one, two / two.norm()])


def mean_cosine(directions: Tensor, count: int) -> float:
    """Over pairs of different ones among `count` unit vectors with this sum: (|sum|^2 - n) / (n (n - 1))."""
    return float(directions @ directions - count) / (count * (count - 1))


def concentration(
    model: nn.Module, loss: Loss, groups: Sequence[Group], *, progress: Progress = lambda *_: None
) -> Concentration:
    """Both groups' gradients, computed twice, for the means and for the points: they need not fit into memory."""
    if len(groups) != 2 or any(len(images) < 2 for images, _ in groups):
        raise ConfigError("a plane needs two groups of at least 2 images each. Fix: more images, or other classes.")
    clipped = ClippedSum(model, loss, clip=1.0)
    total, done = 2 * sum(len(images) for images, _ in groups), 0
    means: list[Tensor] = []
    sums_of_directions: list[Tensor] = []
    counts: list[int] = []  # of gradients that have a direction
    for group in groups:
        mean = torch.zeros(clipped.size, dtype=torch.float64, device=group[0].device)
        directions, count = torch.zeros_like(mean), 0
        for rows in _rows(clipped, group):
            norms = rows.norm(dim=1, keepdim=True)
            mean += rows.sum(0) / len(group[0])
            directions += (rows / norms).nan_to_num(0.0).sum(0)
            count, done = count + int((norms > 0).sum()), done + len(rows)
            progress(done, total)
        means.append(mean)
        sums_of_directions.append(directions)
        counts.append(count)
    if min(counts) < 2:
        raise DataError(
            "fewer than 2 images of a group have a gradient: the network is sure of all. Fix: other images."
        )
    plane = axes(*means)
    clouds = []
    for group, mean, directions, count in zip(groups, means, sums_of_directions, counts, strict=True):
        seen = []
        for rows in _rows(clipped, group):
            seen.append(torch.cat([rows @ plane.T, rows.norm(dim=1, keepdim=True)], dim=1).cpu())
            done += len(rows)
            progress(done, total)
        points, norms = torch.cat(seen).split([2, 1], dim=1)
        x, y = (plane @ mean).tolist()
        clouds.append(Cloud(points, norms.squeeze(1), (x, y), mean_cosine(directions, count)))
    return Concentration(
        first=clouds[0],
        second=clouds[1],
        between=float(sums_of_directions[0] @ sums_of_directions[1]) / math.prod(counts),
        means=float(means[0] @ means[1] / (means[0].norm() * means[1].norm())),
    )


def _rows(clipped: ClippedSum, group: Group) -> Iterator[Tensor]:
    """Gradients of the images, neither clipped nor noised, a few at a time, in float64."""
    images, targets = group
    for start in range(0, len(images), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        rows = clipped.gradients(images[part], targets[part], [1] * len(images[part])).double()
        if not bool(torch.isfinite(rows).all()):
            raise DataError("some image has a gradient that is not finite at these weights. Fix: other weights.")
        yield rows
