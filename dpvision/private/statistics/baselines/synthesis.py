"""A published method as the mechanism of a release: the same folder, account and card as any other has.

Formal guarantee: the private rows are read only by the sums that the gate gets, `method.releases` of them, each with
its own sensitivity (embedding.py, p3gm.py). The event is Gaussian(sigma, releases), and rows come out only for a charge
of such an event, which exists only once it is on the disk, under the name that `name` gives: records, settings and
software all shape it. What is drawn from the seed is public; what is fitted to noisy sums is post-processing. The unit
is one image: the charge must say so.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dpvision.core.account import Charge
from dpvision.core.events import Event, to_json
from dpvision.core.gate import Gate, secret_name
from dpvision.core.keys import Key
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.private.statistics.baselines.setup import METHODS, Method
from dpvision.private.statistics.mechanism import CLASS_NUMBERS, Described, Made, in_blocks
from dpvision.settings.release import Release
from dpvision.storage.software import computing


class Synthesis:
    """What one release synthesises, and how: private rows, the method, and the public n, number of rows and seed."""

    def __init__(self, rows: Rows, method: Method, *, n: int, count: int, seed: int) -> None:
        self.method, self.n, self.count, self.seed, self._rows = method, n, count, seed, rows

    def name(self, key: Key, event: Event) -> str:
        """Of the charge and the noise."""
        rows, settings = self._rows, f"{self.method!r} {self.n} {self.count} {self.seed}"
        what = f"synthesis {settings} {rows.classes} {to_json(event)} {computing()}"
        return secret_name(key, "name of a release", what, (rows.x, rows.labels))

    def make(self, charge: Charge, key: Key, config: Release) -> Made:
        gate = Gate(charge, key, EveryRecord(self.method.releases), name=self.name(key, charge.event))
        made = self.method.make(
            self._rows, n=self.n, sigma=gate.sigma, noisy=gate.next, count=self.count, seed=self.seed
        )
        return Made(in_blocks(*made))

    def describe(self, config: Release) -> Described:
        settings = ", ".join(f"{name} {value}" for name, value in asdict(self.method).items())  # type: ignore[call-overload]
        return Described(
            name=self.method.title,
            rows_are=self.method.rows_are,
            labels=f"{CLASS_NUMBERS}; as many of each class as its noisy count has of all",
            hard=True,
            more={"class_counts": "released with noise", "settings": settings},
        )


def of_settings(rows: Rows, config: Release) -> Synthesis:
    """The method of this kind: its own settings are those of the release, others are the method's defaults."""
    assert config.n and config.rows  # complete
    method = METHODS[config.kind](**_own(rows, config))
    if len(rows.x) or rows.width > 1:  # not of no rows, on which settings are tried
        method.check(width=rows.width)
    return Synthesis(rows, method, n=config.n, count=config.rows, seed=config.seed)


def _own(rows: Rows, config: Release) -> dict[str, Any]:
    own = {name: getattr(config, name) for name in config.of_kind.own}
    if config.kind == "p3gm":
        own["latent"] = min(METHODS["p3gm"].latent, rows.width)
    return own
