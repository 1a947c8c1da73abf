"""Synthetic rows that may be released, with what they tell about any one image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import Gaussian
from dpvision.core.rows import Preparation


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Rows with their classes, to train on for ever. `epsilon` is that of `event` at `delta`.

    The rows look like prepared ones, of length at most 1: what is to be classified goes through `prepared` first.
    `private` is False where the noise came from a fixed key: it hides nothing. `read_off` names the settings that were
    taken from the private data and not given as public numbers.
    """

    x: NDArray[np.float32]  # (rows, d)
    labels: NDArray[np.int64]  # (rows,)
    event: Gaussian
    epsilon: float
    delta: float
    method: str
    settings: Mapping[str, Any]
    preparation: Preparation
    n: int
    charge: str  # the id of the charge in the ledger
    private: bool
    read_off: tuple[str, ...] = ()

    def prepared(self, features: Any) -> NDArray[np.float32]:
        """Features of other images as the private ones were prepared; a row that is not finite becomes zero."""
        return self.preparation.apply(features)[0]
