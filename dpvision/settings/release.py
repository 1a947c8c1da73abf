"""The settings of a release: recipe < --config file < flags; what is left open is computed from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from dpvision.core.events import Budget, Event, Gaussian, chance_of, exposures
from dpvision.core.sampling import MixtureSampler, Poisson, hierarchical, in_turn
from dpvision.errors import ConfigError
from dpvision.settings import calibrate
from dpvision.settings.degree import optimal_degree

KINDS = ("moments", "mixtures")
LEAST_DRAWN, DRAWN = 20_000, 3
RANK, LEAST_RANK = 800, 20
SAMPLINGS = ("poisson", "hierarchical", "class-schedule")
MOST_DELTA = 0.1  # of the chance that a record is in any row


@dataclass(frozen=True)
class Release:
    """Everything that shapes a release. None means: computed, from public numbers, before it is made."""

    recipe: str = "moments"
    kind: str = "moments"  # what is released: moments, or mixtures of records
    # Features.
    encoder: str | None = None  # None: scattering in grey, patches in colour (encoders.py)
    weights: str | None = None  # a .safetensors file of the encoder's public weights
    rank: int | None = (
        None  # directions kept by a whitening by random images, 0 for none; None: 800, n / 4 at most; 0 with weights
    )
    bound: float | None = None  # rows longer than this are shortened to it; None: all are brought to one length
    # The guarantee.
    epsilon: float = 1.0
    delta: float = 1e-5
    # Public facts. What is not declared is read off the data, said aloud and written on the card.
    n: int | None = None
    classes: tuple[str, ...] | int | None = None
    class_counts: tuple[int, ...] | None = None  # declared public; None: private, and released with noise if needed
    size: tuple[int, int] | None = None
    channels: int | None = None
    skip_broken: bool = False
    # The released rows.
    rows: int | None = None  # None: n; from moments at least LEAST_DRAWN, as they cost nothing
    sigma: float | None = None  # None: the least that keeps epsilon
    seed: int = 0  # of public coins: rows drawn from moments, the classes of a hierarchical schedule
    # Mixtures.
    sampling: str = "poisson"
    degree: float | None = None  # expected records in a row; None: the best, by Theorem 3.2
    drawn: float | None = (
        None  # expected classes in a row, of hierarchical sampling; None: 3, or all where there are less
    )
    balance: float = 1.0  # lambda: the features' noise against the labels'
    alpha: float | None = None  # random weights, Dirichlet-like with this parameter; None: the same for all
    most_weight: float = 4.0  # random weights are cut at so many times the usual one
    # Moments.
    share: float = 0.25  # of the sensitivity's square, for the second moment
    counts_share: float = 0.05  # and for the class counts, unless they are declared
    # Upkeep.
    licence: str = "not stated"
    budget: float | None = None  # the data set's epsilon over all runs; None: this one's

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        for name, value, choices in (("kind", self.kind, KINDS), ("sampling", self.sampling, SAMPLINGS)):
            if value not in choices:
                raise ConfigError(f"{name} is {value!r}: it must be {' or '.join(map(repr, choices))}.")
        for name in ("n", "rows", "sigma", "degree", "drawn", "balance", "alpha", "most_weight", "bound", "budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}: it must be a finite number above 0.")
        if self.rank is not None and self.rank < 0:
            raise ConfigError(f"rank is {self.rank}: it must be a number of directions, or 0 for features as they are.")
        if self.rank and self.bound is not None:
            raise ConfigError("bound: whitened rows are all brought to one length. Fix: leave bound out, or --rank 0.")
        if self.class_counts is not None and (not self.class_counts or min(self.class_counts) < 0):
            raise ConfigError("class_counts must be one number for each class, none below 0.")
        if self.class_counts is not None and self.n is not None and sum(self.class_counts) != self.n:
            raise ConfigError(f"class_counts add up to {sum(self.class_counts):,}, but n is {self.n:,}.")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^63.")

    def complete(self, n: int, classes: int, channels: int) -> Release:
        """All that was left open, from `n` records, the number of classes and nothing else."""
        n = self.n or (sum(self.class_counts) if self.class_counts else n)
        if n < 2:
            raise ConfigError(f"n is {n}: a release needs at least 2 images.")
        if self.delta * n >= 1:
            raise ConfigError(f"delta is {self.delta:g} and n is {n}. Fix: a --delta well below {1 / n:.2g}.")
        if self.class_counts is not None and len(self.class_counts) != classes:
            raise ConfigError(f"class_counts has {len(self.class_counts)} numbers, and there are {classes} classes.")
        rows = self.rows or (max(n, LEAST_DRAWN) if self.kind == "moments" else n)
        degree = self.degree
        if degree is None and self.kind == "mixtures":
            degree = self._degree(n, rows, classes)
        encoder = self.encoder or ("scatter-linear" if channels == 1 else "patches-256")
        rank = self.rank
        if rank is None:
            rank = min(RANK, max(LEAST_RANK, n // 4)) if self.weights is None and self.bound is None else 0
        drawn = self.drawn
        if drawn is None and self.sampling == "hierarchical":
            drawn = float(min(DRAWN, classes))
        whole = replace(self, n=n, rows=rows, degree=degree, encoder=encoder, rank=rank, drawn=drawn)
        if self.kind == "mixtures":
            whole._require_more_than_delta(classes)
        if whole.sigma is None:
            budget = Budget(self.epsilon, self.delta)
            whole = replace(whole, sigma=calibrate.sigma_of(budget, lambda s: whole.event(s, classes)))
            if whole.sigma == calibrate.LEAST_SIGMA:
                raise ConfigError(
                    f"epsilon {self.epsilon:g} at delta {self.delta:g} would let sigma be {whole.sigma:g} or less: "
                    "that hides nobody. Fix: a smaller --epsilon or --delta."
                )
        return whole

    def _require_more_than_delta(self, classes: int) -> None:
        """A delta as large as a record's chance to be in the rows at all allows that its row has no noise."""
        chance = max(map(chance_of, exposures(self.event(1.0, classes))))
        if self.delta > MOST_DELTA * chance:
            raise ConfigError(
                f"delta is {self.delta:g}, and a record is in any row at all, of {self.rows:,}, with a chance of "
                f"{chance:.2g}: so much delta allows nearly no noise. Fix: a --delta below a tenth of that chance, "
                "more --rows or a higher --degree."
            )

    def _degree(self, n: int, rows: int, classes: int) -> float:
        budget = Budget(self.epsilon, self.delta)
        if self.sampling == "class-schedule":  # a class has its own rows, as if it were a data set of its own
            return optimal_degree(max(1, n // classes), max(1, rows // classes), budget=budget)
        return optimal_degree(n, rows, budget=budget)

    def rates(self, classes: int) -> tuple[float, ...]:
        """Of one class a row: each class's own rate, by its declared count or as if all were alike."""
        assert self.degree and self.n
        counts = self.class_counts or (self.n / classes,) * classes
        return tuple(min(1.0, self.degree / max(1.0, count)) for count in counts)

    def event(self, sigma: float, classes: int) -> Event:
        """What the release does, at this noise."""
        return Gaussian(sigma, 1) if self.kind == "moments" else self.sampler(classes).event(sigma)

    def sampler(self, classes: int) -> MixtureSampler:
        """Of mixtures: who is in which row."""
        n, rows, degree = self.n, self.rows, self.degree
        assert n and rows and degree  # complete
        if self.sampling == "poisson":
            return Poisson(degree, n, rows)
        if self.sampling == "hierarchical":
            assert self.drawn
            return hierarchical(rows, degree=degree, n=n, classes=classes, drawn=self.drawn, seed=self.seed)
        return in_turn(rows, rates=self.rates(classes))

    def without_folders(self) -> Release:
        """Public inputs by file name alone: what is released does not show the operator's folders."""
        return replace(self, weights=self.weights and PurePath(self.weights).name)


def changed(base: Release, values: Mapping[str, Any]) -> Release:
    """`base` with checked values. What would change nothing is refused."""
    made = replace(base, **values)
    for name in sorted(useless(made) & values.keys()):
        raise ConfigError(f"{name.replace('_', '-')}: recipe {made.recipe} has no use for it. Fix: leave it out.")
    return made


def useless(config: Release) -> frozenset[str]:
    """Settings that change nothing in this kind of release."""
    if config.kind == "moments":
        return frozenset({"sampling", "degree", "drawn", "balance", "alpha", "most_weight"})
    of_some = {
        "drawn": config.sampling == "hierarchical",
        "balance": config.sampling != "class-schedule",  # whose labels have no noise
        "most_weight": config.alpha is not None,
    }
    return frozenset({"share", "counts_share"} | {name for name, used in of_some.items() if not used})
