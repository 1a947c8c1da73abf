"""What a network gets of records: pixels scaled by fixed numbers, or features that a frozen part made of them once.

Each row is a function of its own record; `answers` and the like run a network over all of them, a few at a time.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.data import Split
from dpvision.models.featured import in_pieces
from dpvision.views.eight_bit import to_floats

AT_A_TIME, PIECE = 4096, 64


def to_tensor(images: NDArray[Any]) -> Tensor:
    """(N, H, W, C) in 0..255 or 0..1 -> (N, C, H, W) in [-1, 1], by fixed numbers: never by statistics of the data."""
    return to_floats(torch.from_numpy(np.require(images, requirements=("C", "W"))).permute(0, 3, 1, 2))


class Inputs:
    """The records of a split as the network sees them, a few at a time."""

    def __init__(self, split: Split, features: NDArray[np.float32] | None = None) -> None:
        self.labels, self._split = split.labels, split
        self._images, self._features = split.images, features

    def __len__(self) -> int:
        return len(self.labels)

    def digest_of_features(self) -> str | None:
        """Names the features' very bytes; None where there are images."""
        if self._features is None:
            return None
        found = blake2b(f"{self._features.dtype} {self._features.shape}".encode(), digest_size=16)
        for start in range(0, len(self._features), 1024):
            found.update(np.ascontiguousarray(self._features[start : start + 1024]).tobytes())
        return found.hexdigest()

    def through(self, module: nn.Module) -> Inputs:
        """The same records after a map that works on each feature row alone: in memory, in pieces of one size."""
        assert self._features is not None
        found = np.empty(self._features.shape, dtype=np.float32)
        for start in range(0, len(found), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            with torch.no_grad():
                found[part] = in_pieces(module, self(part), size=PIECE).numpy()
        return Inputs(self._split, found)

    def __call__(self, rows: NDArray[np.int64] | slice) -> Tensor:
        if self._features is not None:
            if not isinstance(rows, slice) and len(rows) and (np.diff(rows) == 1).all():  # copied at once
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            return torch.from_numpy(np.array(self._features[rows]))
        return to_tensor(np.asarray(self._images[rows]))


def guesses(model: nn.Module, inputs: Inputs, *, most: int | None = None, physical: int = 1024) -> NDArray[np.int64]:
    """The class that the model gives each record, or each of the first `most`."""
    found, count = [], len(inputs) if most is None else min(most, len(inputs))
    for start in range(0, count, physical):
        with torch.no_grad():
            found.append(model(inputs(slice(start, min(start + physical, count)))).argmax(1).numpy())
    return np.concatenate(found)


def answers(model: nn.Module, inputs: Inputs, *, physical: int = 1024) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The class that the model gives each record, and the probability that it gives it."""
    named, chances = [], []
    for start in range(0, len(inputs), physical):
        with torch.no_grad():
            outputs = model(inputs(slice(start, min(start + physical, len(inputs))))).double()
        named.append(outputs.argmax(1).numpy())
        chances.append(outputs.softmax(1).amax(1).numpy())
    return np.concatenate(named), np.concatenate(chances)


def accuracy(model: nn.Module, inputs: Inputs, *, most: int | None = None) -> float:
    """Share of the records, or of the first `most`, that the model gets right."""
    found = guesses(model, inputs, most=most)
    return float((found == np.asarray(inputs.labels[: len(found)])).mean())
