"""K views of each private image, some of them mixed (DP-Mix), from which its gradient is computed.

    Self-Aug               base                 augmentations of the image (De et al. 2022)
    DP-Mix_Self            base + self_mix      also mixtures of two of them; all are of one image, so its label stays
    DP-Mix_Diff            base + diff + self_mix     `diff` public images with their own labels join the pool, and
                                                may be mixed in; labels are mixed in the same proportion
    Pure-DP-Mix_Diff       diff + self_mix      base = 0: neither pixels nor label of the private image are used

Formal guarantee: the views of an image are a function of that image, its label, its own random numbers and the public
set. No other private image enters, so a unit's views change exactly one clipped gradient, and K views cost no more
privacy than one: the engine takes the mean of a unit's gradients over its views *before* it clips. Mixing across
private images would put one of them into many gradients, and is not possible here.

Even in Pure-DP-Mix_Diff the example is charged like any other: its views show that it was drawn, and adding or removing
it still adds or removes one clipped gradient.

Two members u and v of an image's pool are mixed with weight l for u. Both methods return the mixture and the weight of
u's label in it:

    mixup     l u + (1 - l) v, and l                                                      (Zhang et al. 2017)
    cutmix    u with a box of v in it, whose sides are sqrt(1 - l) of the image's, clipped to the image; and the
              fraction of pixels that still come from u                                   (Yun et al. 2019)

    edge case                                behaviour
    empty batch                              no views, and targets with no rows
    an image that is not finite              only its own views may be non-finite
    a label outside of the classes           unchanged; as a distribution over the classes it is all zeros
    a pool of one and self_mix > 0           refused, because an image mixed with itself is the same image
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.errors import ConfigError, DataError, did_you_mean
from dpvision.models.device import send
from dpvision.views.augment import Augment
from dpvision.views.eight_bit import to_floats

# Pixels processed at a time. Small blocks save memory and fit in the processor's cache; they do not help on an
# accelerator.
BLOCK, BLOCK_ON_DEVICE = 1 << 21, 1 << 27

# (u, v, weight of u, rng) -> mixture and weight of u's label, with images (B, M, C, H, W) and weights (B, M). The input
# weight is on the host, like all random numbers; the returned weight is on the device of the images.
Mix = Callable[[Tensor, Tensor, Tensor, UnitRandom], tuple[Tensor, Tensor]]


def draw_pairs(rng: UnitRandom, pool: int, count: int) -> tuple[Tensor, Tensor]:
    """For each image, draw `count` ordered pairs of two different members of its pool, uniformly over all pairs."""
    first = rng.integers(pool, count)
    ahead = rng.integers(pool - 1, count)
    return first, (first + 1 + ahead) % pool


def take_members(pool: Tensor, indices: Tensor) -> Tensor:
    """For each image, take the members of its own pool with these indices: (B, P, ...) and (B, M) -> (B, M, ...)."""
    own = indices + torch.arange(len(pool)).unsqueeze(1) * pool.shape[1]
    return pool.flatten(0, 1).index_select(0, send(own.flatten(), pool.device)).unflatten(0, indices.shape)


def interpolate(u: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Return l u + (1 - l) v, for images (B, M, ...) and weights l (B, M). `u` and `v` are overwritten."""
    weight = weight.view(*weight.shape, *(1,) * (u.dim() - 2))
    return u.mul_(weight).add_(v.mul_(1 - weight))


