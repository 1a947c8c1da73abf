"""A linear classifier on rows of features, with the preprocessing of rows."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.core.rows import AT_A_TIME, SHORTER, Floats, Preparation, row_norms

UNIT = Preparation(unit=True)


class HeadOnFeatures(nn.Module):
    """Scores x @ weight + bias of rows (N, d), where x is the row scaled to norm 1, centred, and scaled again.

    If the centre is all zeros, nothing is subtracted. A row that is not finite gets the scores of a row of zeros.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    centre: nn.Parameter

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        for name, shape in {"weight": (width, classes), "bias": (classes,), "centre": (width,)}.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=torch.float64), requires_grad=False))

    def forward(self, rows: Tensor) -> Tensor:
        """Compute the scores in float64 on the CPU."""
        weight, bias, centre = (tensor.cpu().numpy() for tensor in (self.weight, self.bias, self.centre))
        x, _ = UNIT.apply(rows.cpu().numpy().reshape(len(rows), -1))
        return torch.from_numpy(linear_scores(x, weight, bias=bias, centre=centre if centre.any() else None))


def linear_scores(x: NDArray[np.float32], weight: Floats, *, bias: Floats | None, centre: Floats | None) -> Floats:
    """Return the scores (N, classes) of prepared rows, ignoring a last column of x that is for an intercept."""
    if centre is not None:
        x = subtract_centre(x, centre)
    scores = x[:, : len(weight)].astype(np.float64) @ weight
    return np.asarray(scores if bias is None else scores + bias)


def subtract_centre(x: NDArray[np.float32], centre: Floats) -> NDArray[np.float32]:
    """Return (x - m) / |x - m| for each row, a function of the row and the noisy mean m alone."""
    out = np.zeros_like(x)
    for start in range(0, len(x), AT_A_TIME):
        part = slice(start, start + AT_A_TIME)
        moved = x[part].astype(np.float64) - centre
        length = row_norms(moved)
        unit = np.divide(moved, length, out=np.zeros_like(moved), where=length > 0)
        out[part] = unit / np.maximum(1.0, row_norms(unit)) * SHORTER
    return out
