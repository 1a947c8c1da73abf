"""Inputs of a network: pixels scaled by fixed numbers, or features that a frozen prefix computed once.

Each row is a function of its own record. `predict_scores`, `predict_classes` and `accuracy` apply a network to all
records in batches, on the network's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.data import Split
from dpvision.models.device import send
from dpvision.models.featured import apply_in_pieces
from dpvision.views.eight_bit import to_floats

AT_A_TIME, BATCH, PIECE = 4096, 1024, 64


def to_tensor(images: NDArray[Any], device: torch.device | None = None) -> Tensor:
    """Convert (N, H, W, C) uint8 or float in [0, 1] to (N, C, H, W) in [-1, 1], by fixed numbers, not data statistics.

    Bytes are sent to `device` and converted to floats there.
    """
    pixels = send(torch.from_numpy(np.require(images, requirements=("C", "W"))), device)
    return to_floats(pixels.permute(0, 3, 1, 2))


class Inputs:
    """The records of a split as inputs of a network, accessed by index."""

    def __init__(self, split: Split, features: NDArray[np.float32] | None = None) -> None:
        self.labels, self._split = split.labels, split
        self._images, self._features = split.images, features

    def __len__(self) -> int:
        return len(self.labels)

    def digest_features(self) -> str | None:
        """Return a digest of the features' bytes, or None if the inputs are images."""
        if self._features is None:
            return None
        digest = blake2b(f"{self._features.dtype} {self._features.shape}".encode(), digest_size=16)
        for start in range(0, len(self._features), 1024):
            digest.update(np.ascontiguousarray(self._features[start : start + 1024]).tobytes())
        return digest.hexdigest()

    def through(self, module: nn.Module) -> Inputs:
        """Return the same records with `module` applied to each row of features, in pieces of equal size."""
        assert self._features is not None
        outputs = np.empty(self._features.shape, dtype=np.float32)
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        for start in range(0, len(outputs), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            with torch.no_grad():
                outputs[part] = apply_in_pieces(module, self(part, device=device), size=PIECE).cpu().numpy()
        return Inputs(self._split, outputs)

    def __call__(self, rows: NDArray[np.int64] | slice, *, device: torch.device | None = None) -> Tensor:
        if self._features is not None:
            if not isinstance(rows, slice) and len(rows) and (np.diff(rows) == 1).all():  # one copy of consecutive rows
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            return send(torch.from_numpy(np.array(self._features[rows])), device)
        return to_tensor(np.asarray(self._images[rows]), device)


def predict_scores(model: nn.Module, inputs: Inputs, *, most: int | None = None) -> NDArray[np.float64]:
    """Return the network's outputs (N, classes) for all records, or for the first `most`."""
    return torch.cat(list(_outputs(model, inputs, most))).cpu().numpy()


def predict_classes(
    model: nn.Module, inputs: Inputs, *, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the predicted classes of all records, or of the first `most`, and the probabilities of these classes."""
    pairs = [(outputs.argmax(1), outputs.softmax(1).amax(1)) for outputs in _outputs(model, inputs, most)]
    classes, probabilities = (torch.cat(parts).cpu().numpy() for parts in zip(*pairs, strict=True))
    return classes, probabilities


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Inputs, most: int | None) -> Iterator[Tensor]:
    """Yield outputs in float64, batch by batch, on the network's device; the host does not wait for the device."""
    device = next(model.parameters()).device
    count = len(inputs) if most is None else min(most, len(inputs))
    for start in range(0, count, BATCH):
        yield model(inputs(slice(start, min(start + BATCH, count)), device=device)).double()


def accuracy(model: nn.Module, inputs: Inputs, *, most: int | None = None) -> float:
    """Return the fraction of all records, or of the first `most`, that the model classifies correctly."""
    classes, _ = predict_classes(model, inputs, most=most)
    return float((classes == np.asarray(inputs.labels[: len(classes)])).mean())
