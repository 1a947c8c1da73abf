"""The settings of a release, each declared once. A setting that is None is computed from public numbers only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpvision.core.events import Budget, Event, Gaussian, exposures, split_kind
from dpvision.core.events import Kind as Exposure
from dpvision.errors import ConfigError
from dpvision.settings.setting import (
    OBJECTIVES,
    REQUIRED,
    centre_and_width,
    check,
    class_list,
    number_list,
    setting,
    size_pair,
    without_folders,
)
from dpvision.settings.symmetry import SYMMETRIES, with_symmetry

if TYPE_CHECKING:
    from dpvision.core.sampling import MixtureSampler, Scheduled

DEFAULT_DRAWN = 3
MAX_RANK, MIN_RANK = 800, 20
# Colour images have more directions. CIFAR-10 (50,000, held out) with 800 and 1,400 at epsilon 1: 64.6 and 66.6%, at
# 10: 68.7 and 70.1%. Below this product of n and epsilon, noise hides them.
MAX_RANK_OF_COLOUR, MANY = 1400, 25_000
# Moments of fewer than 10,000 images have so few directions that n times epsilon is at least 15 for each. With more,
# noise hides the smaller classes (two classes, one with 10% of 2,000 images, epsilon 1, 400 directions: never found).
FEW_IMAGES, PER_DIRECTION = 10_000, 15
# Share of the second moment; the smaller one is for few images. A quarter and half, digits (1,437 images) at epsilon 1:
# 86.0 and 82.5%, at 8: 95.0 and 95.6%; Fashion-MNIST (60,000, held out) at 0.1: 78.2 and 78.5%, at 1: 85.3 and 86.0%.
SHARE, SHARE_OF_FEW, FEW = 0.5, 0.25, 5000
MAX_DELTA = 0.1  # as a fraction of the probability that a record is in any row
# nu*/mu of `optimal_nu`, as a constant: computing it would need scipy, which is slow to import.
NU_OVER_MU = 0.5049762122278388


@dataclass(frozen=True)
class ReleaseKind:
    """The properties of a kind of release that its settings depend on; private/statistics/release.py has its mechanism.

    own          settings of this kind that not all kinds have
    releases     number of noisy sums over all records; 0 if a sampler decides which rows a record is in
    least_rows   minimum of the default number of rows: rows drawn from noisy moments have no privacy cost
    """

    own: frozenset[str]
    releases: int = 1
    least_rows: int = 0


KINDS: dict[str, ReleaseKind] = {
    "moments": ReleaseKind(frozenset({"share", "counts_share", "class_counts", "objective"}), least_rows=20_000),
    "mixtures": ReleaseKind(
        frozenset({"sampling", "degree", "drawn", "balance", "alpha", "most_weight", "class_counts", "objective"}),
        releases=0,
    ),
    "merf": ReleaseKind(frozenset({"counts_share"})),
    "hermite": ReleaseKind(frozenset({"counts_share"})),
    "p3gm": ReleaseKind(frozenset(), releases=2),
}


@dataclass(frozen=True)
class Release:
    """All settings that determine a release. Those that are None are computed from public numbers beforehand."""

    # fmt: off
    recipe: str = setting(
        "moments", group="Model", option=False, help="Settings to start from, by name; `dpvision recipes` lists them."
    )
    chosen_by: str | None = setting(
        None, group="Model", option=False,
        help="If the encoder was not given: the public numbers that it followed from.",
    )
    kind: str = setting(
        "moments", group="Released rows", option=False, choices=tuple(KINDS),
        help="What is released: noisy moments of each class, noisy mixtures of records, or rows of a published method.",
    )
    objective: str = setting(
        "accuracy", group="Released rows", choices=OBJECTIVES,
        help="What rows drawn from moments, and the reported classifiers, aim for: accuracy on images like the private "
        "ones, or in the mean over all classes (balanced: as many rows of each class).",
    )
    encoder: str | None = setting(
        None, group="Model", shown="a downloaded network; else scatter-linear for grey images, patches-256 for colour",
        help="Encoder that computes the features: pixels, scatter-linear, patches-256, or a network with --weights.",
    )
    symmetry: str | None = setting(
        None, group="Model", choices=SYMMETRIES, shown="that of the encoder: mirror for patches",
        help="Average the features of an image over views with the same meaning: its mirror image, or also its "
        "rotations by right angles, where orientation means nothing (skin, cells, satellites).",
    )
    weights: str | None = setting(
        None, group="Model", path=True, shown="those that `dpvision weights get` downloaded for the encoder",
        help="Public weights of the encoder: a .safetensors file, or a name of `dpvision weights list`.",
    )
    rank: int | None = setting(
        None, group="Model", at_least=0,
        shown="800, or 1,400 for many colour images; at most n / 4; fewer for few images; 0 with --weights or --bound",
        help="Number of directions to keep when whitening the features with random images; 0 for no whitening.",
    )
    bound: float | None = setting(
        None, group="Model", above=0, shown="scale all rows to the same norm",
        help="With --rank 0: largest norm of a row; longer rows are clipped to it.",
    )
    epsilon: float = setting(
        1.0, group="Privacy", above=0, shown=REQUIRED,
        help="Privacy budget of this release. Lower is more private: 1 strong, 3 moderate, 8 weak.",
    )
    delta: float = setting(
        1e-5, group="Privacy", above=0, below=1, help="Probability of exceeding epsilon; keep it below 1/n."
    )
    unit: str = setting(
        "image", group="Privacy", choices=("image", "person"),
        help="What the guarantee protects: each image, or each person with all of their images.",
    )
    n: int | None = setting(
        None, group="Data", above=0, shown="read from the data and treated as public",
        help="Number of images (or persons), declared as a public number.",
    )
    classes: tuple[str, ...] | int | None = setting(
        None, group="Data", from_text=class_list, shown="read from the data and treated as public",
        help="The classes, declared as public: their number, or a comma-separated list of their names.",
    )
    class_counts: tuple[int, ...] | None = setting(
        None, group="Data", from_text=number_list, shown="private; released with noise if needed",
        help="Number of images (or persons) of each class, declared as public: 500,80,...",
    )
    size: tuple[int, int] | None = setting(
        None, group="Data", from_text=size_pair, shown="unchanged, or 64 if their sizes differ",
        help="Resize image files to this number of pixels per side, or to HEIGHTxWIDTH, cropping the longer side.",
    )
    channels: int | None = setting(
        None, group="Data", shown="unchanged",
        help="Convert images to this number of channels: 1 for grey, 3 for colour.",
    )
    skip_broken: bool = setting(
        False, group="Data", help="Skip images that cannot be read instead of stopping."
    )
    test_share: float | None = setting(
        None, group="Data", at_least=0, at_most=0.9, shown="0.2 for a folder of classes or a table without a split",
        help="Share of the data to set aside as the test split if it has none, by person if persons are known.",
    )
    window: str | None = setting(
        None, group="Data", from_text=centre_and_width,
        shown="40,400 for CT; for other DICOM images the range of the stored bits",
        help="Centre and width of the window of DICOM images.",
    )
    columns: str | None = setting(
        None, group="Data", shown="image, label and, if present, person, split",
        help="Columns of a Parquet or Hugging Face table: image=NAME,label=NAME,person=NAME,split=NAME.",
    )
    rows: int | None = setting(
        None, group="Released rows", above=0, shown="n; at least 20,000 for moments", help="Number of released rows."
    )
    sigma: float | None = setting(
        None, group="Privacy", option=False, above=0, shown="smallest that keeps epsilon",
        help="Noise multiplier: standard deviation of the noise over the sensitivity.",
    )
    seed: int = setting(
        0, group="Released rows", at_least=0, below=1 << 63,
        help="Seed of public random choices only (rows drawn from moments, classes of a schedule); noise has no seed.",
    )
    sampling: str = setting(
        "poisson", group="Released rows", choices=("poisson", "hierarchical", "class-schedule"),
        shown="as in the recipe", help="How records are sampled into mixtures.",
    )
    degree: float | None = setting(
        None, group="Released rows", above=0, shown="theoretical optimum",
        help="Mixtures: expected number of records in a row.",
    )
    drawn: float | None = setting(
        None, group="Released rows", above=0, shown="3, or all classes if there are fewer",
        help="Hierarchical sampling: expected number of classes in a row.",
    )
    balance: float = setting(
        1.0, group="Released rows", above=0, help="Mixtures: ratio of the label noise to the feature noise (lambda)."
    )
    alpha: float | None = setting(
        None, group="Released rows", above=0, shown="equal weights",
        help="Mixtures: parameter of random, Dirichlet-like weights of the records in a row.",
    )
    most_weight: float = setting(
        4.0, group="Released rows", above=0, help="With --alpha: largest weight of a record, in units of 1/degree."
    )
    share: float | None = setting(
        None, group="Released rows", shown="0.5; 0.25 if n times epsilon is below 5,000",
        help="Moments: fraction of the privacy budget spent on the second moment.",
    )
    counts_share: float = setting(
        0.05, group="Released rows",
        help="Moments, DP-MERF, DP-HP: fraction of the privacy budget spent on class counts, unless they are declared.",
    )
    licence: str = setting("not stated", group="Output", help="Licence of the release, for the card.")
    budget: float | None = setting(
        None, group="Privacy", above=0, shown="this release's epsilon",
        help="Total privacy budget (epsilon) of the data set over all runs, set by the first run on it.",
    )
    # fmt: on

    def __post_init__(self) -> None:
        Budget(self.epsilon, self.delta)
        check(self)
        if self.rank and self.bound is not None:
            raise ConfigError(
                "bound: whitened rows are all scaled to the same norm. Fix: leave bound out, or use --rank 0."
            )
        if self.class_counts is not None and (not self.class_counts or min(self.class_counts) < 0):
            raise ConfigError("class_counts must have one number for each class, none below 0.")
        if self.class_counts is not None and self.n is not None and sum(self.class_counts) != self.n:
            raise ConfigError(f"class_counts add up to {sum(self.class_counts):,}, but n is {self.n:,}.")

    @property
    def of_kind(self) -> ReleaseKind:
        return KINDS[self.kind]

    @property
    def is_sampled(self) -> bool:
        """Whether a sampler decides which records are in a row; if not, every record is in every noisy sum."""
        return self.of_kind.releases == 0

    @property
    def is_complete(self) -> bool:
        """Whether all settings that determine the event are known."""
        needed = [self.n, self.rows, self.sigma]
        if self.is_sampled:
            needed += [self.degree, *([self.drawn] if self.sampling == "hierarchical" else [])]
        return all(needed)

    def public_number(self, n: int) -> int:
        """Return the declared number of records, or else `n`, which is then read from the data."""
        return self.n or (sum(self.class_counts) if self.class_counts else n)

    def complete(self, n: int, classes: int, channels: int, *, confirm: bool = True) -> Release:
        """Compute the settings that are None, from the numbers of records, classes and channels alone.

        Without `confirm`, the noise is that of the quick accountant alone, for a plan that charges nothing.
        """
        n = self.public_number(n)
        if n < 2:
            raise ConfigError(f"n is {n}: a release needs at least 2 {self.unit}s.")
        if self.delta * n >= 1:
            raise ConfigError(f"delta is {self.delta:g} and n is {n}. Fix: use a --delta well below {1 / n:.2g}.")
        if self.class_counts is not None and len(self.class_counts) != classes:
            raise ConfigError(f"class_counts has {len(self.class_counts)} numbers, but there are {classes} classes.")
        rows = self.rows or max(n, self.of_kind.least_rows)
        degree = self.degree
        if degree is None and self.is_sampled:
            degree = self._degree(n, rows, classes)
        encoder = self.encoder or ("scatter-linear" if channels == 1 else "patches-256")
        encoder = with_symmetry(encoder, self.symmetry)
        rank = self.rank
        if rank is None:
            rank = self._rank(n, channels) if self.weights is None and self.bound is None else 0
        drawn = self.drawn
        if drawn is None and self.sampling == "hierarchical":
            drawn = float(min(DEFAULT_DRAWN, classes))
        share = self.share
        if share is None and self.kind == "moments":
            share = SHARE if n * self.epsilon >= FEW else SHARE_OF_FEW
        whole = replace(self, n=n, rows=rows, degree=degree, encoder=encoder, rank=rank, drawn=drawn, share=share)
        if self.is_sampled:
            whole._require_more_than_delta(classes)
        if whole.sigma is None:
            from dpvision.settings import calibrate

            budget = Budget(self.epsilon, self.delta)
            whole = replace(whole, sigma=calibrate.sigma_of(budget, lambda s: whole.event(s, classes), confirm=confirm))
            if whole.sigma == calibrate.MIN_SIGMA:
                raise ConfigError(
                    f"epsilon {self.epsilon:g} at delta {self.delta:g} would allow a sigma of {whole.sigma:g} or less, "
                    "which protects nobody. Fix: use a smaller --epsilon or --delta."
                )
        return whole

    def _rank(self, n: int, channels: int) -> int:
        most = n // 4
        if self.kind == "moments" and n < FEW_IMAGES:
            most = min(most, int(n * self.epsilon / PER_DIRECTION))
        many = self.kind == "moments" and channels == 3 and n * self.epsilon >= MANY
        return min(MAX_RANK_OF_COLOUR if many else MAX_RANK, max(MIN_RANK, most))

    def _require_more_than_delta(self, classes: int) -> None:
        """Refuse a delta close to the probability that a record is in any row: it would allow rows without noise."""
        chance = max(map(_chance_of, exposures(self.event(1.0, classes))))
        if self.delta > MAX_DELTA * chance:
            raise ConfigError(
                f"delta is {self.delta:g}, and a record is in any of {self.rows:,} rows with probability "
                f"{chance:.2g}: such a large delta would allow almost no noise. Fix: use a --delta below a "
                "tenth of that probability, more --rows or a higher --degree."
            )

    def _degree(self, n: int, rows: int, classes: int) -> float:
        budget = Budget(self.epsilon, self.delta)
        if self.sampling == "class-schedule":  # each class has its own rows, like a separate data set
            return optimal_degree(max(1, n // classes), max(1, rows // classes), budget=budget)
        return optimal_degree(n, rows, budget=budget)

    def rates(self, classes: int) -> tuple[float, ...]:
        """Return the sampling rate within each class, by declared counts or else assuming classes of equal size."""
        assert self.degree and self.n
        counts = self.class_counts or (self.n / classes,) * classes
        return tuple(min(1.0, self.degree / max(1.0, count)) for count in counts)

    def event(self, sigma: float, classes: int) -> Event:
        """Return the event of the release at this noise multiplier."""
        return self.sampler(classes).event(sigma) if self.is_sampled else Gaussian(sigma, self.of_kind.releases)

    def sampler(self, classes: int) -> MixtureSampler:
        """Return the sampler that decides which records are in which row of mixtures."""
        from dpvision.core.sampling import Poisson

        n, rows, degree = self.n, self.rows, self.degree
        assert n and rows and degree  # complete
        if self.sampling == "poisson":
            return Poisson(degree, n, rows)
        if self.sampling == "hierarchical":
            assert self.drawn
            return hierarchical(rows, degree=degree, n=n, classes=classes, drawn=self.drawn, seed=self.seed)
        return round_robin(rows, rates=self.rates(classes))

    def without_folders(self) -> Release:
        """Return the settings with paths reduced to file names: a release must not reveal the operator's folders."""
        return without_folders(self)


