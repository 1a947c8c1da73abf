"""Images with their classes as measures take them, and what a network gets of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.models import Shape
from dpvision.models.inputs import to_tensor


@dataclass(frozen=True, eq=False)
class Pictures:
    """`name` is what an error calls them: the file or the folder that they are from."""

    name: str
    images: NDArray[np.uint8] | NDArray[np.float32]  # (N, H, W, 1 or 3); 0 to 255, or 0 to 1
    labels: NDArray[np.int64] | None = None  # (N,), an index into the classes

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] not in (1, 3) or not len(self.images):
            raise ConfigError(f"{self.name}: images must be (count, height, width, 1 or 3), not {self.images.shape}.")
        if self.images.dtype not in (np.uint8, np.float32):
            raise ConfigError(f"{self.name}: images must be bytes, or float32 from 0 to 1, not {self.images.dtype}.")
        if self.labels is not None and self.labels.shape != (len(self.images),):
            raise ConfigError(f"{self.name}: there are {len(self.images)} images and {self.labels.shape} labels.")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> Shape:
        height, width, channels = self.images.shape[1:]
        return channels, height, width

    def tensor(self, rows: slice | NDArray[np.int64] = slice(None)) -> Tensor:
        """(n, C, H, W) in [-1, 1], by fixed numbers."""
        return to_tensor(np.asarray(self.images[rows]))

    def some(self, most: int | None, *, seed: int) -> Pictures:
        """At most so many of them, drawn at random in a random order: files often lie sorted by class."""
        order = np.random.default_rng((seed, len(self))).permutation(len(self))[:most]
        return Pictures(self.name, self.images[order], None if self.labels is None else self.labels[order])

    def labelled(self) -> NDArray[np.int64]:
        if self.labels is None:
            raise DataError(f"{self.name}: its images have no classes, so no classifier can learn from them.")
        return self.labels


def require_alike(one: Pictures, other: Pictures) -> None:
    """The same size and colours: a network would see the difference before it sees anything else."""
    if one.shape != other.shape:
        (c, h, w), (d, i, j) = one.shape, other.shape
        raise DataError(
            f"{one.name}: its images are {h}x{w} pixels of {c} channels, and those of {other.name} are {i}x{j} of {d}. "
            "Fix: bring both to the same size."
        )
