"""Images made by a random process that resembles photographs: discs of all sizes in front of each other.

Radii have the density r^-3 (Lee, Mumford and Huang 2001), which gives edges and textures at every scale alike. The
range of radii and the contrast were chosen by looking at the training images of CIFAR-10; for any other data, whatever
is computed from these is free of cost to privacy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST, LARGEST = 3.0, 32.0  # radii in pixels
CONTRAST = 0.21  # deviation of a disc's grey, about that of photographs
DISCS = 200
FINER = 2  # points per pixel in each direction


def dead_leaves(count: int, side: int, *, seed: int) -> Tensor:
    """(count, 1, side, side) in [0, 1]: the first disc at a point is the one that is seen, grey where there is none."""
    rng = torch.Generator().manual_seed(seed)
    points = (torch.arange(side * FINER) + 0.5) / FINER
    rows, columns = points.view(1, -1, 1), points.view(1, 1, -1)
    images, free = torch.full((count, side * FINER, side * FINER), 0.5), torch.tensor(True)
    for _ in range(DISCS):
        share = torch.rand(count, 1, 1, generator=rng)
        radius = (SMALLEST**-2 + (LARGEST**-2 - SMALLEST**-2) * share) ** -0.5
        y, x = (torch.rand(count, 1, 1, generator=rng) * (side + 2 * radius) - radius for _ in range(2))
        grey = 0.5 + CONTRAST * torch.randn(count, 1, 1, generator=rng)
        disc = ((rows - y) ** 2 + (columns - x) ** 2 < radius**2) & free
        images, free = torch.where(disc, grey, images), free & ~disc
    return F.avg_pool2d(images.unsqueeze(1), FINER).clamp(0, 1)
