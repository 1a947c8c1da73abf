"""White-box canaries: records whose contribution is a fixed vector of norm C in a direction that no other record uses.

The adversary sees every noisy sum and knows everything except whether the canary is in the data. From noisy sum t it
computes z_t = <noisy sum, e> B / C. Under the claimed mechanism, z_t is N(B_t, sigma^2), where B_t = 1 if the canary
was sampled (with probability q in the world with it, never in the world without it) and 0 otherwise. The best test is
the sum over all noisy sums of

    log( 1 - q + q exp((2 z_t - 1) / (2 sigma^2)) )            the claimed mechanism's log-likelihood ratio

(Nasr et al. 2023, arXiv 2302.07956). The mechanisms are run, not simulated: with the real samplers, clipping and noise,
and a charge on a temporary ledger (training_canaries.py, release_canaries.py).

Many canaries share a run (Andrew et al. 2023, arXiv 2302.03098). Their directions are orthogonal and each is sampled
independently, so if the claim is true, their scores are independent, as the test of the claim requires. A mechanism
that couples records makes them dependent, and thereby violates the claim.
"""

from __future__ import annotations

import math
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvision.core.account import Charge
from dpvision.core.events import Budget, Event, Exposure, Kind, split_kind
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.errors import ConfigError

Floats = NDArray[np.float64]
OnProgress = Callable[[int, int], None]  # runs done, and runs in all

# The budget of temporary ledgers, which is large enough for any charge.
ANY_BUDGET = Budget(1e6, 1e-5)
# Grid points of the integrals over z, and how many standard deviations the grid extends beyond the two means.
POINTS, REACH = 4001, 10.0


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of canaries outside and inside the data, and the claim that they test."""

    without: Floats
    with_record: Floats
    claimed: Event
    mu: float  # (mean with - mean without) / standard deviation of the scores if the claim is true
    draws: float  # expected number of times that inserted canaries were sampled, over all runs


@dataclass(frozen=True)
class CanaryRandom:
    """The source of all randomness in canary runs: fresh entropy, or a word that makes the scores reproducible."""

    word: str | None = None
    noise: float = 1.0  # actual noise as a share of the claimed noise: an audit must detect a share below 1

    def key(self, run: int) -> Key:
        """Return the secret key of a run."""
        return Key.fresh() if self.word is None else Key.for_tests(f"{self.word} {run}")

    def public(self, run: int) -> np.random.Generator:
        """Return a generator for randomness outside the mechanism, such as which canaries are inserted."""
        return np.random.default_rng(None if self.word is None else [run, *self.word.encode()])

    def split(self, run: int, canaries: int) -> NDArray[np.bool_]:
        """Return which canaries are inserted: a random half, so that both worlds have the same number of scores."""
        return self.public(run).permutation(canaries) < canaries // 2


FRESH = CanaryRandom()


@dataclass(frozen=True)
class Trials:
    """The number of runs of a mechanism, the number of canaries in each run, and the source of randomness."""

    canaries: int  # in each run; half of them are inserted
    runs: int
    rng: CanaryRandom = FRESH
    progress: OnProgress = lambda *_: None

    @classmethod
    def of(cls, canaries: int, *, together: int, rng: CanaryRandom, progress: OnProgress = lambda *_: None) -> Trials:
        """Plan enough runs for at least `canaries` canaries, with at most `together` in each run."""
        together = min(canaries, together)
        return cls(together, math.ceil(canaries / together), rng, progress)


@dataclass(frozen=True, eq=False)
class CanaryRun:
    """One run of a mechanism: the inserted canaries, the secret key, and the function that charges it."""

    number: int
    inside: NDArray[np.bool_]
    key: Key
    charge: Callable[[Event, str], Charge]

    @property
    def name(self) -> str:
        """The name of the run's noise and of its charge."""
        return f"run {self.number}"


def score_runs(score_run: Callable[[CanaryRun], Floats], claimed: Event, exposure: Exposure, trials: Trials) -> Scores:
    """Run a mechanism and collect the scores of its canaries, half of which are inserted in each run.

    `score_run` returns one score for each canary. `exposure` is what a canary is exposed to according to the claim.
    """
    if trials.canaries < 2 or trials.runs < 1:
        raise ConfigError(
            f"{trials.runs} runs of {trials.canaries} canaries: an audit needs at least 1 run and 2 canaries."
        )
    without, with_record = [], []
    for number in range(trials.runs):
        with temporary_ledger() as ledger:
            key = trials.rng.key(number)

            def charge(event: Event, id: str, ledger: Ledger = ledger, key: Key = key) -> Charge:
                return ledger.spend(event, id=id, run="audit", private=key.private).charges[-1]

            run = CanaryRun(number, trials.rng.split(number, trials.canaries), key, charge)
            scores = score_run(run)
        without.append(scores[~run.inside])
        with_record.append(scores[run.inside])
        trials.progress(number + 1, trials.runs)
    draws = sum(map(len, with_record)) * exposure.rate * exposure.steps
    return Scores(np.concatenate(without), np.concatenate(with_record), claimed, claimed_mu((exposure,)), draws)


def score_releases(z: Floats, exposure: Exposure) -> Floats:
    """Return the score of each canary, from a (steps, canaries) array of z."""
    return log_ratio(z, rate=exposure.rate, sigma=exposure.sigma).sum(axis=0)


def log_ratio(z: Floats, *, rate: float, sigma: float) -> Floats:
    """Compute log(1 - q + q exp((2 z - 1) / (2 sigma^2))) without overflow for any z."""
    exponent = (2 * z - 1) / (2 * sigma**2)
    if rate == 1:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def claimed_mu(kind: Kind) -> float:
    """Return the mu of the scores if the claim is true: (mean with - mean without) / standard deviation.

    It is computed by quadrature over one step. Steps are independent, so their means and variances add up.
    """
    gap = variance = 0.0
    for rate, sigma, steps in split_kind(kind)[0]:
        z = np.linspace(-REACH * sigma, 1 + REACH * sigma, POINTS)
        absent, present = (_normalise(np.exp(-0.5 * ((z - mean) / sigma) ** 2)) for mean in (0.0, 1.0))
        ratio = log_ratio(z, rate=rate, sigma=sigma)
        means = []
        for density in (absent, (1 - rate) * absent + rate * present):
            means.append(float(density @ ratio))
            variance += steps * float(density @ (ratio - means[-1]) ** 2) / 2
        gap += steps * (means[1] - means[0])
    return gap / math.sqrt(variance)


def _normalise(mass: Floats) -> Floats:
    return np.asarray(mass / mass.sum())


@contextmanager
def temporary_ledger() -> Iterator[Ledger]:
    """Yield a new ledger with a budget for any charge, in a folder that is removed at the end."""
    memory = Path("/dev/shm")  # if it exists, because a temporary ledger need not reach a disk
    parent = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dpvision-audit-", dir=parent) as folder:
        ledger = Ledger(Path(folder), secrets.token_hex(32))
        ledger.open(ANY_BUDGET)
        yield ledger
