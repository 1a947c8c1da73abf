"""The card states what the accountant proves, refuses what it cannot, and takes nothing from the operator's folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from run_folder import DATA, EVENT, FINGERPRINT, NAME, account, make
from scipy.stats import norm

from dpvision.core import accountant, adaptive
from dpvision.core.events import Budget, Gaussian, PoissonGaussian
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.released.report import card, guarantee, sentence
from dpvision.settings import gdp, quick
from dpvision.settings.meaning import attack_success, replace_one_epsilon
from dpvision.storage.home import ledger_of
from dpvision.storage.run_folder import append_json


def test_guarantee_is_the_accountants(tmp_path: Path) -> None:
    made = card(make(tmp_path / "run"), account())
    guarantee = made["guarantee"]
    assert made["format"] == "dpvision-card-1"
    assert made["status"] == "private"
    assert guarantee["epsilon"] == accountant.epsilon(EVENT, 1e-5)
    assert guarantee["mu"] == gdp.mu(EVENT, 1e-5)
    assert guarantee["epsilon"] <= guarantee["rdp_epsilon"] == quick.rdp_epsilon(EVENT, 1e-5)
    assert guarantee["approximate"]["label"] == "approximate: central limit, not a bound"
    epsilons, deltas = np.array(guarantee["profile"]).T
    assert len(epsilons) == 25
    assert deltas.tolist() == accountant.profile(EVENT, epsilons.tolist()).tolist()
    assert made["sampler"] == {"name": "Poisson", "rate": 0.1, "batch": 100, "n": 1000, "steps": 200}
    assert made["mechanism"]["sigma"] == 2.0
    assert made["accuracy"] == {
        "test": {"ema": pytest.approx(0.92), "last": 0.9},
        "released": "ema",
        "released_test_accuracy": pytest.approx(0.92),
    }


def test_data_set_composes_all_runs(tmp_path: Path) -> None:
    other = Gaussian(5.0)
    made = card(make(tmp_path / "run"), account(EVENT, other))
    assert made["data_set"] == {
        "account": "a0736a507830ef2b",
        "epsilon_spent": accountant.epsilon(adaptive.compose((EVENT, other), 1e-5), 1e-5),
        "epsilon_budget": 50.0,
        "delta": 1e-5,
        "charges": 2,
        "composition": guarantee.CHOSEN_LATER,
        "budget_changes": [],
    }
    assert made["guarantee"]["epsilon"] < made["data_set"]["epsilon_spent"]
    assert card(make(tmp_path / "alone"), None)["data_set"] is None


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0, 5.0])
def test_attack_success_is_the_gaussian_trade_off_from_above(mu: float) -> None:
    rates = np.array([1e-4, *guarantee.FALSE_POSITIVE_RATES, 0.5, 0.99])
    exact = norm.sf(norm.isf(rates) - mu)
    bound = attack_success(Gaussian(1 / mu), rates.tolist())
    assert (bound >= exact).all()
    assert (bound <= 1.01 * exact).all()


def test_attack_success_is_on_the_card(tmp_path: Path) -> None:
    made = card(make(tmp_path / "run"), None)
    assert [x["false_positive_rate"] for x in made["attack_success"]] == [0.001, 0.01, 0.05]
    epsilon = made["guarantee"]["epsilon"]
    for x in made["attack_success"]:
        f, t = x["false_positive_rate"], x["true_positive_rate_at_most"]
        assert f < t <= math.exp(epsilon) * f + 1e-5


def test_what_epsilon_means_is_on_the_card(tmp_path: Path) -> None:
    made = card(make(tmp_path / "run"), None)
    meaning = made["meaning"]
    assert [x["prior"] for x in meaning["reconstruction"]] == [0.001, 0.01, 0.1, 0.5]
    known = {x["false_positive_rate"]: x["true_positive_rate_at_most"] for x in made["attack_success"]}
    assert all(known.get(x["prior"], x["success_at_most"]) == x["success_at_most"] for x in meaning["reconstruction"])
    assert meaning["replace_one_epsilon"] == replace_one_epsilon(EVENT, 1e-5) > made["guarantee"]["epsilon"]
    assert meaning["gaussian"] is None  # sampled
    exact = card(make(tmp_path / "exact", event=Gaussian(2.0)), None)["meaning"]
    assert exact["gaussian"] == {"mu": 0.5, "zcdp_rho": 0.125}
    for name, event, secret in (("fixed", EVENT, False), ("loud", Gaussian(0.02), True)):
        nothing = card(make(tmp_path / name, event=event, private=secret), None)["meaning"]
        assert {x["success_at_most"] for x in nothing["reconstruction"]} == {1.0}
        assert nothing["replace_one_epsilon"] is nothing["gaussian"] is None


@pytest.mark.parametrize("unit", ["image", "person"])
def test_facts_read_off_the_data_are_named(tmp_path: Path, unit: str) -> None:
    run = make(tmp_path / "run", config={"unit": unit}, read_off=["classes", "image size", f"number of {unit}s"])
    made = card(run, None)
    assert made["unit"] == unit
    assert made["adjacency"].startswith("zero-out")
    assert {fact["known"] for fact in made["public_facts"].values()} == {"read from the data"}
    assert sum("read from the data" in line for line in made["not_covered"]) == 3
    declared = card(make(tmp_path / "declared", config={"unit": unit}), None)
    assert declared["adjacency"] == "add or remove one unit"
    assert {fact["known"] for fact in declared["public_facts"].values()} == {"declared"}
    assert not any("read from the data" in line for line in declared["not_covered"])


def test_sentence_names_the_figures(tmp_path: Path) -> None:
    text = sentence(card(make(tmp_path / "run", event=Gaussian(2.0)), None))
    # mu = 0.5: Phi(0.5 - 2.326) = 3.39% at 1%; epsilon 2.0 at 1e-5.
    assert "any one image" in text
    assert "at delta 1e-05" in text
    assert "3.4% of those inside" in text
    assert "weak" not in text
    person = card(make(tmp_path / "person", event=Gaussian(0.2), config={"unit": "person"}), None)
    assert "any one person's images were" in sentence(person)
    assert "weak guarantee" in sentence(person)


def test_fixed_key_claims_nothing(tmp_path: Path) -> None:
    made = card(make(tmp_path / "run", private=False), account())
    assert made["status"].startswith("NOT PRIVATE: ")
    assert made["guarantee"]["epsilon"] is None
    assert made["guarantee"]["profile"] == []
    assert made["guarantee"]["if_the_noise_were_secret"]["epsilon"] == accountant.epsilon(EVENT, 1e-5)
    assert {x["true_positive_rate_at_most"] for x in made["attack_success"]} == {1.0}
    assert "no privacy guarantee" in sentence(made)
    assert "fixed key" in sentence(made)
    assert "entropy" not in made["mechanism"]["noise"]


def test_noise_that_hides_nothing_is_not_private(tmp_path: Path) -> None:
    made = card(make(tmp_path / "run", event=Gaussian(0.02)), None)
    assert made["status"].startswith("NOT PRIVATE: ")
    assert made["guarantee"]["epsilon"] is None
    assert "so little noise" in sentence(made)
    json.dumps(made, allow_nan=False)


def test_an_unfinished_run_has_no_card(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not finished"):
        card(make(tmp_path / "run", complete=False), None)


@pytest.mark.parametrize("broken", [{"private": "yes"}, {"event": None}, {"class_names": [1]}, {"read_off": "classes"}])
def test_a_malformed_run_is_refused(tmp_path: Path, broken: dict[str, object]) -> None:
    run = make(tmp_path / "run")
    run.write_facts(run.facts() | broken)
    with pytest.raises(DataError, match=next(iter(broken))):
        card(run, None)


def test_a_run_that_its_ledger_does_not_charge_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    fewer = PoissonGaussian(rate=0.1, sigma=2.0, steps=199)
    louder = PoissonGaussian(rate=0.1, sigma=2.1, steps=200)
    for wrong in (account(run="another"), account(fewer), account(louder), account(louder, EVENT)):
        with pytest.raises(LedgerMismatch, match="no charge that covers this run"):
            card(run, wrong)
    card(run, account(PoissonGaussian(rate=0.1, sigma=2.0, steps=201)))


def test_an_audit_checks_the_ledger_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the DPVISION_HOME of other runs on the same data, nothing in the folder of the run is overwritten."""
    from dpvision.cli.audit import audit

    run = make(tmp_path / "run")
    before = sorted(run.folder.iterdir())
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    ledger_of(FINGERPRINT).open(Budget(3.0, 1e-5))
    with pytest.raises(LedgerMismatch, match="DPVISION_HOME"):
        audit(run.folder, runs=200)
    assert sorted(run.folder.iterdir()) == before


def test_nothing_of_the_operators_folder_is_on_the_card(tmp_path: Path) -> None:
    text = json.dumps(card(make(tmp_path / "run"), account()))
    assert FINGERPRINT not in text
    assert DATA not in text
    assert NAME in text


def test_without_a_test_split_accuracy_is_left_out(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run.metrics.unlink()
    assert card(run, None)["accuracy"] is None
    append_json(run.metrics, {"step": 200, "epsilon": 1.0})
    assert card(run, None)["accuracy"] is None
