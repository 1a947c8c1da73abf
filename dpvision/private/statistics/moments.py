"""Class sums, class counts and a second moment, released once; anyone can draw rows from them (released/moments.py).

A single vector is released: ( b X^T Y, c counts, a vec(X^T X) ) with a^2 + b^2 + c^2 = 1. If the counts are declared
public, they are left out and c = 0.

Formal guarantee: one row x of class y adds ( b x y^T, c y, a vec(x x^T) ), of norm at most sqrt(a^2 + b^2 + c^2) = 1
(row_sums.class_statistics), and does not affect what other rows add. The event is Gaussian(sigma, 1). The vector is
released only for a charge of this event that is on disk, under the name that `name` returns, which depends on records,
settings and software. Drawing rows from the result and learning from it are post-processing. If the rows name persons,
a person adds the mean of what their rows would add, of norm at most 1 too. The charge must name the unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from dpvision.core.account import Charge
from dpvision.core.events import Event, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.rows import Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import ConfigError
from dpvision.private.statistics.mechanism import AT_A_TIME, CLASS_NUMBERS, Description, Output, release_name
from dpvision.private.statistics.row_sums import class_statistics, split_statistics
from dpvision.released.folder import Block
from dpvision.released.learners import DiscriminantLearner
from dpvision.released.moments import ClassMoments, discriminant
from dpvision.settings.release import Release


class MomentsMechanism:
    """The noisy moments of private rows; `share` is a^2, and `counts_share` is c^2 unless the counts are declared."""

    def __init__(
        self, rows: Rows, *, share: float, counts_share: float, n: int, class_counts: Sequence[int] | None = None
    ) -> None:
        c2 = 0.0 if class_counts is not None else counts_share
        if not (0 < share < 1 and 0 <= c2 < 1 - share) or (class_counts is None and not c2):
            raise ConfigError(
                f"share is {share} and counts_share is {counts_share}: both must be above 0, and their sum below 1."
            )
        self.a, self.b, self.c = math.sqrt(share), math.sqrt(1 - share - c2), math.sqrt(c2)
        self.n, self.class_counts, self._rows = n, class_counts, rows

    @staticmethod
    def of_settings(rows: Rows, config: Release) -> MomentsMechanism:
        assert config.n and config.share is not None  # complete
        return MomentsMechanism(
            rows, share=config.share, counts_share=config.counts_share, n=config.n, class_counts=config.class_counts
        )

    def event(self, sigma: float) -> Gaussian:
        return Gaussian(sigma, 1)

    def name(self, key: Key, event: Event) -> str:
        settings = f"{self.a!r} {self.b!r} {self.c!r} {self.n} {self.class_counts!r}"
        return release_name("moments", settings, self._rows, key, event)

    def noisy_moments(self, charge: Charge, key: Key) -> ClassMoments:
        gate = Gate(charge, key, EveryRecord(1), name=self.name(key, charge.event))
        rows = self._rows
        d, k = rows.width, rows.classes
        exact = class_statistics(rows, a=self.a, b=self.b, c=self.c)
        noisy = gate.next(exact)
        noise = gate.sigma * exact.sensitivity
        sums, counts, second = split_statistics(noisy, width=d, classes=k, a=self.a, b=self.b, c=self.c)
        assert second is not None
        return ClassMoments(
            sums=sums,
            counts=np.asarray(self.class_counts, dtype=np.float64) if counts is None else counts,
            second=second,
            n=self.n,
            noise_of_sums=noise / self.b,
            noise_of_counts=noise / self.c if self.c else 0.0,
            noise_of_second=noise / self.a,
        )

    def make(self, charge: Charge, key: Key, config: Release) -> Output:
        moments = self.noisy_moments(charge, key)
        arrays = {"sums": moments.sums, "counts": moments.counts, "second": moments.second, "n": np.array(moments.n)}
        for name in ("noise_of_sums", "noise_of_counts", "noise_of_second"):
            arrays[name] = np.array(getattr(moments, name))
        return Output(
            _draw_blocks(moments, config),
            files={"moments.safetensors": arrays},
            learners={"linear discriminant of the moments": fit_discriminant(moments, balanced=is_balanced(config))},
        )

    def describe(self, config: Release) -> Description:
        return Description(
            name="moments",
            rows_are="drawn with public randomness from one Gaussian for each class, with one covariance for all",
            labels=f"{CLASS_NUMBERS}; drawn with public randomness, "
            + ("equally often each" if is_balanced(config) else "as the row was"),
            hard=True,
            more={"class_counts": "released with noise" if self.class_counts is None else "declared public"},
        )


def is_balanced(config: Release) -> bool:
    return config.objective == "balanced"


def fit_discriminant(moments: ClassMoments, *, balanced: bool = False) -> DiscriminantLearner:
    """Fit the linear discriminant of the Gaussians from which rows are drawn, without rows."""
    values, vectors = moments.spread
    shares = np.full_like(moments.shares, 1 / len(moments.shares)) if balanced else moments.shares
    learner = DiscriminantLearner(classes=len(shares))
    inverted = vectors / values @ vectors.T
    learner.weight_, learner.bias_ = discriminant(moments.means, shares, inverted, noise=0.0)
    learner.classes_, learner.n_features_in_ = np.arange(len(shares)), len(moments.sums)
    return learner


def _draw_blocks(moments: ClassMoments, config: Release) -> Iterator[Block]:
    assert config.rows
    rng = np.random.default_rng(config.seed)
    for start in range(0, config.rows, AT_A_TIME):
        yield moments.draw(min(AT_A_TIME, config.rows - start), rng, balanced=is_balanced(config))
