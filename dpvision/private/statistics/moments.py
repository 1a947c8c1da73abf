"""Class sums, class counts and a second moment, released once; everyone may draw rows from them (released/moments.py).

One vector is released for all: ( b X^T Y, c counts, a vec(X^T X) ) with a^2 + b^2 + c^2 = 1. Where the counts are
declared public there is no c.

Formal guarantee: one row x of class y adds ( b x y^T, c y, a vec(x x^T) ), of length at most sqrt(a^2 + b^2 + c^2) = 1
(lda.py), and moves nobody else's. The event is Gaussian(sigma, 1), and it comes out only for a charge of such an
event, which exists only once it is on the disk, under the name that `name` gives: records, settings and software all
shape it. What is drawn from the result, and learned, is post-processing. The unit is one image: the charge must say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpvision.core.account import Charge
from dpvision.core.events import Event, Gaussian, to_json
from dpvision.core.gate import Gate, secret_name
from dpvision.core.keys import Key
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import ConfigError
from dpvision.private.statistics.lda import class_statistics
from dpvision.private.statistics.mechanism import AT_A_TIME, CLASS_NUMBERS, Described, Made
from dpvision.private.statistics.second_moment import to_matrix
from dpvision.released.folder import Block
from dpvision.released.learners import DiscriminantLearner, fit_moments
from dpvision.released.moments import RIDGE, ClassMoments
from dpvision.settings.release import Release
from dpvision.storage.software import computing


class Moments:
    """What one release tells, and how: private rows; `share` is a^2, `counts_share` c^2 unless counts are declared."""

    def __init__(
        self, rows: Rows, *, share: float, counts_share: float, n: int, class_counts: Sequence[int] | None = None
    ) -> None:
        c2 = 0.0 if class_counts is not None else counts_share
        if not (0 < share < 1 and 0 <= c2 < 1 - share) or (class_counts is None and not c2):
            raise ConfigError(
                f"share is {share} and counts_share {counts_share}: both must be above 0 and leave something for the "
                "class sums."
            )
        self.a, self.b, self.c = math.sqrt(share), math.sqrt(1 - share - c2), math.sqrt(c2)
        self.n, self.class_counts, self._rows = n, class_counts, rows

    def event(self, sigma: float) -> Gaussian:
        return Gaussian(sigma, 1)

    def name(self, key: Key, event: Event) -> str:
        """Of the charge and the noise."""
        rows, settings = self._rows, f"{self.a!r} {self.b!r} {self.c!r} {self.n} {self.class_counts!r}"
        what = f"moments {settings} {rows.classes} {to_json(event)} {computing()}"
        return secret_name(key, "name of a release", what, (rows.x, rows.labels))

    def released(self, charge: Charge, key: Key) -> ClassMoments:
        """The noisy moments."""
        gate = Gate(charge, key, EveryRecord(1), name=self.name(key, charge.event))
        rows = self._rows
        d, k = rows.width, rows.classes
        asked = class_statistics(rows, a=self.a, b=self.b, c=self.c)
        got = gate.next(asked)
        noise = gate.sigma * asked.sensitivity
        sums, rest = got[: d * k].reshape(d, k) / self.b, got[d * k :]
        counts, noise_of_counts = np.asarray(self.class_counts, dtype=np.float64), 0.0
        if self.c:
            counts, rest, noise_of_counts = rest[:k] / self.c, rest[k:], noise / self.c
        return ClassMoments(
            sums=sums,
            counts=counts,
            second=to_matrix(rest / self.a, d),
            n=self.n,
            noise_of_sums=noise / self.b,
            noise_of_counts=noise_of_counts,
            noise_of_second=noise / self.a,
        )

    def make(self, charge: Charge, key: Key, config: Release) -> Made:
        moments = self.released(charge, key)
        arrays = {"sums": moments.sums, "counts": moments.counts, "second": moments.second, "n": np.array(moments.n)}
        for name in ("noise_of_sums", "noise_of_counts", "noise_of_second"):
            arrays[name] = np.array(getattr(moments, name))
        return Made(
            _drawn(moments, config),
            files={"moments.safetensors": arrays},
            learners={"linear discriminant of the moments": learner_of(moments)},
        )

    def describe(self, config: Release) -> Described:
        return Described(
            name="moments",
            rows_are="drawn by public coins from one Gaussian for each class, with one covariance for all",
            labels=f"{CLASS_NUMBERS}; drawn by public coins, as the row was",
            hard=True,
            more={"class_counts": "released with noise" if self.class_counts is None else "declared public"},
        )


def of_settings(rows: Rows, config: Release) -> Moments:
    assert config.n  # complete
    return Moments(
        rows, share=config.share, counts_share=config.counts_share, n=config.n, class_counts=config.class_counts
    )


def learner_of(moments: ClassMoments) -> DiscriminantLearner:
    """In closed form, without rows."""
    learner = fit_moments(
        moments.sums,
        moments.sizes,
        moments.second,
        n=moments.n,
        noise_sums=moments.noise_of_sums,
        noise_moment=moments.noise_of_second,
        ridge=RIDGE,
    )
    assert isinstance(learner, DiscriminantLearner)
    return learner


def _drawn(moments: ClassMoments, config: Release) -> Iterator[Block]:
    assert config.rows
    rng = np.random.default_rng(config.seed)
    for start in range(0, config.rows, AT_A_TIME):
        yield moments.draw(min(AT_A_TIME, config.rows - start), rng)