def mixup(u: Tensor, v: Tensor, weight: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
    """Return the mixture l u + (1 - l) v, and the weight l."""
    weight = send(weight, u.device)
    return interpolate(u, v, weight), weight


def cutmix(u: Tensor, v: Tensor, weight: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
    """Return u with a box of v around a random pixel, and the fraction of pixels that still come from u."""
    height, width = u.shape[-2:]
    side = (1 - weight.double()).sqrt()
    rows = _box_side(rng.integers(height, weight.shape[1]), (side * height).floor(), height)
    columns = _box_side(rng.integers(width, weight.shape[1]), (side * width).floor(), width)
    box = rows[:, :, None, :, None] & columns[:, :, None, None, :]
    remaining = 1 - (rows.sum(-1) * columns.sum(-1)).to(weight.dtype) / (height * width)
    return torch.where(send(box, u.device), v, u), send(remaining, u.device)


def _box_side(centre: Tensor, length: Tensor, side: int) -> Tensor:
    """Return a mask of `side` positions that is true at the `length` positions from centre - length // 2 on."""
    distance = torch.arange(side) - (centre - (length / 2).floor()).unsqueeze(-1)
    return (distance >= 0) & (distance < length.unsqueeze(-1))


MIXES: dict[str, Mix] = {"mixup": mixup, "cutmix": cutmix}


class Views:
    """Views of each image, in this order: `base` augmentations, `diff` public images, `self_mix` mixtures of those.

    `augment` names the operations (augment.OPERATIONS), which are also applied to public images. Weights of mixtures
    are drawn from Beta(alpha, alpha). `public` is (images, labels): (M, C, H, W), uint8 or float in [-1, 1], and (M,).
    """

    def __init__(
        self,
        augment: Sequence[str],
        *,
        base: int,
        classes: int,
        self_mix: int = 0,
        diff: int = 0,
        alpha: float = 0.2,
        mix: str = "mixup",
        public: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.augment = Augment(augment)
        self.base, self.self_mix, self.diff = base, self_mix, diff
        self.classes, self.alpha = classes, alpha
        self._require_counts()
        if mix not in MIXES:
            raise ConfigError(f"there is no mixing named {mix!r}. {did_you_mean(mix, MIXES)}")
        self._mix = MIXES[mix]
        if diff and public is None:
            raise ConfigError(
                f"diff is {diff}, but there is no public set to draw from. Fix: pass a public set, or set diff to 0."
            )
        if public is not None:
            _require_public(*public, classes)
        self._public = None if public is None else (public[0], public[1].long())

    @property
    def count(self) -> int:
        """The number K of views of an image."""
        return self.base + self.diff + self.self_mix

    @property
    def mixes_labels(self) -> bool:
        """Whether targets are distributions over the classes rather than classes."""
        return self.diff > 0 and self.self_mix > 0

    def require(self, shape: tuple[int, ...]) -> None:
        """Refuse private images whose shape (C, H, W) differs from that of the public images."""
        if self._public is not None and tuple(self._public[0].shape[1:]) != tuple(shape):
            raise DataError(
                f"the public set: its images are {_describe_shape(self._public[0].shape[1:])}, but the private ones "
                f"are {_describe_shape(shape)}, so they cannot be mixed. Fix: convert the public images to the size "
                "and channels of the private ones."
            )

    def __call__(self, images: Tensor, labels: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
        """Turn images (B, C, H, W) in [-1, 1] and labels (B,) into views (B K, C, H, W) and targets.

        The views of an image are consecutive. Targets are int64 (B K,) or, if labels are mixed, distributions over the
        classes (B K, classes). If images have several labels, (B, labels), each view has them all: (B K, labels).
        Temporary memory is a few blocks, regardless of the batch size.
        """
        _require_batch(images, labels, rng)
        self.require(images.shape[1:])
        out = images.new_empty(len(images), self.count, *images.shape[1:])
        if self.mixes_labels:
            targets = images.new_empty(len(images), self.count, self.classes)
        else:
            targets = labels.new_empty(len(images), self.count, *labels.shape[1:])
        per_image = self.count * math.prod(images.shape[1:])
        block = BLOCK if images.device.type == "cpu" else BLOCK_ON_DEVICE
        for rows, block_rng in rng.blocks(max(1, block // per_image)):
            self._fill(images[rows], labels[rows], block_rng, out[rows], targets[rows])
        return out.flatten(0, 1), targets.flatten(0, 1)

    def _fill(self, images: Tensor, labels: Tensor, rng: UnitRandom, out: Tensor, targets: Tensor) -> None:
        """Write the views and targets of a block of images into `out` and `targets`."""
        pool = self.base + self.diff
        if self.base:
            out[:, : self.base] = self.augment(images.unsqueeze(1), rng, self.base)
            targets[:, : self.base] = self._target(labels.unsqueeze(1))
        if self.diff:
            assert self._public is not None
            drawn = rng.integers(len(self._public[0]), self.diff)
            pixels, classes = self._public[0][drawn], self._public[1][drawn]
            pixels, classes = send(pixels, out.device), send(classes, out.device)
            pixels = to_floats(pixels, out.dtype) if pixels.dtype == torch.uint8 else pixels.to(out.dtype)
            out[:, self.base : pool] = self.augment(pixels, rng, self.diff)
            targets[:, self.base : pool] = self._target(classes)
        if self.self_mix:
            first, second = draw_pairs(rng, pool, self.self_mix)
            weight = rng.beta(self.alpha, self.self_mix).to(out.dtype)
            out[:, pool:], weight = self._mix(take_members(out, first), take_members(out, second), weight, rng)
            if self.mixes_labels:
                labels_mixed = take_members(targets, first), take_members(targets, second)
                targets[:, pool:] = interpolate(*labels_mixed, weight)
            else:
                targets[:, pool:] = labels.unsqueeze(1)

    def _target(self, labels: Tensor) -> Tensor:
        """Return the labels, as one-hot vectors if labels are mixed."""
        if not self.mixes_labels:
            return labels
        return labels.unsqueeze(-1) == torch.arange(self.classes, device=labels.device)

    def _require_counts(self) -> None:
        for name in ("base", "self_mix", "diff", "classes"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is {value!r}: it must be an integer of at least 0.")
        if not self.classes:
            raise ConfigError("classes is 0. Fix: give the number of classes.")
        if not self.count:
            raise ConfigError(
                "base, self_mix and diff are all 0, so images would have no views. Fix: set base to 1 or more."
            )
        pool = self.base + self.diff
        if self.self_mix and pool < 2:
            raise ConfigError(
                f"self_mix is {self.self_mix}, but base + diff is {pool}: a mixture needs two different views. "
                "Fix: set base to 2 or more, or self_mix to 0."
            )
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha is {self.alpha}: Beta(alpha, alpha) needs a finite number above 0.")


def _describe_shape(shape: Sequence[int]) -> str:
    channels, height, width = shape
    return f"{height}x{width} with {channels} channel{'s' if channels != 1 else ''}"


def _require_batch(images: Tensor, labels: Tensor, rng: UnitRandom) -> None:
    """Refuse a malformed batch by its shapes and types alone, without reading a private pixel or label."""
    if images.dim() != 4 or not images.is_floating_point():
        raise ConfigError(f"views need float images (B, C, H, W), not {images.dtype} {tuple(images.shape)}.")
    if labels.shape[:1] != images.shape[:1] or labels.dim() > 2 or labels.dtype != torch.int64:
        raise ConfigError(
            f"{len(images)} images need one int64 label, or one row of them, each, not {labels.dtype} "
            f"{tuple(labels.shape)}."
        )
    if len(rng) != len(images):
        raise ConfigError(f"each of {len(images)} images needs its own random numbers, but there are {len(rng)}.")


def _require_public(images: Tensor, labels: Tensor, classes: int) -> None:
    """Refuse a public set that cannot be used. Because it is public, messages may describe its contents."""
    if images.dim() != 4 or labels.shape != images.shape[:1] or labels.is_floating_point() or not len(images):
        raise DataError(
            f"the public set: it must have at least one image (M, C, H, W) and an integer label for each, but it "
            f"has {tuple(images.shape)} and {labels.dtype} {tuple(labels.shape)}."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"the public set: its pixels are {images.dtype}. Fix: use uint8, or float in [-1, 1].")
    if images.dtype != torch.uint8 and not ((images >= -1) & (images <= 1)).all():
        raise DataError("the public set: some of its pixels are NaN or outside of [-1, 1]. Fix: scale them.")
    if labels.min() < 0 or labels.max() >= classes:
        wrong = int(labels[(labels < 0) | (labels >= classes)][0])
        raise DataError(f"the public set: it has a label {wrong}, but the {classes} classes are 0 to {classes - 1}.")
    missing = sorted(set(range(classes)) - set(labels.unique().tolist()))
    if missing:
        few = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        raise DataError(
            f"the public set: it has no images of {len(missing)} of the {classes} classes ({few}), so mixing would "
            "push predictions away from them. Fix: add images of these classes."
        )
