"""The one-run bound: sound for an ideal mechanism at its epsilon, large without noise; and canaries in real training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpvision.audit.one_run import choose_guesses, count_right_guesses, largest_refuted, one_run, p_value
from dpvision.core import noise
from dpvision.core.keys import Key
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import ClippedSum
from dpvision.private.training.canaries import Canaries, draw_inclusion, read_inclusion
from dpvision.private.training.prepare import prepare
from dpvision.private.training.train import begin, proceed
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder
from tests.system.runs.commands import write_data

DELTA = 1e-5


def _by_definition(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2, term by term."""
    law = stats.binom(r, math.exp(epsilon) / (1 + math.exp(epsilon)))
    worst = max((sum(law.pmf(k) for k in range(v - i, v)) / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, sum(law.pmf(k) for k in range(v, r + 1)) + 2 * m * delta * worst)


@pytest.mark.parametrize("right", [0, 1, 12, 20])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_the_p_value_is_that_of_the_theorem(right: int, delta: float) -> None:
    p = p_value(canaries=50, guesses=20, right=right, epsilon=0.7, delta=delta)
    assert p == pytest.approx(_by_definition(50, 20, right, 0.7, delta), abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_randomised_response_at_its_epsilon_is_rarely_refuted(epsilon: float) -> None:
    """The mechanism for which the theorem is tight: each answer is true with probability e^eps / (1 + e^eps)."""
    trials, wrong = 400, 0
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        inside = rng.random(300) < 0.5
        response = np.where(rng.random(300) < 1 / (1 + math.exp(-epsilon)), inside, ~inside)
        right = count_right_guesses(response + 1e-3 * rng.random(300), inside, guesses=200)
        wrong += p_value(canaries=300, guesses=200, right=right, epsilon=epsilon, delta=0.0) <= 0.05
    assert wrong <= stats.binom.isf(1e-4, trials, 0.05)
    assert epsilon == 0 or wrong >= 2  # and the test is not needlessly conservative


def test_the_bound_is_large_without_noise_and_zero_without_evidence() -> None:
    inside = np.random.default_rng(0).random(1000) < 0.5
    assert one_run(inside.astype(float), inside, guesses=800, delta=DELTA).epsilon > 4
    assert one_run(-inside.astype(float), inside, guesses=800, delta=DELTA).epsilon == 0
    above = sum(
        one_run(np.zeros(200), np.random.default_rng(s).random(200) < 0.5, guesses=100, delta=DELTA).epsilon > 0
        for s in range(200)
    )
    assert above <= stats.binom.isf(1e-4, 200, 0.05)


def test_the_bound_grows_with_right_guesses_and_shrinks_with_delta() -> None:
    def bound(right: int, delta: float = DELTA) -> float:
        return largest_refuted(canaries=1000, guesses=100, right=right, delta=delta, miss=0.05)

    assert bound(50) == 0 < bound(70) < bound(90) < bound(100)
    assert bound(90, 1e-3) < bound(90, 0.0)


def test_few_guesses_for_small_claims_and_all_for_large_ones() -> None:
    assert choose_guesses(1000, 0.3, delta=DELTA) < choose_guesses(1000, 4.0, delta=DELTA)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 scores and 3 insertions"):
        one_run([0, 1], [True, False, True], guesses=1, delta=DELTA)
    with pytest.raises(ConfigError, match="guesses is 3"):
        one_run([0, 1], [True, False], guesses=3, delta=DELTA)


def _carried(count: int = 4, units: int = 3) -> Canaries:
    inside = np.arange(count) % 2 == 0
    return Canaries(inside, PoissonSampler(1, 2, 5), sigma=1.0, seed=0, units=units)


def test_a_canary_contributes_a_vector_of_norm_c_in_a_direction_of_its_own() -> None:
    """The sum without them, plus a vector for each drawn canary: orthogonal, of norm C."""
    model, clip = nn.Linear(8, 1, bias=False), 0.7
    clipped_sum, carried = ClippedSum(model, lambda out, _: out[:, 0], clip=clip), _carried()
    wrapped = carried.add_to(clipped_sum)

    def fetch(drawn: np.ndarray, _seed: int):
        assert drawn.min() >= 0 and drawn.max() < 3, "no canary reaches the data"
        return torch.ones(len(drawn), 8), torch.zeros(len(drawn)), [1] * len(drawn)

    def total(drawn: list[int], step: int) -> torch.Tensor:
        carried.start_step(step, clipped_sum.size)
        return wrapped.sum([carried.wrap_fetch(fetch)(np.array(drawn), 0)])

    assert carried.units == 5 and wrapped.sensitivity == clip and wrapped.units_at_a_time == clipped_sum.units_at_a_time
    without, one, other, both = (total(drawn, 1) for drawn in ([2, 4], [0, 2, 4], [1, 2, 4], [0, 1, 2, 4]))
    first, second = one - without, other - without
    assert float(first.norm()) == pytest.approx(clip) == float(second.norm())
    assert float(first @ second) == 0 and torch.allclose(both, without + first + second)
    assert torch.allclose(total([0], 1), first), "only a canary was drawn"
    assert torch.count_nonzero(total([], 2)) == 0
    assert not torch.equal(total([0], 2), first), "another direction in another step"


def test_insertions_are_fair_secret_and_checked() -> None:
    key = Key.for_tests("a")
    draws = draw_inclusion(key, 2000)
    assert (
        draws == draw_inclusion(key, 2000) != draw_inclusion(Key.for_tests("b"), 2000) and 880 < draws.count("1") < 1120
    )
    assert read_inclusion({"canaries": "0110"}, 4).tolist() == [False, True, True, False]
    for wrong in (None, "011", "01x0"):
        with pytest.raises(DataError, match="canaries"):
            read_inclusion({"canaries": wrong}, 4)
    with pytest.raises(ConfigError, match="--canaries 8 or fewer"):
        _carried(9).start_step(0, 8)
    for few in (-1, 1):
        with pytest.raises(ConfigError, match=f"canaries is {few}"):
            Config(canaries=few)


SETTINGS = {"epsilon": 3.0, "canaries": 200, "steps": 30, "batch": 100, "budget": 50.0}


def _train(tmp_path: Path, name: str, *, stops: int = 0, **changes) -> run_folder.Run:
    prepared = prepare(str(tmp_path / "data.npz"), merge(Config(), SETTINGS | changes, source="test"))
    run, left = begin(prepared, tmp_path / name, test_key="canaries"), iter([False] * stops + [True])
    if stops:
        assert not proceed(run, prepared, stop=lambda: next(left)).complete
    assert proceed(run, prepared).complete
    return run


def test_a_training_with_canaries_is_audited_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    write_data(tmp_path / "data.npz")
    whole = _train(tmp_path, "whole")
    section = run_folder.read_json(whole.folder / "audit.json")["one_run"]
    kept = run_folder.read_json(whole.operator / "canaries.json")
    assert section["canaries"] == 200 == len(kept["scores"]) and not section["refuted"]
    scores, inserted = np.array(kept["scores"]), np.array(kept["inside"], dtype=bool)
    assert scores[inserted].mean() > scores[~inserted].mean()
    assert whole.config().n == 200, "n counts only the units of the data"
    broken = _train(tmp_path, "broken", stops=7)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()
    assert (broken.operator / "canaries.json").read_text() == (whole.operator / "canaries.json").read_text()
    plain = _train(tmp_path, "plain", canaries=0)
    assert not (plain.folder / "audit.json").exists() and "canaries" not in plain.facts()
    assert plain.weights.read_bytes() != whole.weights.read_bytes()


def test_a_run_whose_noise_is_wrong_is_refuted_by_its_own_canaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = noise.add_noise

    def too_quiet(total, stream, *, sensitivity, sigma):
        return original(total, stream, sensitivity=sensitivity, sigma=sigma / 8)

    monkeypatch.setattr(noise, "add_noise", too_quiet)
    write_data(tmp_path / "data.npz")
    run = _train(tmp_path, "quiet", epsilon=1.0)
    assert run_folder.read_json(run.folder / "audit.json")["one_run"]["refuted"]


@pytest.mark.parametrize("changes", [{"canaries": 2000}, {"canaries": 1000, "model": "small-cnn", "probe_steps": 2}])
def test_too_many_canaries_are_refused_before_anything_is_charged(tmp_path: Path, changes: dict) -> None:
    write_data(tmp_path / "data.npz")
    prepared = prepare(str(tmp_path / "data.npz"), merge(Config(), SETTINGS | changes, source="test"))
    with pytest.raises(ConfigError, match=r"a step trains .* weights"):
        begin(prepared, tmp_path / "run", test_key="canaries")
    assert not (tmp_path / "run").exists() and not list(run_folder.home().glob("ledgers/*.jsonl"))


def test_changed_insertions_are_refused(tmp_path: Path) -> None:
    """Other insertions in run.json would be other data under the same noise."""
    from dpvision.errors import LedgerMismatch

    write_data(tmp_path / "data.npz")
    prepared = prepare(str(tmp_path / "data.npz"), merge(Config(), SETTINGS, source="test"))
    run, left = begin(prepared, tmp_path / "run", test_key="canaries"), iter([False] * 5 + [True])
    assert not proceed(run, prepared, stop=lambda: next(left)).complete
    run.write_facts({**run.facts(), "canaries": "1" * 200})
    with pytest.raises(LedgerMismatch, match="same noise would reveal"):
        proceed(run, prepared)


def test_settings_without_canaries_keep_their_hash() -> None:
    config = Config().complete(1000)
    assert replace(config, canaries=10).hash() != config.hash() == replace(config, canaries=0).hash()
