"""Synthetic rows from private ones by a published method: as the mechanism of a release, or for features of your own.

Formal guarantee: for two data sets of which one has one image (one row and its label) more, and any features that are a
public function of each image alone, the synthetic rows and everything that was computed on the way to them satisfy the
guarantee of the event, Gaussian(sigma, releases), which is charged to the ledger, on the disk, before the first noise
is drawn. The private rows are read only by the sums that the gate gets, `method.releases` of them, each with its own
sensitivity (embedding.py, p3gm.py). What is drawn from the seed (random features, latent points) is public; what is
fitted to noisy sums is post-processing. The unit is one image: the charge must state so.

Public, and thus not to be taken from the data by the caller: classes, n, rows, the settings. If n is left out of
`synthesise` it is the number of rows, and the result lists it in `read_off`; as the number is revealed then, neighbours
have the same number of rows, one of which is zero in one of them (zero-out). An error about wrong inputs is for the
operator, not for release.
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
    """A way to make rows. Its fields are public settings; private rows are only read into sums for `add_noise`."""

    title: ClassVar[str]  # the method
    rows_are: ClassVar[str]  # what its rows are, in words

    @property
    def releases(self) -> int:
        """How often `make` calls `add_noise`: exactly."""

    def check(self, *, width: int) -> None:
        """Refuse, before anything is charged, rows that the settings do not fit."""

    def make(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, count: int, seed: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`count` synthetic rows of length at most 1, and their classes."""


METHODS: dict[str, Any] = {"merf": Merf, "hermite": Hermite, "p3gm": P3GM}


def setup_method(name: str, settings: Mapping[str, Any]) -> Setup:
    """The method of this name with these settings; refused by name, before anything is charged."""
    return Setup.of(name, settings, METHODS, ROW_SETTINGS)


class Synthesis:
    """A method as the mechanism of a release: private rows, and the public n, number of rows and seed."""

    def __init__(self, rows: Rows, method: SynthesisMethod, *, n: int, count: int, seed: int) -> None:
        self.method, self.n, self.count, self.seed, self._rows = method, n, count, seed, rows

    @staticmethod
    def of_settings(rows: Rows, config: Release) -> Synthesis:
        """The method of this kind: its own settings are those of the release, others are the method's defaults."""
        assert config.n and config.rows  # complete
        own = {name: getattr(config, name) for name in config.of_kind.own}
        if config.kind == "p3gm":
            own["latent"] = min(P3GM.latent, rows.width)
        method = METHODS[config.kind](**own)
        if len(rows.x) or rows.width > 1:  # not the empty rows on which settings are tried
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

    The rows look like prepared ones, of length at most 1: features to be classified go through `prepare` first.
    """

    x: NDArray[np.float32]  # (rows, d)
    labels: NDArray[np.int64]  # (rows,)

    def prepare(self, features: Any) -> NDArray[np.float32]:
        """Features of other images, prepared like the private ones; a row that is not finite becomes zero."""
        return self.preparation.apply(features)[0]


def synthesise(
    features: Any,
    labels: Any,
    budget: Budget,
    *,
    method: str = "merf",
    classes: int,
    ledger: Ledger,
    n: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    sketch: Sketch = NOTHING,
    run: str = "synthetic rows",
    test_key: str | None = None,
    **settings: Any,
) -> Synthetic:
    """Make `rows` synthetic rows (default: n) by "merf", "hermite" or "p3gm" within the budget; charges the ledger.

    features   each row a public function of one private image, its pixels for instance, as one row of floats
    budget     what the rows may reveal; it is also the ledger's, if that is new
    ledger     that of the images, `ledger_of(identify(split)[0])`: then it adds up with trainings on them
    sketch     `overlap.sketch_images(split.images, identify(split)[2])`: then other data sets with some of the same
               images find this account
    seed       of the public randomness
    test_key   a word that fixes the noise. For tests: the rows and their charge are marked as not private
    settings   of the private rows (bound, unit, whitening) and of the method (its dataclass)
    """
    setup = setup_method(method, settings)
    private_rows = Rows.of(features, labels, setup.preparation, classes=classes)
    setup.method.check(width=private_rows.width)
    n, read_off = public_count(n, private_rows.x)
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
        arrays=(private_rows.x, private_rows.labels),
        ledger=ledger,
        run=run,
        sketch=sketch,
        test_key=test_key,
    )
    x, y = setup.method.make(private_rows, n=n, sigma=gate.sigma, add_noise=gate.next, count=rows, seed=seed)
    return Synthetic(x=x, labels=y, n=n, read_off=read_off, **charged)
