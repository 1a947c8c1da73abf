"""What one private image becomes before its gradient is taken: K views of itself, some of them mixed (DP-Mix).

    Self-Aug               base                 augmentations of the image (De et al. 2022)
    DP-Mix_Self            base + self_mix      and mixtures of two of them; all are of one image, so its label stays
    DP-Mix_Diff            base + diff + self_mix     `diff` public images join the pool, with labels of their own, and
                                                mixtures may take them; labels are mixed by the same share
    Pure-DP-Mix_Diff       diff + self_mix      base = 0: no pixel and no label of the private image enters

Formal guarantee: the views of an image are a function of that image, its label, its own coins and the public set. No
other private image enters, so a unit's views change exactly one clipped gradient, and K views cost no more privacy than
one: the engine takes the mean of a unit's gradients over its views *before* it clips. Mixing across private images
would put one of them into many gradients; there is no way to ask for that here.

Even in Pure-DP-Mix_Diff the example is charged like any other: its views show that it was drawn, and adding or removing
it still adds or removes one clipped gradient.

    edge case                                behaviour
    empty batch                              no views, targets with no rows
    an image that is not finite              its own views may be not finite; no other's
    a label outside of the classes           stays as it is; as shares of classes it is all zeros
    a pool of one and self_mix > 0           refused: an image mixed with itself is the image
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.errors import ConfigError, DataError, did_you_mean
from dpvision.views.augment import Augment
from dpvision.views.eight_bit import scaled
from dpvision.views.mixing import MIXES, members, mixed, pairs

# Pixels worked on at a time: what is alive beside the result stays small, and mostly in the cache.
BLOCK = 1 << 21


class Views:
    """For each image, in this order: `base` augmentations, `diff` public images, `self_mix` mixtures of two of those.

    `augment` names the operations (augment.OPERATIONS); public images go through them too. Shares are drawn from
    Beta(alpha, alpha). `public` is (images, labels): (M, C, H, W), uint8 or float in [-1, 1], and (M,) classes.
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
            raise ConfigError(f"diff is {diff}, but there is no public set to draw from. Fix: a public set, or diff 0.")
        self._public = _checked(*public, classes) if public is not None else None

    @property
    def count(self) -> int:
        """K, the number of views of an image."""
        return self.base + self.diff + self.self_mix

    @property
    def mixes_labels(self) -> bool:
        """Whether targets are shares of classes rather than classes."""
        return self.diff > 0 and self.self_mix > 0

    def require(self, shape: tuple[int, ...]) -> None:
        """Refuse private images of a shape (C, H, W) that the public set does not have."""
        if self._public is not None and tuple(self._public[0].shape[1:]) != tuple(shape):
            raise DataError(
                f"the public set: its images are {_described(self._public[0].shape[1:])}, the private ones "
                f"{_described(shape)}, so they cannot be mixed. Fix: bring the public images to the size and "
                "channels of the private ones."
            )

    def __call__(self, images: Tensor, labels: Tensor, rng: UnitRandom) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) float in [-1, 1], (B,) -> (B K, C, H, W) and targets; the views of an image follow each other.

        Targets are int64 (B K,), or shares of the classes (B K, classes) where labels are mixed. Beside the result no
        more than a few blocks of it are alive.
        """
        _require_batch(images, labels, rng)
        self.require(images.shape[1:])
        out = images.new_empty(len(images), self.count, *images.shape[1:])
        if self.mixes_labels:
            targets = images.new_empty(len(images), self.count, self.classes)
        else:
            targets = labels.new_empty(len(images), self.count)
        per_image = self.count * math.prod(images.shape[1:])
        for rows, some in rng.blocks(max(1, BLOCK // per_image)):
            self._fill(images[rows], labels[rows], some, out[rows], targets[rows])
        return out.flatten(0, 1), targets.flatten(0, 1)

    def _fill(self, images: Tensor, labels: Tensor, rng: UnitRandom, out: Tensor, targets: Tensor) -> None:
        """Write the views of a few images and their targets to where they belong."""
        pool = self.base + self.diff
        if self.base:
            out[:, : self.base] = self.augment(images.unsqueeze(1), rng, self.base)
            targets[:, : self.base] = self._target(labels.unsqueeze(1))
        if self.diff:
            assert self._public is not None
            drawn = rng.integers(len(self._public[0]), self.diff)
            strangers, known = self._public[0][drawn], self._public[1][drawn]
            strangers = scaled(strangers, out.dtype) if strangers.dtype == torch.uint8 else strangers.to(out.dtype)
            out[:, self.base : pool] = self.augment(strangers, rng, self.diff)
            targets[:, self.base : pool] = self._target(known)
        if self.self_mix:
            first, second = pairs(rng, pool, self.self_mix)
            share = rng.beta(self.alpha, self.self_mix).to(out.dtype)
            out[:, pool:], share = self._mix(members(out, first), members(out, second), share, rng)
            if self.mixes_labels:
                targets[:, pool:] = mixed(members(targets, first), members(targets, second), share)
            else:
                targets[:, pool:] = labels.unsqueeze(1)

    def _target(self, labels: Tensor) -> Tensor:
        """Labels as they are, or as shares of the classes."""
        return labels.unsqueeze(-1) == torch.arange(self.classes) if self.mixes_labels else labels

    def _require_counts(self) -> None:
        for name in ("base", "self_mix", "diff", "classes"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is {value!r}: it counts, so it must be a whole number, 0 or more.")
        if not self.classes:
            raise ConfigError("classes is 0: there is nothing to tell apart. Fix: the number of classes.")
        if not self.count:
            raise ConfigError("base, self_mix and diff are all 0, so an image would have no view. Fix: base 1 or more.")
        pool = self.base + self.diff
        if self.self_mix and pool < 2:
            raise ConfigError(
                f"self_mix is {self.self_mix}, but base + diff is {pool}: a mixture needs two different views to mix. "
                "Fix: base 2 or more, or self_mix 0."
            )
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha is {self.alpha}: Beta(alpha, alpha) needs a finite number above 0.")


def _described(shape: Sequence[int]) -> str:
    channels, height, width = shape
    return f"{height}x{width} with {channels} channel{'s' if channels != 1 else ''}"


def _require_batch(images: Tensor, labels: Tensor, rng: UnitRandom) -> None:
    """By shapes and types only: nothing here looks at a private pixel or label."""
    if images.dim() != 4 or not images.is_floating_point():
        raise ConfigError(f"views are made of (B, C, H, W) float images, not of {images.dtype} {tuple(images.shape)}.")
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        raise ConfigError(f"{len(images)} images need as many int64 labels, not {labels.dtype} {tuple(labels.shape)}.")
    if len(rng) != len(images):
        raise ConfigError(f"{len(images)} images need coins of their own; these are for {len(rng)}.")


def _checked(images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The public set, if it can serve. It is public, so what is wrong with it may be said."""
    if images.dim() != 4 or labels.shape != images.shape[:1] or labels.is_floating_point() or not len(images):
        raise DataError(
            f"the public set: it must have at least one image (M, C, H, W) and a whole number as label for each; it "
            f"has {tuple(images.shape)} and {labels.dtype} {tuple(labels.shape)}."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"the public set: its pixels are {images.dtype}. Fix: uint8, or float in [-1, 1].")
    if images.dtype != torch.uint8 and not ((images >= -1) & (images <= 1)).all():
        raise DataError("the public set: some of its pixels are outside of [-1, 1] or not numbers. Fix: scale them.")
    labels = labels.long()
    if labels.min() < 0 or labels.max() >= classes:
        wrong = int(labels[(labels < 0) | (labels >= classes)][0])
        raise DataError(f"the public set: it has a label {wrong}, but the {classes} classes are 0 to {classes - 1}.")
    missing = sorted(set(range(classes)) - set(labels.unique().tolist()))
    if missing:
        few = ", ".join(map(str, missing[:5])) + (" ..." if len(missing) > 5 else "")
        raise DataError(
            f"the public set: it has no image of {len(missing)} of the {classes} classes ({few}), so mixing would pull "
            "away from them. Fix: add images of these classes."
        )
    return images, labels
