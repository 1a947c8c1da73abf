"""From a method's name and its settings to what will be done: refused by name here, before anything is charged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

from dpvision.core.rows import Floats, Preparation, Rows
from dpvision.errors import ConfigError, did_you_mean
from dpvision.private.statistics.centre import around, sum_of_rows
from dpvision.private.statistics.gd import GradientDescent
from dpvision.private.statistics.lda import Discriminant
from dpvision.private.statistics.logistic import Noisy
from dpvision.private.statistics.newton import Newton
from dpvision.private.statistics.ridge import Moments


class Method(Protocol):
    """A way to fit. Its fields are public settings; private rows are only ever read into sums for `noisy`."""

    @property
    def releases(self) -> int:
        """How often `fit` calls `noisy`: exactly."""

    @property
    def needs_public(self) -> bool:
        """Whether `fit` needs public rows."""

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        """Weights (width, classes), and the classes' intercepts where the method makes its own."""


METHODS: dict[str, Any] = {"gd": GradientDescent, "moments": Moments, "lda": Discriminant, "newton": Newton}


@dataclass(frozen=True, eq=False)
class Setup:
    """What is done to each row, and the method that learns from the rows."""

    name: str
    preparation: Preparation
    method: Method

    @property
    def releases(self) -> int:
        """How many noisy sums there will be."""
        return self.method.releases + self.preparation.centre

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None
    ) -> tuple[Floats, Floats | None, Floats | None]:
        """Weights, the classes' intercepts, and the centre; each where there is one."""
        centre = None
        if self.preparation.centre:
            centre = noisy(sum_of_rows(rows)) / n
            rows, public = around(rows, centre), None if public is None else around(public, centre)
        return *self.method.fit(rows, n=n, sigma=sigma, noisy=noisy, public=public), centre

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its name, as `fit_head` takes them."""
        pairs = {f.name: getattr(part, f.name) for part in (self.preparation, self.method) for f in fields(part)}  # type: ignore[arg-type]
        return {"method": self.name, **pairs}

    def public_rows(self, features: Any, *, width: int) -> Rows | None:
        """The public features as rows, where the method needs them."""
        if not self.method.needs_public:
            return None
        if features is None:
            raise ConfigError(f"{self.name} as set learns directions from public features. Fix: public=...")
        rows = Rows.public(features, self.preparation)
        if rows.width != width:
            raise ConfigError(f"public has rows of another length than the features ({rows.width} and {width}).")
        return rows


def setup(name: str, settings: Mapping[str, Any]) -> Setup:
    """The method of this name with these settings; an unknown one is refused with a suggestion."""
    preparation, method = named(name, settings, METHODS, of_rows=[f.name for f in fields(Preparation)])
    if name == "lda" and preparation.intercept:
        raise ConfigError("intercept: lda makes its own from the class sums. Fix: leave intercept out.")
    return Setup(name, preparation, method)


def named(
    name: str, settings: Mapping[str, Any], methods: Mapping[str, Any], *, of_rows: Collection[str]
) -> tuple[Preparation, Any]:
    """One of some methods, and what is done to its rows: `of_rows` are the settings that are theirs."""
    if name not in methods:
        raise ConfigError(f"method is {name!r}: there is {', '.join(methods)}.")
    own = {f.name for f in fields(methods[name])}
    for unknown in settings.keys() - own - {*of_rows}:
        hint = did_you_mean(unknown, sorted(own | {*of_rows}))
        raise ConfigError(f"{unknown}: {name} has no such setting. {hint}")
    preparation = Preparation(**{k: v for k, v in settings.items() if k in of_rows})
    return preparation, methods[name](**{k: v for k, v in settings.items() if k in own})


def number_of_units(n: int) -> int:
    """The public n, or a refusal."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n is {n!r}: the public number of images must be a whole number above 0.")
    return n
