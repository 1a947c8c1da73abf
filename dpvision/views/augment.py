"""Augmentations by name, one after the other, for a whole batch at once.

An operation is a function (images, coins, views) -> images. It takes (B, 1 or views, C, H, W), float in [-1, 1], and
gives (B, views, C, H, W); given one image, it makes `views` of it. View k of image i is a function of image i and of
the coins of image i alone. How many coins are drawn depends on the operations and on `views`, never on a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.errors import ConfigError, did_you_mean
from dpvision.views.autoaugment import autoaugment
from dpvision.views.colour import grayscale, jitter
from dpvision.views.cutout import cutout
from dpvision.views.resized_crop import resized_crop
from dpvision.views.shift import crop, crop_and_flip, flip

Operation = Callable[[Tensor, UnitRandom, int], Tensor]

OPERATIONS: dict[str, Operation] = {
    "autoaugment": autoaugment,
    "crop": crop,
    "cutout": cutout,
    "flip": flip,
    "grayscale": grayscale,
    "jitter": jitter,
    "resized-crop": resized_crop,
}
# Neighbours that are done in one pass.
JOINED: dict[tuple[str, str], Operation] = {("crop", "flip"): crop_and_flip, ("flip", "crop"): crop_and_flip}


class Augment:
    """Some operations in their order. No operations: the views are copies."""

    def __init__(self, names: Sequence[str]) -> None:
        self._operations = joined(names)
        self.names = tuple(names)

    def __call__(self, images: Tensor, rng: UnitRandom, views: int = 1) -> Tensor:
        """(B, 1 or views, C, H, W) in [-1, 1] -> (B, views, C, H, W)."""
        for operate in self._operations:
            images = operate(images, rng, views)
        return images.expand(-1, views, -1, -1, -1)

    def __repr__(self) -> str:
        return f"Augment({', '.join(self.names)})"


def joined(names: Sequence[str]) -> list[Operation]:
    """The operations of these names, with neighbours joined where that saves a pass."""
    if isinstance(names, str):
        raise ConfigError(f"augment is {names!r}: it must be a list of names. Fix: ({names!r},).")
    for name in names:
        if name not in OPERATIONS:
            raise ConfigError(f"there is no augmentation named {name!r}. {did_you_mean(name, sorted(OPERATIONS))}")
    operations, rest = [], list(names)
    while rest:
        pair = JOINED.get((rest[0], rest[1])) if len(rest) > 1 else None
        operations.append(pair or OPERATIONS[rest[0]])
        del rest[: 2 if pair else 1]
    return operations
