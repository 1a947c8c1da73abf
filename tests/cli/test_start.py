"""What verbs import and how often they compute a privacy loss: counts, which unlike seconds are always the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpvision.core.events import Budget, PoissonGaussian
from dpvision.data import load
from dpvision.settings import calibrate, plan, quick

# Modules that take a second to import.
SLOW = ("torch", "dp_accounting", "scipy.stats", "sklearn", "matplotlib", "timm")
ACCOUNTS = ("dp_accounting", "scipy.stats")  # dp-accounting needs scipy.stats
# Of each verb, the slow modules that it needs.
NEEDED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--help",): (),
    ("train", "--help"): (),
    ("completion", "bash"): (),
    ("recipes",): (),
    ("weights",): (),
    ("plan", "--n", "1000", "--epsilon", "3"): (),
    ("plan", "release", "--n", "1000", "--epsilon", "3"): (),
    ("check", "digits"): (),
    ("data", "pack", "digits", "--out", "store"): (),
    ("ledger", "digits"): ACCOUNTS,
}
SCRIPT = """
import json, sys
from dpvision.cli import main
sys.argv = ["dpvision", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize("words", NEEDED, ids=" ".join)
def test_a_verb_imports_no_slow_module_that_it_does_not_need(
    words: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("start")
    ran = subprocess.run([sys.executable, "-c", SCRIPT, *words], cwd=folder, capture_output=True, text=True, check=True)
    modules = json.loads(ran.stderr.strip().splitlines()[-1])
    assert "dpvision.cli" in modules
    assert set(SLOW) & set(modules) <= set(NEEDED[words])


def test_what_has_left_is_read_without_torch(tmp_path: Path) -> None:
    """Reports, comparisons, signatures and the account of a finished run."""
    environ = {**os.environ, "DPVISION_HOME": str(tmp_path / "home")}

    def imported(*words: str, good: bool = True) -> set[str]:
        command = [sys.executable, "-c", SCRIPT, *words]
        ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert (ran.returncode == 0) == good, ran.stderr
        return set(json.loads(next(line for line in ran.stderr.splitlines() if line.startswith("["))))

    assert "torch" in imported("train", "digits", "--epsilon", "3", "--out", "run")
    assert "torch" not in imported("sign", "run", "--key", "signer", "--new-key")
    for words in (("verify", "run", "--key", "signer.pub"), ("report", "run"), ("board", "run"), ("ledger", "digits")):
        assert "torch" not in imported(*words), words
    for words in (
        ("train", "no.npz", "--epsilon", "3"),
        ("train", "digits"),
        ("audit", "no"),
        ("predict", "run", "no"),
    ):
        assert "torch" not in imported(*words, good=False), words


@pytest.mark.parametrize(("n", "epsilon"), [(1000, 3.0), (60_000, 1.0)])
def test_a_plan_of_a_release_composes_few_losses(n: int, epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each distribution may take half a second."""
    composed = _count_compositions(monkeypatch)
    answer = plan.plan_release("neuromix", n=n, epsilon=epsilon, classes=10)
    assert epsilon * 0.999 < answer["epsilon"] <= epsilon
    assert 0 < len(composed) <= 2 * 11  # in both directions
    plan.plan_release("neuromix", n=n, epsilon=epsilon, classes=10)
    assert len(composed) <= 2 * 11, "what is the same is not computed again"


def test_a_confirmed_plan_states_the_noise_of_a_release() -> None:
    quick_answer, confirmed = (
        plan.plan_release("neuromix", n=1500, epsilon=8, classes=10, confirm=c) for c in (False, True)
    )
    assert quick_answer["sigma"] <= confirmed["sigma"] < quick_answer["sigma"] * 1.001
    assert confirmed["epsilon"] <= 8


@pytest.mark.parametrize("case", [(1.0, 4096 / 50_000, 875), (8.0, 0.01, 3000), (0.1, 1.0, 7), (3.0, 1e-3, 50_000)])
def test_the_search_for_the_noise_ends_where_halving_alone_does(case: tuple[float, float, int]) -> None:
    epsilon, rate, steps = case
    budget = Budget(epsilon, 1e-5)
    results = calibrate.sigma(budget, rate=rate, steps=steps, confirm=False)
    assert quick.epsilon(PoissonGaussian(rate, results, steps), 1e-5) <= epsilon
    below = results * (1 - 2 * calibrate.PRECISION)
    assert quick.epsilon(PoissonGaussian(rate, below, steps), 1e-5) > epsilon


def test_halving_follows_its_fixed_points() -> None:
    """Whatever the guesses are, the end is the one that halving alone finds, after fewer evaluations."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        narrow = 0.02 if seed % 2 else 1.0  # as it is around a good first guess
        bad, good = narrow * (-1.0 - rng.random()), narrow * (2.0 + rng.random())
        end, power = rng.uniform(bad, good), rng.choice([1, 3, 9])
        seen: list[float] = []

        def excess(x: float, seen: list[float] = seen, end: float = end, power: float = power) -> float:
            seen.append(x)
            return float(np.exp((end - x) * power) - 1)

        results = calibrate._bisect(bad, good, excess)
        a, b, halvings = bad, good, 0
        while b - a > calibrate.PRECISION:
            middle, halvings = (a + b) / 2, halvings + 1
            a, b = (middle, b) if np.exp((end - middle) * power) > 1 else (a, middle)
        assert results == b
        assert len(seen) <= halvings + calibrate.MAX_GUESSES + 2
        assert narrow == 1 or len(seen) < 0.8 * halvings


def test_the_window_is_that_of_all_orders() -> None:
    """The search among the orders finds the least bound."""
    for least in range(24):
        tried: list[float] = []

        def bound(order: float, tried: list[float] = tried, least: int = least) -> float:
            tried.append(order)
            return abs(order - least) + 3.0

        assert quick._least(bound, range(24)) == 3.0
        assert len(tried) <= 10


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    data = load("digits")
    order = np.random.default_rng(0).permutation(len(images))[: len(data.train)]
    assert np.array_equal(data.train.labels, labels[order])
    pixels = np.rint(images * 255 / 16).astype(np.uint8).reshape(-1, 8, 8, 1)[order]
    assert np.array_equal(np.stack([data.train.images[i] for i in range(len(data.train))]), pixels)


def _count_compositions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    composed: list[object] = []
    compose = quick._compose

    def counted(steps: object, h: float) -> object:
        composed.append(steps)
        return compose(steps, h)  # type: ignore[arg-type]

    for cached in (quick._epsilon, quick._both_ways):
        cached.cache_clear()
    monkeypatch.setattr(quick, "_compose", counted)
    return composed
