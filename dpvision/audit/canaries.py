"""White-box canaries: records whose contribution is a fixed vector of norm C in a direction that no other record uses.

The adversary sees every noisy release and knows everything but whether the canary is in the data. Of release t it
looks at z_t = <release, e> B / C, which the claimed mechanism makes N(B_t, sigma^2) with B_t = 1 where the canary was
drawn: never in the world without it, by a coin of probability q in the world with it. The best test is the sum of

    log( 1 - q + q exp((2 z_t - 1) / (2 sigma^2)) )            the claimed mechanism's log-likelihood ratio

over releases (Nasr et al. 2023, arXiv 2302.07956). The mechanisms are run, not simulated: real samplers, clipping and
noise, and a real charge on a ledger that is thrown away (training_canaries.py, release_canaries.py). One is not, since
its runs are too long for that: hierarchical sampling, whose scores are drawn from their law (mechanisms.py).

Many canaries share a run (Andrew et al. 2023, arXiv 2302.03098). Their directions are orthogonal and each has coins of
its own, so where the mechanism is what it claims to be, their scores are independent: which is all that a test of the
claim asks for. A mechanism that couples records is not, and breaks the claim by that.
"""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvision.core.events import Budget, Event, Exposure, Kind, apart
from dpvision.core.keys import Key
from dpvision.core.ledger import Charge, Ledger
from dpvision.errors import ConfigError

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]

# Of the thrown-away ledgers: nothing is refused there.
ANY_BUDGET = Budget(1e6, 1e-5)
# Points of the integrals over z, within as many standard deviations.
POINTS, REACH = 4001, 10.0


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of canaries that were not in the data and of those that were, and what was claimed."""

    without: Floats
    with_record: Floats
    claimed: Event
    mu: float  # (mean with - mean without) / spread that these scores have where the claim is true
    drawn: float  # how many times canaries that were in were drawn, on the average, all runs together


@dataclass(frozen=True)
class CanaryRandom:
    """How a run is drawn: fresh entropy, or from a word, which gives the same scores each time."""

    word: str | None = None
    noise: float = 1.0  # the true noise as a share of the claimed: below 1, an audit must find it out

    def key(self, run: int) -> Key:
        return Key.fresh() if self.word is None else Key.for_tests(f"{self.word} {run}")

    def public(self, run: int) -> np.random.Generator:
        """For what is no secret of the mechanism: who is in."""
        return np.random.default_rng(None if self.word is None else [run, *self.word.encode()])

    def split(self, run: int, canaries: int) -> NDArray[np.bool_]:
        """Which canaries are in: half of them, so that both worlds have as many scores."""
        return self.public(run).permutation(canaries) < canaries // 2


FRESH = CanaryRandom()


@dataclass
class Gathering:
    """Scores as runs bring them."""

    claimed: Event
    met: Kind  # what a canary met by the claim
    _without: list[Floats] = field(default_factory=list)
    _with: list[Floats] = field(default_factory=list)

    def add(self, scores: Floats, inside: NDArray[np.bool_]) -> None:
        self._without.append(scores[~inside])
        self._with.append(scores[inside])

    def scores(self) -> Scores:
        without, with_record = np.concatenate(self._without), np.concatenate(self._with)
        drawn = len(with_record) * sum(x.rate * x.steps for x in apart(self.met)[0])
        return Scores(without, with_record, self.claimed, claimed_mu(self.met), drawn)


def score(z: Floats, met: Exposure) -> Floats:
    """(steps, canaries) of z -> their scores by the claimed mechanism."""
    return log_ratio(z, rate=met.rate, sigma=met.sigma).sum(axis=0)


def log_ratio(z: Floats, *, rate: float, sigma: float) -> Floats:
    """log(1 - q + q exp((2 z - 1) / (2 sigma^2))), for any z."""
    exponent = (2 * z - 1) / (2 * sigma**2)
    if rate == 1:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def claimed_mu(met: Kind) -> float:
    """(mean with - mean without) / spread of the score where the claim is true: what `bound.estimate` estimates.

    By quadrature over one step; steps are independent, so means and variances add up.
    """
    gap = variance = 0.0
    for rate, sigma, steps in apart(met)[0]:
        z = np.linspace(-REACH * sigma, 1 + REACH * sigma, POINTS)
        away, there = (_normalised(np.exp(-0.5 * ((z - b) / sigma) ** 2)) for b in (0.0, 1.0))
        ratio = log_ratio(z, rate=rate, sigma=sigma)
        means = []
        for law in (away, (1 - rate) * away + rate * there):
            means.append(float(law @ ratio))
            variance += steps * float(law @ (ratio - means[-1]) ** 2) / 2
        gap += steps * (means[1] - means[0])
    return gap / math.sqrt(variance)


def _normalised(mass: Floats) -> Floats:
    return np.asarray(mass / mass.sum())


@contextmanager
def throw_away_ledgers() -> Iterator[Callable[[Event, Key, str], Charge]]:
    """Charges on real ledgers, one new ledger for each, in a folder that is removed at the end."""
    memory = Path("/dev/shm")  # where there is one: what is thrown away need not reach a disk
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dpvision-audit-", dir=place) as folder:

        def charge(event: Event, key: Key, id: str) -> Charge:
            ledger = Ledger(Path(folder), secrets.token_hex(32))
            ledger.open(ANY_BUDGET)
            return ledger.spend(event, id=id, run="audit", private=key.private).charges[-1]

        yield charge


def require_canaries(canaries: int, runs: int) -> None:
    if canaries < 2 or runs < 1:
        raise ConfigError(f"{runs} runs of {canaries} canaries: an audit needs one run and 2 canaries at least.")