def with_changes(base: Release, values: Mapping[str, Any]) -> Release:
    """Return `base` with these checked values; refuse a setting that this kind of release does not use."""
    config = replace(base, **values)
    for name in sorted(unused_settings(config) & values.keys()):
        raise ConfigError(
            f"{name.replace('_', '-')}: recipe {config.recipe} does not use this setting. Fix: leave it out."
        )
    return config


def unused_settings(config: Release) -> frozenset[str]:
    """Return the settings that this kind of release does not use."""
    others = frozenset().union(*(kind.own for kind in KINDS.values())) - config.of_kind.own
    if not config.is_sampled:
        return others
    of_some = {
        "drawn": config.sampling == "hierarchical",
        "balance": config.sampling != "class-schedule",  # whose labels have no noise
        "most_weight": config.alpha is not None,
    }
    return others | {name for name, used in of_some.items() if not used}


def _chance_of(kind: Exposure) -> float:
    """Return the probability that a record with this exposure is in any row or noisy sum."""
    steps, points = split_kind(kind)
    if points or any(x.rate == 1 for x in steps):
        return 1.0
    return -math.expm1(sum(x.steps * math.log1p(-x.rate) for x in steps))


def round_robin(rows: int, *, rates: Sequence[float]) -> Scheduled:
    """Return a public schedule that cycles through the classes, one per row, at these sampling rates within classes."""
    import numpy as np

    from dpvision.core.sampling import Scheduled

    table = np.zeros((rows, len(rates)), dtype=np.bool_)
    table[np.arange(rows), np.arange(rows) % len(rates)] = True
    return Scheduled(table, tuple(float(rate) for rate in rates))


