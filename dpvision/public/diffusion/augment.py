"""Turned and shifted copies of public images, with nine numbers that say how (Karras et al. 2022, appendix F.2).

The network is told the numbers, and sampling says nine zeros: so it learns from turned images without drawing them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dpvision.errors import ConfigError


@dataclass(frozen=True)
class Augment:
    """How often each change is made, and how far it goes. What has a left and a right is not to be mirrored: digits."""

    probability: float = 0.0  # of each change but the mirror; 0.12 in the paper
    flip: bool = False  # left and right exchanged, for every second image
    scale: float = 0.2  # standard deviation of log2 of the scale
    stretch: float = 0.2  # the same, of the ratio of the sides
    shift: float = 0.125  # standard deviation, in sides

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1 or min(self.scale, self.stretch, self.shift) < 0:
            raise ConfigError(f"augmentation has a probability from 0 to 1 and sizes of 0 or more, not {self}.")

    def __bool__(self) -> bool:
        return self.flip or self.probability > 0


def augmented(x: Tensor, how: Augment) -> tuple[Tensor, Tensor]:
    """(B, C, H, W) -> as many changed images and (B, 9) numbers; coins from torch's current generator.

    The numbers: mirrored in x, in y, scale, cos - 1 and sin of the turn, cos and sin of the axis times the stretch,
    shift in x, in y; each is 0 where nothing was changed, and lengths are in standard deviations.
    """
    count, device = len(x), x.device

    def made(chance: float) -> Tensor:
        return (torch.rand(count, device=device) < chance).float()

    def normal() -> Tensor:
        return torch.randn(count, device=device)

    def angle() -> Tensor:
        return (2 * torch.rand(count, device=device) - 1) * math.pi

    p = how.probability
    mirror_x, mirror_y = made(0.5 * how.flip), made(0.5 * how.flip * p)
    scale, turn = normal() * made(p), angle() * made(p)
    axis, stretch = angle(), normal() * made(p)
    moved = made(p)
    shift = torch.stack([normal() * moved, normal() * moved], dim=1)
    told = [mirror_x, mirror_y, scale, turn.cos() - 1, turn.sin(), stretch * axis.cos(), stretch * axis.sin()]
    numbers = torch.cat([torch.stack(told, dim=1), shift], dim=1)
    larger, longer = 2 ** (how.scale * scale), 2 ** (how.stretch * stretch)
    matrix = _diagonal(1 - 2 * mirror_x, 1 - 2 * mirror_y) @ _diagonal(larger, larger) @ _turn(turn)
    matrix = matrix @ _turn(axis) @ _diagonal(longer, 1 / longer) @ _turn(-axis)
    changed = numbers.ne(0).any(1)[:, None, None, None]
    return torch.where(changed, _warped(x, matrix, how.shift * shift), x), numbers


def _warped(x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Each image under u -> matrix u + shift, in sides about its middle; what is beyond the border is mirrored."""
    height, width = x.shape[2:]
    sides = torch.tensor([width, height], device=x.device, dtype=x.dtype)
    back = torch.linalg.inv(matrix)
    # grid_sample asks where each place comes from, with -1 and 1 at the borders: in units of half a side each way.
    aspect = sides / sides.max()
    linear = back * aspect[None, None, :] / aspect[None, :, None]
    offset = -2 * (linear @ shift[:, :, None])
    grid = F.affine_grid(torch.cat([linear, offset], dim=2), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False)


def _diagonal(a: Tensor, b: Tensor) -> Tensor:
    zero = torch.zeros_like(a)
    return torch.stack([a, zero, zero, b], dim=1).reshape(-1, 2, 2)


def _turn(angle: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    return torch.stack([c, -s, s, c], dim=1).reshape(-1, 2, 2)
