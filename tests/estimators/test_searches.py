"""Searches and cross-validations: every fit is charged, all to one account, and a search over budget is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

from dpvision.core.ledger import Ledger
from dpvision.errors import BudgetSpent, ConfigError, PrivacyWarning
from dpvision.estimators import account_of, ledger
from dpvision.private.accounts import overlap
from tests.estimators.cases import classifier, digits
from tests.one_thread import one_thread  # noqa: F401

FOLDS = KFold(3)


def few() -> tuple[np.ndarray, np.ndarray]:
    x, y = digits()
    return x[:240], y[:240]


def ledgers(home: Path) -> list[Ledger]:
    return [
        Ledger(path.parent, path.read_bytes().split(maxsplit=2)[1].decode())
        for path in sorted((home / "ledgers").glob("*.images"))
    ]


def test_every_fit_of_a_search_is_on_the_named_account(own_home: Path) -> None:
    x, y = few()
    search = GridSearchCV(
        classifier(epsilon=0.5, budget=3.0, account="scans", steps=2), {"lr": [np.float64(1.0), 4.0]}, cv=FOLDS
    )
    with pytest.warns(PrivacyWarning, match="every fit on the same images counts"):
        search.fit(x, y)
    account = ledger("scans").account()
    assert len(account.charges) == 2 * 3 + 1 and len(ledgers(own_home)) == 1
    assert 1.2 < account.spent() <= 3 and search.best_estimator_.card_["data_set"]["epsilon_spent"] == account.spent()
    assert search.best_params_["lr"] in (1.0, 4.0)


def test_a_search_over_budget_is_refused() -> None:
    x, y = few()
    search = GridSearchCV(
        classifier(epsilon=1.0, budget=2.0, account="scans", steps=2),
        {"lr": [1.0, 2.0, 4.0]},
        cv=FOLDS,
        error_score="raise",
    )
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetSpent):
        search.fit(x, y)
    assert ledger("scans").account().spent() <= 2


def test_without_a_name_folds_are_charged_where_the_same_images_are(own_home: Path) -> None:
    x, y = few()
    with pytest.warns(PrivacyWarning, match="charges"):
        cross_val_score(classifier(epsilon=0.5, budget=3.0, steps=2), x, y, cv=FOLDS, error_score="raise")
    (only,) = ledgers(own_home)
    assert len(only.account().charges) == 3
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetSpent):  # and a fit on all of them too
        classifier(epsilon=2.9, steps=2).fit(x, y)


def test_halves_have_accounts_of_their_own_and_the_whole_is_charged_to_both(own_home: Path) -> None:
    x, y = few()
    for part in (slice(0, 120), slice(120, 240)):
        classifier(epsilon=1.0, budget=3.0, steps=2).fit(x[part], y[part])
    with pytest.warns(PrivacyWarning):
        whole = classifier(epsilon=1.0, steps=2).fit(x, y)
    first, second = (result.account() for result in ledgers(own_home))
    assert len(first.charges) == len(second.charges) == 2 and first.spent() == second.spent() > 1.3
    assert first.charges[1].event == second.charges[1].event == whole.event_.events[0]
    assert first.charges[1].run == second.charges[1].run
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetSpent):  # of one of them alone, no more than of both
        classifier(epsilon=2.5, steps=2).fit(x[60:180], y[60:180])
    assert [len(result.account().charges) for result in ledgers(own_home)] == [2, 2]


RECODED = {
    "shares": lambda x: {"X": (x / 255).astype(np.float32)},
    "shares and a little": lambda x: {"X": x / 255 + 1e-7},
    "rows": lambda x: {"X": x.reshape(len(x), -1)},
    "other bounds": lambda x: {"X": x.astype(np.float64), "bounds": (0, 256)},
}


@pytest.mark.parametrize("how", RECODED)
def test_the_same_images_in_another_type_shape_or_by_other_bounds_have_no_budget_of_their_own(
    how: str, own_home: Path
) -> None:
    x, y = few()
    classifier(epsilon=1.0, budget=1.0, steps=2).fit(x, y)
    given = RECODED[how](x)
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetSpent):
        classifier(epsilon=1.0, steps=2, bounds=given.get("bounds")).fit(given["X"], y)
    assert len(ledgers(own_home)) == 1


def test_few_images_beside_an_account_of_very_many_need_a_name(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "MAX_IMAGES", 100)  # as if there were very many
    x, y = few()
    classifier(epsilon=0.5, budget=1.0, steps=2).fit(x, y)
    assert len(ledgers(own_home)) == 1
    rng = np.random.default_rng(0)
    others = rng.integers(0, 256, (200, 8, 8), np.uint8)
    with pytest.raises(ConfigError, match="in Python, set account= to"):
        classifier(epsilon=0.5, steps=2).fit(others[:20], y[:20])
    classifier(epsilon=0.5, steps=2).fit(others, y[:200])
    assert len(ledgers(own_home)) == 2, "of many, a sample shows that they are not among them"


def test_a_named_account_beside_another_is_said_aloud() -> None:
    x, y = few()
    classifier(steps=2).fit(x, y)
    with pytest.warns(PrivacyWarning, match="has about 100% of these images"):
        classifier(steps=2, account="other").fit(x, y)
    assert len(ledger("other").account().charges) == len(ledger(account_of(x)).account().charges) == 1
    with pytest.raises(ConfigError, match="account is"):
        classifier(account=" ").fit(x, y)
