"""A fit is charged before its result exists, composes with others, and states its settings."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

import dpvision
from dpvision.cli.app import app
from dpvision.core import accountant
from dpvision.data import load
from dpvision.errors import BudgetSpent, ConfigError, PrivacyError, PrivacyWarning
from dpvision.estimators import PrivateImageClassifier, _scale, account_of, ledger
from dpvision.private.accounts.overlap import raw_digests
from dpvision.released.folder import read_release
from dpvision.released.learners import DiscriminantLearner
from dpvision.released.report import card
from dpvision.storage import run_folder
from tests.estimators.cases import classifier, digits, release
from tests.one_thread import one_thread  # noqa: F401


def test_a_fit_learns_and_says_what_it_told() -> None:
    x, y = digits()
    result = classifier(epsilon=6.0).fit(x[:1200], y[:1200])
    assert result.score(x[1200:], y[1200:]) > 0.6
    assert list(result.classes_) == list(range(10)) and 5.9 < result.epsilon_ <= 6 and result.delta_ == 1e-5
    p = result.predict_proba(x[1200:])
    assert p.shape == (597, 10) and np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(result.decision_function(x[1200:]).argmax(axis=1), result.predict(x[1200:]))
    account = ledger(account_of(x[:1200])).account()
    assert [accountant.epsilon(c.event, 1e-5) for c in account.charges] == [result.epsilon_]
    assert result.card_ == card(run_folder.Run(result.run_folder_), account)  # what `dpvision report` writes
    assert result.card_["data_set"]["account"] == account.id and result.card_["guarantee"]["epsilon"] == result.epsilon_
    assert {fact["known"] for fact in result.card_["public_facts"].values()} == {"declared"}


def test_the_charge_comes_before_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpvision.private.training.loop._descend", killed)
    result = classifier()
    with pytest.raises(KeyboardInterrupt):
        result.fit(x[:200], y[:200])
    assert len(ledger(account_of(x[:200])).account().charges) == 1 and not hasattr(result, "released_")


def test_fits_compose_and_the_budget_refuses() -> None:
    x, y = digits()
    result = classifier(epsilon=1.0, budget=2.5)
    result.fit(x[:200], y[:200])
    with pytest.warns(PrivacyWarning, match="1 charges"):
        result.fit(x[:200], y[:200])
    spent = ledger(account_of(x[:200])).account().spent()
    assert 1.3 < spent <= 2.5 and result.card_["data_set"]["epsilon_spent"] == spent
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetSpent):
        classifier(epsilon=2.4).fit(x[:200], y[:200])
    assert ledger(account_of(x[:200])).account().spent() == spent


def test_the_command_line_and_a_fit_share_the_account_of_the_data() -> None:
    data = load("digits")
    assert (
        account_of(data.train.images)
        == dpvision.private.training.prepare.prepare("digits", dpvision.Config()).fingerprint
    )  # type: ignore[attr-defined]


def test_classes_that_are_read_off_are_said_aloud() -> None:
    x, y = digits()
    names = np.array([f"digit {i}" for i in range(10)])
    with pytest.warns(PrivacyWarning, match="read from y"):
        result = classifier(classes=None, n=None, steps=2).fit(x[:200], names[y[:200]])
    facts = result.card_["public_facts"]
    assert [facts[name]["known"] for name in ("n", "classes")] == ["read from the data"] * 2
    assert sum("Epsilon does not cover it" in line for line in result.card_["not_covered"]) == 2
    assert set(result.predict(x[:50])) <= set(names)


def test_declared_classes_are_all_there_are() -> None:
    x, y = digits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = classifier(classes=list(range(10)), steps=2).fit(x[:200], y[:200])
    assert list(result.classes_) == list(range(10))
    with pytest.raises(ValueError, match="not one of the declared"):
        classifier(classes=9).fit(x[:200], y[:200])


def test_values_are_scaled_by_public_bounds_alone() -> None:
    x, y = digits()
    with pytest.raises(ValueError, match="bounds"):
        classifier().fit(x[:200].astype(float), y[:200])
    with pytest.raises(ConfigError, match="bounds"):
        classifier(bounds=(1, 0)).fit(x[:200], y[:200])
    result = classifier(bounds=(0, 255), steps=2).fit(x[:200].astype(float), y[:200])
    far = x[:1].astype(float)
    far[0, 0, 0] = 1e9
    near = far.clip(0, 255)
    assert np.array_equal(result.decision_function(far), result.decision_function(near))
    with pytest.raises(ValueError, match="shape"):
        result.predict(x[:5, :, :4])
    with pytest.raises(ValueError, match="reshape"):
        classifier().fit(np.zeros((4, 8, 8, 2)), [0, 1, 0, 1])


@pytest.mark.parametrize("kind", ["int64", "uint16", "int8", "float64"])
def test_bytes_in_another_type_are_refused_or_need_bounds(kind: str) -> None:
    """Only uint8 means 0 to 255; with bounds, any numbers are the same images on the same account."""
    x, y = digits()
    other = (x[:60] // 3).astype(kind)  # int8 ends at 127
    with pytest.raises(ValueError, match=r"is not uint8\. Fix: pass `bounds`"):
        classifier().fit(other, y[:60])
    scaled = _scale(other, (0, 255))
    assert scaled.dtype == np.float32 and np.array_equal(scaled, ((x[:60] // 3) / 255).astype(np.float32))
    assert raw_digests(other)[1] == raw_digests(x[:60] // 3)[1]
    with pytest.raises(ConfigError, match="an account is that of uint8 or float32"):
        account_of(other)


@pytest.mark.parametrize("kind", ["bool", "uint8", "int64", "uint16", "float16", "float64"])
def test_images_of_two_values(kind: str) -> None:
    """Zeros and ones are black and white in every type but uint8, where they are two dark greys."""
    x = (digits()[0][:60] > 7).astype(kind)
    scaled = _scale(x, None)
    assert scaled.dtype == (np.uint8 if kind == "uint8" else np.float32) and np.array_equal(scaled, x.astype(float))
    assert raw_digests(x)[2] == raw_digests(x.astype(np.float32))[2]


def test_more_than_was_asked_for_is_refused() -> None:
    x, y = digits()
    with pytest.raises(PrivacyError, match="more than the requested 1"):
        classifier(epsilon=1.0, settings={"full_batch": True, "sigma": 0.5}).fit(x[:200], y[:200])


def test_a_release_and_what_learns_from_it() -> None:
    x, y = digits()
    result = release(epsilon=4.0).fit(x[:1200], y[:1200])
    assert result.released_.shape == (500, 64) and 3.9 < result.epsilon_ <= 4
    learner = DiscriminantLearner().fit(result.released_, result.released_labels_)
    assert learner.score(result.transform(x[1200:]), y[1200:]) > 0.7
    assert json.loads((result.run_folder_ / "card.json").read_text()) == result.card_
    assert len(ledger(account_of(x[:1200])).account().charges) == 1
    with pytest.raises(PrivacyError, match="released_"):
        make_pipeline(release(), DiscriminantLearner()).fit(x[:1200], y[:1200])
    assert len(ledger(account_of(x[:1200])).account().charges) == 1


def test_a_release_is_what_the_verb_writes() -> None:
    """The whole card by the schema, card.md and README.md; `dpvision audit` takes the folder."""
    x, y = digits()
    result = release().fit(x[:1200], y[:1200])
    jsonschema.validate(result.card_, json.loads((files("dpvision.released.report") / "card.schema.json").read_text()))
    assert {"card.md", "README.md", "schema.json"} <= {path.name for path in result.run_folder_.iterdir()}
    folder = read_release(result.run_folder_)
    assert folder.private and folder.event == result.event_ and folder.card == result.card_
    command = ["audit", str(result.run_folder_), "--runs", "1000", "--confidence", "0.999"]
    app(command, exit_on_error=False, print_error=False, result_action="return_value")
    audited = read_release(result.run_folder_).card
    assert audited["audit"]["mechanism"]["refuted"] is False
    assert {**audited, "audit": None} == result.card_


def test_names_are_loaded_when_they_are_used() -> None:
    assert dpvision.PrivateImageClassifier is PrivateImageClassifier
    code = "import sys, dpvision; print([m for m in ('torch', 'sklearn', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
