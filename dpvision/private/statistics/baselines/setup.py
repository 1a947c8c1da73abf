"""From a method's name and its settings to what will be done: refused by name here, before anything is charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpvision.core.rows import Preparation, Rows
from dpvision.private.statistics.baselines.fourier import Merf
from dpvision.private.statistics.baselines.hermite import Hermite
from dpvision.private.statistics.baselines.p3gm import P3GM
from dpvision.private.statistics.logistic import Noisy
from dpvision.private.statistics.setup import named

# What may be asked of the private rows. (An intercept is for classifiers.)
OF_ROWS = ("bound", "unit", "whitening")


class Method(Protocol):
    """A way to make rows. Its fields are public settings; private rows are only ever read into sums for `noisy`."""

    title: ClassVar[str]  # the method
    rows_are: ClassVar[str]  # what its rows are, for who reads them

    @property
    def releases(self) -> int:
        """How often `make` calls `noisy`: exactly."""

    def check(self, *, width: int) -> None:
        """Refuse, before anything is charged, rows that the settings do not fit."""

    def make(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`count` synthetic rows of length at most 1, and their classes."""


METHODS: dict[str, Any] = {"merf": Merf, "hermite": Hermite, "p3gm": P3GM}


@dataclass(frozen=True, eq=False)
class Setup:
    """What is done to each private row, and the method that learns from the rows."""

    name: str
    preparation: Preparation
    method: Method

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its name, as `synthesise` takes them."""
        of_rows = {name: getattr(self.preparation, name) for name in OF_ROWS}
        own = {f.name: getattr(self.method, f.name) for f in fields(self.method)}  # type: ignore[arg-type]
        return {"method": self.name, **of_rows, **own}


def setup(name: str, settings: Mapping[str, Any]) -> Setup:
    """The method of this name with these settings; an unknown one is refused with a suggestion."""
    return Setup(name, *named(name, settings, METHODS, of_rows=OF_ROWS))
