"""Builds a method from its name and settings; invalid ones raise an error here, before anything is charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import numpy as np

from dpvision.core.rows import Floats, Preparation, Rows
from dpvision.errors import ConfigError, did_you_mean
from dpvision.models.head_on_features import subtract_centre
from dpvision.private.statistics.closed_form import Discriminant, Moments
from dpvision.private.statistics.logistic import GradientDescent, Newton
from dpvision.private.statistics.row_sums import AddNoise, sum_of_rows


class HeadMethod(Protocol):
    """A method that fits a head. Its fields are public settings; private rows enter only the sums for `add_noise`."""

    @property
    def releases(self) -> int:
        """The exact number of times that `fit` calls `add_noise`."""

    @property
    def needs_public(self) -> bool:
        """Whether `fit` needs public rows."""

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        """Return (width, classes) weights, and the intercepts of the classes if the method computes them."""


METHODS: dict[str, Any] = {"gd": GradientDescent, "moments": Moments, "lda": Discriminant, "newton": Newton}
ALL_ROW_SETTINGS = tuple(f.name for f in fields(Preparation))


@dataclass(frozen=True, eq=False)
class Setup:
    """The preparation of each row, and the method that learns from the rows."""

    name: str
    preparation: Preparation
    method: Any
    row_settings: tuple[str, ...]  # fields of the preparation that can be set

    @property
    def releases(self) -> int:
        """The number of noisy sums."""
        return self.method.releases + self.preparation.centre

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as keyword arguments of `fit_head` and `synthesise`."""
        of_rows = {name: getattr(self.preparation, name) for name in self.row_settings}
        return {"method": self.name, **of_rows, **{f.name: getattr(self.method, f.name) for f in fields(self.method)}}

    @classmethod
    def of(
        cls,
        name: str,
        settings: Mapping[str, Any],
        methods: Mapping[str, Any] = METHODS,
        row_settings: tuple[str, ...] = ALL_ROW_SETTINGS,
    ) -> Self:
        """Set up the method of this name; the error for an unknown setting suggests a similar one."""
        if name not in methods:
            raise ConfigError(f"method is {name!r}: it must be one of {', '.join(methods)}.")
        own = {f.name for f in fields(methods[name])}
        for unknown in settings.keys() - own - {*row_settings}:
            hint = did_you_mean(unknown, sorted(own | {*row_settings}))
            raise ConfigError(f"{unknown}: {name} has no such setting. {hint}")
        preparation = Preparation(**{k: v for k, v in settings.items() if k in row_settings})
        if name == "lda" and preparation.intercept:
            raise ConfigError("intercept: lda computes intercepts from the class sums. Fix: leave intercept out.")
        return cls(name, preparation, methods[name](**{k: v for k, v in settings.items() if k in own}), row_settings)


class HeadSetup(Setup):
    """A setup whose method fits a head."""

    method: HeadMethod

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None
    ) -> tuple[Floats, Floats | None, Floats | None]:
        """Return weights, intercepts of the classes or None, and the noisy mean row that was subtracted or None."""
        centre = None
        if self.preparation.centre:
            centre = add_noise(sum_of_rows(rows)) / n
            rows, public = centre_rows(rows, centre), None if public is None else centre_rows(public, centre)
        return *self.method.fit(rows, n=n, sigma=sigma, add_noise=add_noise, public=public), centre

    def public_rows(self, features: Any, *, width: int) -> Rows | None:
        """Return the public features as rows, or None if the method does not need them."""
        if not self.method.needs_public:
            return None
        if features is None:
            raise ConfigError(f"{self.name} with these settings needs public features. Fix: pass public=...")
        rows = Rows.public(features, self.preparation)
        if rows.width != width:
            raise ConfigError(f"public has {rows.width} columns and the features have {width}: they must be equal.")
        return rows


def centre_rows(rows: Rows, centre: Floats) -> Rows:
    """Subtract the noisy mean row from the rows; a row that is in no sum stays zero.

    The mean row carries no information about classes, but accounts for most of the norm of a row.
    """
    x = subtract_centre(rows.x, centre)
    return replace(rows, x=np.where(rows.counted[:, None], x, np.float32(0)))
