"""Mixing two members of one image's own pool of views: mixup and cutmix (Zhang et al. 2017, Yun et al. 2019).

Both take u and v with a share l of u, and give the mixture together with the share that its label has to follow:

    mixup     x = l u + (1 - l) v
    cutmix    u with a box of v in it, of sides sqrt(1 - l) of the image's, cut where it leaves the image; the share of
              u becomes the share of its pixels that are left

Members come from the pool of the same image, so whatever is mixed belongs to one unit, or is public.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom

# (u, v, share of u, coins) -> mixture and its share of u; images (B, M, C, H, W), shares (B, M)
Mix = Callable[[Tensor, Tensor, Tensor, UnitRandom], tuple[Tensor, Tensor]]


def pairs(rng: UnitRandom, pool: int, count: int) -> tuple[Tensor, Tensor]:
    """For each image `count` ordered pairs of two different members of its pool, uniform over all of them."""
    first = rng.integers(pool, count)
    ahead = rng.integers(pool - 1, count)
    return first, (first + 1 + ahead) % pool


def members(pool: Tensor, which: Tensor) -> Tensor:
    """(B, P, ...) and (B, M) -> (B, M, ...): of each image's own pool, the members asked for."""
    own = which + torch.arange(len(pool)).unsqueeze(1) * pool.shape[1]
    return pool.flatten(0, 1).index_select(0, own.flatten()).unflatten(0, which.shape)


def mixed(u: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """l u + (1 - l) v for (B, M, ...) and (B, M). `u` and `v` are overwritten."""
    share = share.view(*share.shape, *(1,) * (u.dim() - 2))
    return u.mul_(share).add_(v.mul_(1 - share))


def mixup(u: Tensor, v: Tensor, share: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
    """l u + (1 - l) v, and l."""
    return mixed(u, v, share), share


def cutmix(u: Tensor, v: Tensor, share: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
    """u with a box of v around a random pixel, and the share of u's pixels that is left."""
    height, width = u.shape[-2:]
    side = (1 - share.double()).sqrt()
    rows = _within(rng.integers(height, share.shape[1]), (side * height).floor(), height)
    columns = _within(rng.integers(width, share.shape[1]), (side * width).floor(), width)
    box = rows[:, :, None, :, None] & columns[:, :, None, None, :]
    left = 1 - (rows.sum(-1) * columns.sum(-1)).to(share.dtype) / (height * width)
    return torch.where(box, v, u), left


def _within(centre: Tensor, length: Tensor, side: int) -> Tensor:
    """Which of `side` places are among the `length` ones from centre - length // 2 on."""
    distance = torch.arange(side) - (centre - (length / 2).floor()).unsqueeze(-1)
    return (distance >= 0) & (distance < length.unsqueeze(-1))


MIXES: dict[str, Mix] = {"mixup": mixup, "cutmix": cutmix}
