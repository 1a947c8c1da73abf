"""A linear classifier that may be released, with what it tells about any one image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import Gaussian
from dpvision.core.rows import Floats, Preparation
from dpvision.errors import ConfigError
from dpvision.private.statistics.centre import less


@dataclass(frozen=True, eq=False)
class Head:
    """Scores of prepared features: x @ weight + bias. `epsilon` is that of `event` at `delta`.

    `private` is False for a head whose noise came from a fixed key: it hides nothing. `read_off` names the settings
    that were taken from the private data and not given as public numbers.
    """

    weight: Floats  # (d, classes)
    bias: Floats | None  # (classes,)
    centre: Floats | None  # (d,): taken off each row
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

    def scores(self, features: Any) -> Floats:
        """(N, classes). Rows are prepared as they were for fitting; one that is not finite gets the scores of zero."""
        x, _ = self.preparation.apply(features)
        width = x.shape[1] - (self.preparation.intercept > 0)
        if width != len(self.weight):
            raise ConfigError(f"features have {width} columns, but the head was fitted on {len(self.weight)}.")
        if self.centre is not None:
            x = less(x, self.centre)
        found = x[:, : len(self.weight)].astype(np.float64) @ self.weight
        return found if self.bias is None else found + self.bias

    def classes_of(self, features: Any) -> NDArray[np.int64]:
        """The class with the highest score, for each row."""
        return self.scores(features).argmax(axis=1)


def split_intercept(weight: Floats, bias: Floats | None, preparation: Preparation) -> tuple[Floats, Floats | None]:
    """The last row of the weights belongs to the constant feature, where there is one: it is the bias."""
    if not preparation.intercept:
        return weight, bias
    return weight[:-1], weight[-1] * preparation.constant