def hierarchical(rows: int, *, degree: float, n: int, classes: int, drawn: float, seed: int) -> Scheduled:
    """Return a public schedule of hierarchical sampling (Li et al. 2023, Procedure 2).

    Each class is in a row with probability p = drawn / classes, by a public seed, and each record of that class then
    with probability q = degree / (n p). The paper accounts for a record at rate degree / n in every row, as if nobody
    could see which classes were drawn. Labels and features reveal that, so here a record of class k is accounted for at
    rate q in the rows of its class: see docs/hierarchical-sampling.md.
    """
    import numpy as np

    from dpvision.core.sampling import Scheduled

    if not 0 < drawn <= classes:
        raise ConfigError(f"drawn is {drawn:g}: the number of classes per row must be above 0 and at most {classes}.")
    p = drawn / classes
    rate = degree / (n * p)
    if rate > 1:
        raise ConfigError(
            f"degree {degree:g} with {drawn:g} of {classes} classes per row: the classes have fewer records than that. "
            "Fix: use a smaller --degree, or a larger --drawn."
        )
    return Scheduled(np.random.default_rng(seed).random((rows, classes)) < p, (rate,) * classes)


def optimal_nu(mu: float) -> float:
    """Return the argmax over nu of nu ln(1 + mu^2 / nu^2), which is 0.505 mu.

    NeuroMixGDP, Theorem 3.2: with degree m = nu n / sqrt(T), the central limit gives mu-GDP for the noise
    1 / sqrt(ln(1 + mu^2 / nu^2)), and the error of least squares on T released rows is bounded by

        bias ~ 1 / sqrt(nu ln(1 + mu^2 / nu^2)),   so   nu* = argmax of nu ln(1 + mu^2 / nu^2),   m* = nu* n / sqrt(T)

    (the remark after the theorem has argmin; there is none, and the bias is smallest at the maximum). With nu = t mu,
    that is mu t ln(1 + t^-2), so t* does not depend on mu: it is the root of ln(1 + t^-2) = 2 / (1 + t^2), and
    nu* = t* mu.
    """
    if not 0 < mu < math.inf:
        raise ConfigError(f"mu is {mu!r}: it must be a finite number above 0.")
    return NU_OVER_MU * mu


def optimal_degree(n: int, rows: int, *, budget: Budget) -> float:
    """Return the number of records per row with the least bias of a linear model: m* = nu* n / sqrt(rows) <= n.

    It is computed from public numbers. Its mu is the one whose curve meets the budget's epsilon at its delta, by a
    central limit that is not a bound; the noise at that degree is then calibrated by a bound.
    """
    from dpvision.settings import gdp

    if n < 1 or rows < 1:
        raise ConfigError(f"n is {n:,} and rows is {rows:,}: both must be at least 1.")
    mu = gdp.mu_of_point(budget.epsilon, budget.delta)
    return min(optimal_nu(mu) * n / math.sqrt(rows), float(n))
