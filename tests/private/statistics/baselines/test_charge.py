"""What is done is what was charged, before it is done; the budget is used and never exceeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core import accountant, noise
from dpvision.core.events import Budget, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import BoundedSum, Rows
from dpvision.core.sampling import EveryRecord
from dpvision.errors import BudgetSpent, ConfigError, PrivacyError
from dpvision.private.accounts import overlap
from dpvision.private.statistics.baselines import Synthetic, synthesise
from dpvision.private.statistics.baselines.synthesis import setup_method
from dpvision.storage.home import ledger_of
from tests.charges import charged
from tests.one_thread import one_thread
from tests.private.statistics.baselines.cases import SETTINGS
from tests.private.statistics.cases import BUDGET, CLASSES, WIDTH, new_ledger, some_rows

assert one_thread
X, Y = some_rows(np.random.default_rng(0), 40)


def _made(ledger: Ledger, *, budget: Budget = BUDGET, x: np.ndarray = X, **settings: Any) -> Synthetic:
    return synthesise(x, Y, budget, **{"classes": CLASSES, "ledger": ledger, "rows": 9, **settings})


@pytest.mark.parametrize("name", SETTINGS)
def test_the_charge_is_on_the_disk_before_there_is_noise(name: str, tmp_path: Path, monkeypatch) -> None:
    def killed(*_: Any, **__: Any) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "add_noise", killed)
    with pytest.raises(KeyboardInterrupt):
        _made(new_ledger(tmp_path), run="mine", **SETTINGS[name])
    (charge,) = new_ledger(tmp_path).account().charges
    assert charge.run == "mine" and charge.private
    assert accountant.epsilon(charge.event, BUDGET.delta) <= BUDGET.epsilon


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_done_is_what_was_charged_and_within_the_budget(name: str, tmp_path: Path, monkeypatch) -> None:
    seen = []
    original = noise.add_noise

    def recording(total, stream, *, sensitivity, sigma):
        seen.append(sigma)
        return original(total, stream, sensitivity=sensitivity, sigma=sigma)

    monkeypatch.setattr(noise, "add_noise", recording)
    ledger = new_ledger(tmp_path)
    made = _made(ledger, test_key="word", **SETTINGS[name])
    (charge,) = ledger.account().charges
    assert charge.event == made.event == Gaussian(seen[0], len(seen)) and set(seen) == {made.event.sigma}
    assert charge.id == made.charge and not made.private and not charge.private
    assert 0.98 * BUDGET.epsilon <= made.epsilon == ledger.account().spent() <= BUDGET.epsilon
    assert made.x.shape == (9, WIDTH) and made.x.dtype == np.float32 and made.labels.shape == (9,)
    assert np.isfinite(made.x).all() and np.linalg.norm(made.x, axis=1).max() <= 1 + 1e-6
    assert set(made.labels) <= set(range(CLASSES)) and made.read_off == ("n",)
    again = _made(ledger, test_key="word", **SETTINGS[name])
    assert again.x.tobytes() == made.x.tobytes() and again.labels.tobytes() == made.labels.tobytes()
    assert len(ledger.account().charges) == 1, "the same noise again: charged once"


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("merf", [1.131953, -0.715281, -2.873336]),
        ("hermite", [2.595575, 3.043526, -0.860122]),
        ("p3gm", [7.429925, 0.430088, 1.365369]),
    ],
)
def test_what_is_released_under_a_fixed_key_is_what_it_ever_was(name: str, golden: list[float]) -> None:
    plan = setup_method(SETTINGS[name]["method"], {k: v for k, v in SETTINGS[name].items() if k != "method"})
    event = Gaussian(2.0, plan.method.releases)
    gate = Gate(charged(event), Key.for_tests("golden"), EveryRecord(event.count), name="b")
    got = []

    def noisy(bounded: BoundedSum) -> np.ndarray:
        got.append(gate.next(bounded))
        return got[-1]

    rows = Rows.of(X, Y, plan.preparation, classes=CLASSES)
    plan.method.make(rows, n=40, sigma=event.sigma, add_noise=noisy, count=3, seed=5)
    assert gate.left == 0
    assert np.allclose(got[0].reshape(-1)[:3], golden, rtol=0, atol=1e-5)


def test_a_spent_budget_is_refused(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, Budget(1.5, 1e-5))
    _made(ledger, budget=Budget(1.0, 1e-5), **SETTINGS["merf"])
    for name in ("merf", "hermite", "p3gm"):
        with pytest.raises(BudgetSpent):
            _made(ledger, budget=Budget(1.2, 1e-5), **SETTINGS[name])
    assert len(ledger.account().charges) == 1


def test_an_account_of_persons_is_refused(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.open(BUDGET, unit="person")
    with pytest.raises(PrivacyError, match="protects persons"):
        _made(ledger, **SETTINGS["merf"])


def test_accounts_are_found_by_their_images(tmp_path: Path) -> None:
    digests = [bytes([number]) * 16 for number in range(40)]
    _made(ledger_of("ab" * 16), sketch=overlap.sketch(digests), **SETTINGS["merf"])
    (near,) = overlap.find("cd" * 16, overlap.sketch(digests[:-1]))
    assert near.of_ours == 1.0 and len(near.ledger.account().charges) == 1


def test_a_fixed_key_never_noises_two_inputs_alike(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, Budget(100.0, 1e-5))
    other = X.copy()
    other[3, 1] += 1e-3
    changes: list[dict[str, Any]] = [
        {},
        {"x": other},
        {"n": 41},
        {"rows": 8},
        {"seed": 1},
        {"length": 0.3},
        {"unit": True},
        {"test_key": "b"},
    ]
    ids = {_made(ledger, **{"test_key": "a", **SETTINGS["merf"], **change}).charge for change in changes}
    assert len(ids) == len(changes) == len(ledger.account().charges)


def test_fresh_noise_is_fresh_and_n_is_public(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path, Budget(100.0, 1e-5))
    a, b = (_made(ledger, n=50, **SETTINGS["p3gm"]) for _ in "ab")
    assert a.private and a.n == 50 and a.read_off == () and a.charge != b.charge
    assert not np.array_equal(a.x, b.x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "gan"}, "method is 'gan'"),
        ({"lenght": 1.0}, "Did you mean 'length'"),
        ({"intercept": 1.0}, "no such setting"),
        ({"size": 1}, "size is 1"),
        ({"length": 0.0}, "length is 0.0"),
        ({"counts_share": 1.0}, "counts_share"),
        ({"rows": 0}, "rows is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"n": 0}, "n is 0"),
        ({"classes": 1}, "classes is 1"),
        ({"method": "hermite", "rho": 1.0}, "rho is 1.0"),
        ({"method": "hermite", "together": 7}, "together is 7"),
        ({"method": "hermite", "products": -1}, "products is -1"),
        ({"method": "p3gm", "latent": 7}, "latent is 7"),
        ({"method": "p3gm", "components": 2}, "needs rounds"),
        ({"method": "p3gm", "clip": float("nan")}, "clip is nan"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_charged(wrong: dict, message: str, tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with pytest.raises(ConfigError, match=message):
        _made(ledger, **wrong)
    assert not ledger.exists(), "no account was opened"
