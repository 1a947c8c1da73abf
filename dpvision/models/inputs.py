"""Inputs of a network: pixels scaled by fixed numbers, or features that a frozen prefix computed once.

Each row is a function of its own record. `predict_scores`, `predict` and `accuracy` apply a network to all records in
batches, on the network's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.data import Split
from dpvision.data.dataset import UNKNOWN
from dpvision.models.device import send
from dpvision.models.featured import apply_in_pieces
from dpvision.models.tasks import Task
from dpvision.views.eight_bit import to_floats

AT_A_TIME, BATCH, PIECE = 4096, 1024, 64
MAX_RANKED = 100  # classes up to which all probabilities are kept


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


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answers of a network to its task (tasks.py)."""

    answers: NDArray[np.int64]
    """(N,) classes or grades, or (N, labels) of 1 and 0."""
    confidence: NDArray[np.float64]
    """(N,) probabilities of the answers; of labels, (N, labels) probabilities that they are on."""
    chances: NDArray[np.float64] | None
    """(N, classes) probabilities; None if there are more than MAX_RANKED classes."""


def predict(model: nn.Module, inputs: Inputs, task: Task, *, most: int | None = None) -> Predictions:
    """Return the network's answers for all records, or for the first `most`."""
    parts = []
    for outputs in _outputs(model, inputs, most):
        chances = task.chances(outputs)
        answers = task.answers(
            outputs if task.kind == "classes" else chances
        )  # a tie of rounded chances is none of them
        confidence = chances if task.kind == "labels" else chances.gather(1, answers.unsqueeze(1)).squeeze(1)
        parts.append((answers, confidence, *((chances,) if task.classes <= MAX_RANKED else ())))
    columns = [torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)]
    return Predictions(columns[0], columns[1], columns[2] if len(columns) > 2 else None)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Inputs, most: int | None) -> Iterator[Tensor]:
    """Yield outputs in float64, batch by batch, on the network's device; the host does not wait for the device."""
    device = next(model.parameters()).device
    count = len(inputs) if most is None else min(most, len(inputs))
    for start in range(0, count, BATCH):
        yield model(inputs(slice(start, min(start + BATCH, count)), device=device)).double()


def accuracy(model: nn.Module, inputs: Inputs, task: Task, *, most: int | None = None) -> float:
    """Return the share of right answers for all records, or the first `most`; of labels, among those that are known."""
    answers = predict(model, inputs, task, most=most).answers
    labels = np.asarray(inputs.labels[: len(answers)])
    known = labels != UNKNOWN
    return float((answers == labels)[known].mean()) if known.any() else 0.0
