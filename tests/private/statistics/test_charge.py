"""What is done is what was charged, before it is done; noise is as stated; the budget is used and never exceeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core import accountant, noise
from dpvision.core.events import Budget, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum, Rows
from dpvision.errors import BudgetSpent, ConfigError, PrivacyError
from dpvision.private.accounts import overlap
from dpvision.private.statistics import Whitening, fit_head
from dpvision.private.statistics.setup import HeadSetup
from dpvision.storage.home import ledger_of
from tests.private.statistics.cases import BUDGET, CLASSES, SETTINGS, WIDTH, new_ledger, separable, some_rows

X, Y = some_rows(np.random.default_rng(0), 40)
WIDE = np.random.default_rng(1).normal(size=(250, 200))


def _fit(folder: Path, *, x: np.ndarray = X, y: np.ndarray = Y, budget: Budget = BUDGET, **settings: Any):
    ledger = new_ledger(folder)
    return fit_head(x, y, budget, **{"classes": CLASSES, "ledger": ledger, **settings}), ledger


@pytest.mark.parametrize("name", SETTINGS)
def test_the_charge_is_on_the_disk_before_there_is_noise(name: str, tmp_path: Path, monkeypatch) -> None:
    def killed(*_: Any, **__: Any) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "add_noise", killed)
    ledger = new_ledger(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit_head(X, Y, BUDGET, classes=CLASSES, ledger=ledger, run="mine", **SETTINGS[name])
    (charge,) = new_ledger(tmp_path).account().charges
    assert charge.run == "mine" and charge.private
    assert accountant.epsilon(charge.event, BUDGET.delta) <= BUDGET.epsilon


def test_accounts_of_heads_are_found_by_their_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    digests = [bytes([number]) * 16 for number in range(40)]
    ledger = ledger_of("ab" * 16)
    fit_head(X, Y, BUDGET, classes=CLASSES, ledger=ledger, sketch=overlap.sketch(digests))
    (near,) = overlap.find("cd" * 16, overlap.sketch(digests[:-1]))
    assert near.of_ours == 1.0 and len(near.ledger.account().charges) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_done_is_what_was_charged(name: str, tmp_path: Path, monkeypatch) -> None:
    seen, made = [], []
    original, construct = noise.add_noise, Gate.__init__

    def recording(total, stream, *, sensitivity, sigma):
        seen.append(sigma)
        return original(total, stream, sensitivity=sensitivity, sigma=sigma)

    def keeping(self: Gate, *given: Any, **more: Any) -> None:
        made.append(self)
        construct(self, *given, **more)

    monkeypatch.setattr(noise, "add_noise", recording)
    monkeypatch.setattr(Gate, "__init__", keeping)
    head, ledger = _fit(tmp_path, **SETTINGS[name])
    (charge,) = ledger.account().charges
    assert charge.event == head.event == Gaussian(seen[0], len(seen))
    assert len(set(seen)) == 1 and charge.id == head.charge
    assert [m.left for m in made] == [0], "all that was charged was used"
    with pytest.raises(PrivacyError, match="are done"):
        made[0].next(BoundedSum(np.zeros(3), 1.0))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_budget_is_used_and_never_exceeded(name: str, epsilon: float, tmp_path: Path) -> None:
    head, ledger = _fit(tmp_path, budget=Budget(epsilon, 1e-5), **SETTINGS[name])
    assert 0.98 * epsilon <= head.epsilon <= epsilon
    assert head.epsilon == accountant.epsilon(head.event, 1e-5) == ledger.account().spent()
    assert head.delta == 1e-5


def test_a_spent_budget_is_refused(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, Budget(2.0, 1e-5))
    fit_head(X, Y, Budget(1.0, 1e-5), classes=CLASSES, ledger=ledger, method="moments")
    fit_head(X, Y, Budget(1.0, 1e-5), classes=CLASSES, ledger=ledger, steps=3)
    assert 1.0 < ledger.account().spent() <= 2.0
    for settings in ({"method": "lda"}, {"steps": 3}):
        with pytest.raises(BudgetSpent):
            fit_head(X, Y, Budget(1.5, 1e-5), classes=CLASSES, ledger=ledger, **settings)
    assert len(ledger.account().charges) == 2


def test_an_account_of_persons_is_refused(tmp_path: Path) -> None:
    """A row is an image; what it reveals about a person with several images is not counted here."""
    ledger = new_ledger(tmp_path)
    ledger.open(BUDGET, unit="person")
    with pytest.raises(PrivacyError, match="protects persons"):
        fit_head(X, Y, BUDGET, classes=CLASSES, ledger=ledger)


@pytest.mark.parametrize("name", SETTINGS)
def test_noise_has_the_stated_variance_in_every_part(name: str, tmp_path: Path, monkeypatch) -> None:
    """Over 20 heads on no data at all: chi-square, 5 standard deviations; each half of the vector by itself."""
    results: list[np.ndarray] = []
    original = Gate.next

    def recording(self: Gate, bounded: BoundedSum) -> np.ndarray:
        result = original(self, bounded)
        flat = ((result - bounded.total) / (bounded.sensitivity * self.sigma)).reshape(-1)
        results.append(flat)
        return result

    monkeypatch.setattr(Gate, "next", recording)
    settings = dict(SETTINGS[name])
    if "public" in settings:
        settings["public"] = WIDE
    if "whitening" in settings:
        settings["whitening"] = Whitening.of(WIDE)
    for i in range(20):
        _fit(tmp_path / str(i), x=WIDE[:0], y=np.zeros(0, dtype=int), n=40, test_key=str(i), **settings)
    alike = [np.stack([f for f in results if len(f) == size]) for size in {len(f) for f in results}]
    for part in (actual[:, half::2] for actual in alike for half in (0, 1)):
        assert abs(part.var() - 1) < 5 * np.sqrt(2 / part.size) + 3e-4  # the slack for rounding is 1e-4 of sigma
        assert abs(part.mean()) < 5 / np.sqrt(part.size)
        assert abs((part[1:] * part[:-1]).mean()) < 5 / np.sqrt(part.size), "no release repeats another's noise"


@pytest.mark.parametrize("name", ["gd", "newton", "moments", "lda", "lda, private covariance"])
def test_sums_are_divided_by_the_public_number(name: str, tmp_path: Path) -> None:
    """What a method gets is the sum; the same noisy sum with another n gives what that n implies."""
    plan = HeadSetup.of(
        SETTINGS[name]["method"], {k: v for k, v in SETTINGS[name].items() if k not in ("method", "public")}
    )
    asked = []

    def noisy(bounded: BoundedSum) -> np.ndarray:
        asked.append(bounded)
        return np.arange(bounded.total.size, dtype=float).reshape(bounded.total.shape) + 1

    def fitted(count: int) -> tuple[np.ndarray, np.ndarray | None]:
        rows = Rows.of(X[:count], Y[:count], plan.preparation, classes=CLASSES)
        public = plan.public_rows(SETTINGS[name].get("public"), width=rows.width)
        return plan.method.fit(rows, n=40, sigma=1.0, add_noise=noisy, public=public)

    (w40, b40), (w7, b7) = fitted(40), fitted(7)
    assert np.array_equal(w40, w7), "the true number of rows is nowhere but in the sums"
    assert (b40 is None and b7 is None) or np.array_equal(b40, b7)


def test_gd_takes_the_mean_over_the_public_number(tmp_path: Path) -> None:
    """One step from zero without momentum is -rate * sum / n: twice the n, half the weights."""
    settings = {"steps": 1, "momentum": 0.0, "total_rate": 10.0, "keep": "last"}
    plan = HeadSetup.of("gd", settings)
    rows = Rows.of(X, Y, plan.preparation, classes=CLASSES)
    half, full = (plan.method.fit(rows, n=n, sigma=1.0, add_noise=lambda b: b.total)[0] for n in (80, 40))
    assert np.allclose(half * 2, full, rtol=1e-12)
    y = np.eye(CLASSES)[Y]
    assert np.allclose(full, -10 * rows.x.T.astype(float) @ (1 / CLASSES - y) / 40)


def test_n_is_given_or_said_to_be_read_off(tmp_path: Path) -> None:
    head, _ = _fit(tmp_path / "a", steps=2)
    assert head.n == 40 and head.read_off == ("n",)
    head, _ = _fit(tmp_path / "b", steps=2, n=50)
    assert head.n == 50 and head.read_off == ()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_key_gives_the_same_bits_and_a_fresh_one_others(name: str, tmp_path: Path) -> None:
    (a, _), (b, _) = (_fit(tmp_path / i, test_key="word", **SETTINGS[name]) for i in "ab")
    assert a.weight.tobytes() == b.weight.tobytes() and a.charge == b.charge
    (c, ledger), (d, _) = (_fit(tmp_path / i, **SETTINGS[name]) for i in "cd")
    assert len({h.weight.tobytes() for h in (a, c, d)}) == 3 and c.charge != d.charge
    assert not a.private and c.private
    assert ledger.account().charges[0].private


def test_a_fixed_key_is_marked_and_never_noises_two_data_sets_alike(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, Budget(50.0, 1e-5))

    def fit(x: np.ndarray, **settings: Any) -> str:
        return fit_head(x, Y, BUDGET, **{"classes": CLASSES, "ledger": ledger, "test_key": "k", **settings}).charge

    first = fit(X, steps=2)
    assert fit(X, steps=2) == first, "the same noise again: charged once"
    other = X.copy()
    other[3, 1] += 1e-3
    ids = {
        first,
        fit(other, steps=2),
        fit(X, steps=2, n=41),
        fit(X, steps=2, total_rate=1.0),
        fit(X, steps=2, clip=0.5),
    }
    ids |= {fit(X, steps=2, intercept=0.1), fit(X, steps=2, test_key="other"), fit(X, steps=3), fit(X, method="lda")}
    assert len(ids) == 9
    charges = ledger.account().charges
    assert {c.id for c in charges} == ids and not any(c.private for c in charges)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "svm"}, "method is 'svm'"),
        ({"step": 3}, "Did you mean 'steps'"),
        ({"method": "lda", "steps": 3}, "steps: lda has no such setting"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"momentum": 1.0}, "momentum is 1"),
        ({"clip": 0.0}, "clip is 0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"keep": "best"}, "keep is 'best'"),
        ({"total_rate": -1.0}, "total_rate is -1"),
        ({"n": 0}, "n is 0"),
        ({"n": 2.0}, "n is 2.0"),
        ({"classes": 3, "y": np.full(40, 3)}, "labels must be from 0 to 2"),
        ({"method": "moments", "share": 1.0}, "share is 1"),
        ({"method": "moments", "ridge": 0.0}, "ridge is 0"),
        ({"method": "lda", "covariance": "shared"}, "covariance is 'shared'"),
        ({"method": "lda", "share": 0.97}, "leave nothing"),
        ({"method": "lda", "intercept": 1.0}, "lda computes intercepts"),
        ({"method": "lda", "covariance": "public"}, "public features"),
        ({"method": "newton"}, "public features"),
        ({"method": "newton", "public": np.ones((4, WIDTH + 1)) * np.arange(4.0)[:, None]}, "they must be equal"),
        ({"method": "newton", "public": np.full((4, WIDTH), np.nan)}, "public must have"),
        ({"method": "newton", "rate": 0.0}, "rate is 0"),
        ({"whitening": Whitening.of(np.random.default_rng(0).normal(size=(9, 3)))}, "whitening expects 3"),
    ],
)
def test_wrong_settings_are_refused_by_name_and_cost_nothing(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        _fit(tmp_path, **wrong)
    assert not new_ledger(tmp_path).exists()


def test_a_head_refuses_other_features(tmp_path: Path) -> None:
    x, y = separable(np.random.default_rng(0), 60)
    head, _ = _fit(tmp_path, x=x, y=y, steps=2, intercept=0.5)
    assert head.scores(x).shape == (60, CLASSES)
    with pytest.raises(ConfigError, match="features have 5 columns"):
        head.scores(x[:, :5])
