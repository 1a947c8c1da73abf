"""Synthetic rows by a published method, as the mechanism of a release or for features of your own.

Formal guarantee: for two data sets that differ by one additional image (one row and its label), and any features that
are a public function of each image alone, the synthetic rows and all intermediate results satisfy the guarantee of the
event, Gaussian(sigma, releases). The event is in the ledger, on disk, before the first noise is drawn. The private rows
are read only by the sums passed to the gate: `method.releases` of them, each with a known sensitivity (embedding.py,
p3gm.py). Everything drawn from the seed (random features, latent points) is public, and everything fitted to noisy sums
is post-processing. If `persons` are given, a unit is a person, who adds to each sum the mean of what their rows would
add. The charge names the unit.

The caller must not derive public inputs from the data: classes, n, rows and the settings. If n is not passed to
`synthesise`, it is the number of units, and the result lists it in `read_off`. That number is then revealed, so
neighbouring data sets have the same number of units, one of which is zero in one of them (zero-out). Errors about wrong
inputs are for the operator, not for release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpvision.core.account import Charge
from dpvision.core.events import Budget, Event
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import ConfigError
from dpvision.private.accounts.overlap import NOTHING, Sketch
from dpvision.private.statistics.baselines.kernels import Hermite, Merf
from dpvision.private.statistics.baselines.p3gm import P3GM
from dpvision.private.statistics.charge import Charged, charge_fit, public_count
from dpvision.private.statistics.mechanism import AT_A_TIME, CLASS_NUMBERS, Description, Output, release_name
from dpvision.private.statistics.row_sums import AddNoise
from dpvision.private.statistics.setup import Setup
from dpvision.settings.release import Release

# Settings of the private rows. (An intercept is for classifiers.)
ROW_SETTINGS = ("bound", "unit", "whitening")


class SynthesisMethod(Protocol):
    """A method that makes rows. Its fields are public settings; private rows enter only the sums for `add_noise`."""

    title: ClassVar[str]  # the name of the method
    rows_are: ClassVar[str]  # a description of its rows

    @property
    def releases(self) -> int:
        """The exact number of times that `make` calls `add_noise`."""

    def check(self, *, width: int) -> None:
        """Raise an error, before anything is charged, if the settings do not suit rows of this width."""

    def make(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return `count` synthetic rows of norm at most 1, and their classes."""


METHODS: dict[str, Any] = {"merf": Merf, "hermite": Hermite, "p3gm": P3GM}


def setup_method(name: str, settings: Mapping[str, Any]) -> Setup:
    """Set up the method of this name; an unknown name or setting is an error, before anything is charged."""
    return Setup.of(name, settings, METHODS, ROW_SETTINGS)


class Synthesis:
    """A method as the mechanism of a release, with the private rows and the public n, number of rows and seed."""

    def __init__(self, rows: Rows, method: SynthesisMethod, *, n: int, count: int, seed: int) -> None:
        self.method, self.n, self.count, self.seed, self._rows = method, n, count, seed, rows

    @staticmethod
    def of_settings(rows: Rows, config: Release) -> Synthesis:
        """Build the mechanism of this kind of release; settings that the release does not have keep their defaults."""
        assert config.n and config.rows  # complete
        own = {name: getattr(config, name) for name in config.of_kind.own}
        if config.kind == "p3gm":
            own["latent"] = min(P3GM.latent, rows.width)
        method = METHODS[config.kind](**own)
        if len(rows.x) or rows.width > 1:  # skipped for the empty rows with which settings are checked
            method.check(width=rows.width)
        return Synthesis(rows, method, n=config.n, count=config.rows, seed=config.seed)

    def name(self, key: Key, event: Event) -> str:
        settings = f"{self.method!r} {self.n} {self.count} {self.seed}"
        return release_name("synthesis", settings, self._rows, key, event)

    def make(self, charge: Charge, key: Key, config: Release) -> Output:
        gate = Gate(charge, key, EveryRecord(self.method.releases), name=self.name(key, charge.event))
        x, y = self.method.make(
            self._rows, n=self.n, sigma=gate.sigma, add_noise=gate.next, count=self.count, seed=self.seed
        )
        starts = range(0, len(x), AT_A_TIME)
        return Output((x[start : start + AT_A_TIME], y[start : start + AT_A_TIME]) for start in starts)

    def describe(self, config: Release) -> Description:
        settings = ", ".join(f"{name} {value}" for name, value in asdict(self.method).items())  # type: ignore[call-overload]
        return Description(
            name=self.method.title,
            rows_are=self.method.rows_are,
            labels=f"{CLASS_NUMBERS}; in proportion to the noisy counts of the classes",
            hard=True,
            more={"class_counts": "released with noise", "settings": settings},
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Synthetic(Charged):
    """Synthetic rows with their classes, which anyone can train on at no further privacy cost.

    The rows resemble prepared rows, of norm at most 1. Use `prepare` on features before classifying them.
    """

    x: NDArray[np.float32]  # (rows, d)
    labels: NDArray[np.int64]  # (rows,)

    def prepare(self, features: Any) -> NDArray[np.float32]:
        """Prepare features of other images in the same way as the private ones; nonfinite rows become zero."""
        return self.preparation.apply(features)[0]


def synthesise(
    features: Any,
    labels: Any,
    budget: Budget,
    *,
    method: str = "merf",
    classes: int,
    ledger: Ledger,
    persons: Any = None,
    n: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    sketch: Sketch = NOTHING,
    run: str = "synthetic rows",
    test_key: str | None = None,
    **settings: Any,
) -> Synthetic:
    """Make `rows` synthetic rows (default: n) by "merf", "hermite" or "p3gm" within the budget; charges the ledger.

    features   one row of floats per private image, each a public function of that image alone, such as its pixels
    persons    the person of each row, if the guarantee is for persons with all of their rows; n is then their number
    budget     the privacy budget of the rows; also that of the ledger, if the ledger is new
    ledger     the ledger of the images, `ledger_of(identify(split)[0])`, so that training runs on them add up with this
    sketch     `overlap.sketch_images(split.images, identify(split)[2])`, so that other data sets with some of the same
               images find this account
    seed       seed of the public randomness
    test_key   fixes the noise, for tests: the rows and their charge are marked as not private
    settings   settings of the private rows (bound, unit, whitening) and of the method (the fields of its dataclass)
    """
    setup = setup_method(method, settings)
    private_rows = Rows.of(features, labels, setup.preparation, classes=classes, persons=persons)
    setup.method.check(width=private_rows.width)
    n, read_off = public_count(n, private_rows)
    rows = n if rows is None else rows
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ConfigError(f"rows is {rows!r}: the number of synthetic rows must be a whole number above 0.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed!r}: it must be a whole number from 0 to below 2^32.")
    gate, charged = charge_fit(
        setup,
        budget,
        purpose="name of synthetic rows",
        numbers=f"{n} {classes} {rows} {seed}",
        rows=private_rows,
        ledger=ledger,
        run=run,
        sketch=sketch,
        test_key=test_key,
    )
    x, y = setup.method.make(private_rows, n=n, sigma=gate.sigma, add_noise=gate.next, count=rows, seed=seed)
    return Synthetic(x=x, labels=y, n=n, read_off=read_off, **charged)
