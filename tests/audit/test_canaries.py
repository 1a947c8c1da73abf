"""Canaries in every mechanism: no claim is refuted, and every claim is if the noise is reduced to 0.83 of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.audited_mechanisms import mechanisms
from dpvision.audit.bounds import judge
from dpvision.audit.canaries import CanaryRandom, Trials, claimed_mu, log_ratio, temporary_ledger
from dpvision.audit.training_canaries import Training, training_scores
from dpvision.core import noise
from dpvision.core.clipping import Flat
from dpvision.core.events import Budget, Exposure, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError

DELTA = 1e-5
CASES = mechanisms(Budget(3.0, DELTA))
FAMILY_WISE = 1 - 0.05 / len(CASES)
SLOW = {"K views", "self-mix", "weight multiplicity"}  # several images per canary: fewer canaries
SAMPLER, SIGMA = PoissonSampler(10, 40, 8), 1.2


def _canaries(name: str) -> int:
    """At epsilon 3 mu is 0.5 here, and with 10,000 canaries 1.2 times that is 5 standard errors away."""
    return 4000 if name in SLOW else 10_000


@pytest.mark.parametrize("name", CASES)
def test_no_claim_is_refuted(name: str) -> None:
    verdict = judge(CASES[name](_canaries(name), CanaryRandom(f"clean {name}")), delta=DELTA, confidence=FAMILY_WISE)
    assert not verdict.refuted, verdict
    assert verdict.bound.epsilon <= verdict.epsilon


@pytest.mark.parametrize("name", CASES)
def test_noise_of_0_83_of_the_claim_is_detected(name: str) -> None:
    verdict = judge(CASES[name](_canaries(name), CanaryRandom(f"cut {name}", 0.83)), delta=DELTA)
    assert verdict.refuted, verdict


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_at_epsilon_1_with_fresh_randomness(name: str) -> None:
    case = mechanisms(Budget(1.0, DELTA))[name]
    # A false alarm has a probability of 1 in 1,000,000 over all mechanisms, and a missed one less.
    assert not judge(case(40_000, CanaryRandom()), delta=DELTA, confidence=1 - 1e-6 / len(CASES)).refuted
    assert judge(case(100_000, CanaryRandom(noise=0.83)), delta=DELTA).refuted


def test_too_little_noise_in_the_code_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charge and claim are correct; only the noise is not."""
    original = noise.add_noise

    def too_quiet(total, stream, *, sensitivity, sigma):
        return original(total, stream, sensitivity=sensitivity, sigma=0.7 * sigma)

    monkeypatch.setattr(noise, "add_noise", too_quiet)
    verdict = judge(training_scores(Training(SAMPLER, SIGMA), Trials(500, 10, CanaryRandom("quiet"))), delta=DELTA)
    assert verdict.alarm and verdict.profile.refuted


def test_gradients_that_are_not_clipped_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flat, "factors", lambda self, squares, names: 3e-4 * squares.new_ones(squares.shape).double())
    scores = training_scores(Training(SAMPLER, SIGMA), Trials(500, 10, CanaryRandom("raw")))  # of norm 3 C
    assert judge(scores, delta=DELTA).profile.refuted


def test_a_sampling_rate_above_the_claim_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / len(loader) where the claim is batch / n: here, every unit is drawn."""
    monkeypatch.setattr(Gate, "draw", lambda self, step, units, **ranks: np.arange(units))
    scores = training_scores(Training(SAMPLER, SIGMA), Trials(500, 10, CanaryRandom("everyone")))
    assert judge(scores, delta=DELTA).profile.refuted


def test_canaries_that_share_a_run_are_independent() -> None:
    """The means of runs vary like means of independent scores; otherwise the scores would be worth less than counted."""
    scores = training_scores(Training(SAMPLER, SIGMA), Trials(100, 100, CanaryRandom("together")))
    for world in (scores.without, scores.with_record):
        means = world.reshape(100, 50).mean(1)
        assert 0.5 < means.var(ddof=1) * 50 / world.var() < 1.7


def test_fresh_randomness_is_fresh_and_a_word_is_reproducible() -> None:
    def one(rng: CanaryRandom) -> bytes:
        return training_scores(Training(SAMPLER, SIGMA), Trials(20, 1, rng)).without.tobytes()

    assert one(CanaryRandom("a")) == one(CanaryRandom("a")) != one(CanaryRandom("b"))
    assert one(CanaryRandom()) != one(CanaryRandom())


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-3])
def test_the_score_is_the_log_likelihood_ratio(rate: float) -> None:
    z, sigma = np.linspace(-4, 5, 50), 0.9
    present, absent = (np.exp(-((z - b) ** 2) / (2 * sigma**2)) for b in (1.0, 0.0))
    assert log_ratio(z, rate=rate, sigma=sigma) == pytest.approx(
        np.log(((1 - rate) * absent + rate * present) / absent)
    )
    assert np.isfinite(log_ratio(np.array([-1e6, 1e6]), rate=rate, sigma=0.01)).all()


def test_the_claimed_mu_is_that_of_the_claimed_scores() -> None:
    assert claimed_mu((Exposure(1.0, 4.0, 25),)) == pytest.approx(math.sqrt(25) / 4, rel=1e-6)
    rng, met = np.random.default_rng(0), Exposure(0.2, 1.0, 5)
    drawn = rng.random((5, 200_000)) < met.rate
    worlds = [log_ratio(rng.normal(b, met.sigma), rate=met.rate, sigma=met.sigma).sum(0) for b in (0 * drawn, drawn)]
    simulated = (worlds[1].mean() - worlds[0].mean()) / math.sqrt((worlds[0].var() + worlds[1].var()) / 2)
    assert claimed_mu((met,)) == pytest.approx(simulated, rel=0.02)


def test_charges_are_real_and_the_ledger_is_removed() -> None:
    with temporary_ledger() as ledger:
        charge = ledger.spend(Gaussian(5.0), id="a", run="audit", private=False).charges[-1]
        assert ledger.path.exists()
    assert charge.event == Gaussian(5.0) and not charge.private and not ledger.path.exists()
    with pytest.raises(OSError), temporary_ledger() as ledger:
        raise OSError
    assert not ledger.path.exists()


def test_an_audit_needs_canaries() -> None:
    with pytest.raises(ConfigError, match="at least 1 run and 2 canaries"):
        training_scores(Training(SAMPLER, SIGMA), Trials(1, 20))
