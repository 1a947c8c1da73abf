"""The unit person in releases, heads, synthesis and estimators: the mean of a person's rows is one bounded contribution."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from dpvision.audit.bounds import estimate
from dpvision.audit.canaries import CanaryRandom, Trials
from dpvision.audit.release_canaries import IMAGES, mixture_scores, moments_scores
from dpvision.cli.app import app
from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import Poisson
from dpvision.data import load_rows
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.private.statistics import fit_head, head_run
from dpvision.private.statistics.baselines import synthesise
from dpvision.private.statistics.baselines.embedding import embedded_sum
from dpvision.private.statistics.baselines.kernels import Merf
from dpvision.private.statistics.baselines.p3gm import component_moments
from dpvision.private.statistics.closed_form import regression_sums
from dpvision.private.statistics.logistic import clipped_gradient
from dpvision.private.statistics.mixtures import Records
from dpvision.private.statistics.release import A_PERSON, make, prepare
from dpvision.private.statistics.row_sums import class_statistics, sum_of_rows
from dpvision.released.folder import read_release
from dpvision.settings.training import Config
from tests.estimators.cases import digits
from tests.estimators.cases import release as estimator
from tests.one_thread import one_thread
from tests.private.statistics.cases import BUDGET, new_ledger
from tests.private.statistics.releases.small import small

assert one_thread
CLASSES, WIDTH = 3, 5
# One row; two with different labels; four, one of them not finite; one that is not finite; and fifty.
PERSONS = np.repeat(np.arange(5), (1, 2, 4, 1, 50))
SUMS = {
    "rows": sum_of_rows,
    "classes": lambda rows: class_statistics(rows, a=0.5, b=0.7, c=0.5),
    "regression": lambda rows: regression_sums(rows, share=0.5),
    "gradient": lambda rows: clipped_gradient(rows, np.full((WIDTH, CLASSES), 0.3), clip=0.4),
    "embedding": lambda rows: embedded_sum(rows, Merf(size=8).phi(width=WIDTH, seed=0), c=0.5),
    "components": lambda rows: component_moments(rows, None),
}


def rows_of(*, persons: Any = PERSONS, taken: Any = slice(None), seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(len(PERSONS), WIDTH)), rng.integers(0, CLASSES, len(PERSONS))
    x[[4, 7]] = np.nan
    return Rows.of(
        x[taken], y[taken], Preparation(), classes=CLASSES, persons=None if persons is None else persons[taken]
    )


@pytest.mark.parametrize("name", SUMS)
def test_a_person_adds_the_mean_of_what_each_row_would_add(name: str) -> None:
    exact = SUMS[name](rows_of())
    expected = np.zeros_like(exact.total)
    for person in range(5):
        numbers = [i for i in np.flatnonzero(person == PERSONS) if i not in (4, 7)]
        alone = [SUMS[name](rows_of(persons=None, taken=[i])).total for i in numbers]
        if alone:
            assert np.linalg.norm(np.mean(alone, axis=0)) <= exact.sensitivity * (1 + 1e-9)
            expected += np.mean(alone, axis=0)
    assert np.allclose(exact.total, expected, atol=1e-9)


def test_names_of_persons_are_numbers_or_texts_one_for_each_row() -> None:
    named = rows_of(persons=np.array([f"p{person}" for person in PERSONS]))
    assert np.array_equal(named.persons, PERSONS) and named.units == 5
    texts = np.array([f"p{person}" for person in PERSONS], dtype=object)
    assert np.array_equal(rows_of(persons=texts).persons, PERSONS)
    both = [1, "1", *(str(person) for person in PERSONS[2:])]
    for wrong in (PERSONS[:-1], PERSONS[:, None], PERSONS * 1.0, np.array([None] * len(PERSONS)), both):
        with pytest.raises(ConfigError, match=r"persons must be a list of 58 whole numbers or of 58 texts"):
            rows_of(persons=wrong)


def test_a_schedule_takes_a_person_for_the_class_of_most_rows() -> None:
    x, y = np.eye(WIDTH)[[0, 1, 2, 3, 4]], [0, 1, 1, 2, 0]
    rows = Rows.of(x, y, Preparation(), classes=CLASSES, persons=[0, 0, 0, 1, 1])
    records = Records.of(rows, one_class=True)
    assert records.labels.tolist() == [1, 0], "a tie goes to the first class"
    assert np.allclose(records.x, [[0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 1]], atol=1e-6)
    every = Records.of(rows, one_class=False)
    assert np.allclose(every.x, [[1 / 3] * 3 + [0, 0], [0, 0, 0, 0.5, 0.5]], atol=1e-6)
    assert np.allclose(every.y, [[1 / 3, 2 / 3, 0], [0.5, 0, 0.5]], atol=1e-6)


def test_heads_and_synthesis_count_and_charge_persons(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y, persons = rng.normal(size=(60, WIDTH)), rng.integers(0, CLASSES, 60), np.repeat(np.arange(20), 3)
    for number, fit in enumerate((fit_head, synthesise)):
        ledger = Ledger(tmp_path / str(number), "ab" * 16)
        fitted = fit(x, y, BUDGET, classes=CLASSES, ledger=ledger, persons=persons)
        assert (fitted.n, fitted.unit, fitted.read_off) == (20, "person", ("n",))
        assert ledger.account().unit == "person"
        with pytest.raises(PrivacyError, match="protects persons"):
            fit(x, y, BUDGET, classes=CLASSES, ledger=ledger)
    with pytest.raises(PrivacyError, match="protects images"):
        ledger = new_ledger(tmp_path / "images", Budget(30.0, 1e-5))
        fit_head(x, y, BUDGET, classes=CLASSES, ledger=ledger, persons=persons)


def write_images(path: Path, *, same: bool = False, count: int = 900) -> str:
    """Digits as images of persons with three images each, and a test split."""
    x, y = digits()
    persons = np.arange(count) // 3
    arrays = {"train_images": x[:count].copy(), "train_labels": y[:count], "train_persons": persons}
    if same:
        arrays["train_images"][899] = arrays["train_images"][0]
    np.savez(path, **arrays, test_images=x[900:1100], test_labels=y[900:1100])
    return str(path)


@pytest.mark.parametrize("recipe", ["moments", "neuromix", "class-schedule"])
def test_a_release_states_the_unit_and_the_number_of_persons(recipe: str, tmp_path: Path, own_home: Path) -> None:
    source = write_images(tmp_path / "d.npz")
    prepared = prepare(source, small(recipe, unit="person", rank=0, delta=1e-6, rows=300))
    assert prepared.config.n == 300 and "number of persons" in prepared.read_off
    card = make(prepared, tmp_path / "out")
    assert card["unit"] == "person" and card["mechanism"]["record"] == A_PERSON
    assert card["adjacency"].startswith("zero-out") and not any("one image" in line for line in card["not_covered"])
    schema = json.loads((resources("dpvision.released.report") / "card.schema.json").read_text())
    jsonschema.validate(card, schema)
    app(["report", str(tmp_path / "out")], exit_on_error=False, print_error=False, result_action="return_value")
    again = json.loads((tmp_path / "out" / "card.json").read_text())
    assert (again["unit"], again["not_covered"]) == ("person", card["not_covered"])
    assert read_release(tmp_path / "out").settings.unit == "person"
    with pytest.raises(PrivacyError, match="protects persons"):
        make(replace(prepared, config=replace(prepared.config, unit="image")), tmp_path / "images")


@pytest.mark.parametrize("declared", [{"n": 300}, {"class_counts": (30,) * 10}, {"n": 300, "class_counts": (30,) * 10}])
def test_whatever_declares_the_number_of_persons_nothing_else_does(
    declared: dict[str, Any], tmp_path: Path, own_home: Path
) -> None:
    """With one person less, or with one image less of a person, the settings are the same."""
    given = {**declared, "unit": "person", "classes": 10, "objective": "balanced", "encoder": None, "rank": None}
    first, *others = (
        prepare(write_images(tmp_path / f"{count}.npz", count=count), small("moments", **given))
        for count in (900, 897, 899)
    )
    for other in others:
        assert (other.config, other.event(), other.read_off) == (first.config, first.event(), first.read_off)
    assert first.config.n == 300 and "300 units" in str(first.config.chosen_by)
    assert "number of persons" not in first.read_off


def test_persons_are_refused_before_a_charge(tmp_path: Path, own_home: Path) -> None:
    with pytest.raises(ConfigError, match="needs the person on each image"):
        prepare("digits", small("moments", unit="person"))
    with pytest.raises(DataError, match="appear more than once, under different persons"):
        prepare(write_images(tmp_path / "same.npz", same=True), small("moments", unit="person"))
    assert not (own_home / "ledgers").exists()


def test_a_file_of_features_may_name_persons(tmp_path: Path, own_home: Path, capsys: Any) -> None:
    x, y = digits()
    rows, persons = (x.reshape(len(x), -1) / 16).astype(np.float32), np.arange(900) // 3
    split = {"train_features": rows[:900], "train_labels": y[:900], "train_persons": persons}
    np.savez(tmp_path / "f.npz", **split, test_features=rows[900:], test_labels=y[900:])
    assert load_rows(tmp_path / "f.npz").train.persons is not None
    prepared = head_run.prepare(str(tmp_path / "f.npz"), Config(epsilon=8.0, unit="person", classes=10))
    assert prepared.config.n == 300 and "number of persons" in prepared.read_off
    words = ["train", str(tmp_path / "f.npz"), "--epsilon", "8", "--classes", "10"]
    app(
        [*words, "--unit", "person", "--out", str(tmp_path / "run")],
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert card["unit"] == "person" and card["public_facts"]["n"] == {"value": 300, "known": "read from the data"}
    capsys.readouterr()
    with pytest.raises(PrivacyError, match="protects persons"):
        app(
            [*words, "--out", str(tmp_path / "images")],
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    assert "a person with several images in this data is protected less" in capsys.readouterr().out
    np.savez(tmp_path / "wrong.npz", **(split | {"train_persons": persons[:-1]}))
    with pytest.raises(DataError, match="train_persons"):
        load_rows(tmp_path / "wrong.npz")


def test_an_estimator_takes_the_person_of_each_image(own_home: Path) -> None:
    x, y = digits()
    fitted = estimator(n=None).fit(x[:900], y[:900], persons=[f"p{i // 3}" for i in range(900)])
    assert fitted.card_["unit"] == "person" and fitted.card_["n"] == 300
    with pytest.raises(ConfigError, match="persons must be a list of 900"):
        estimator().fit(x[:900], y[:900], persons=np.arange(899))


def test_a_canary_of_several_images_shows_a_person_who_adds_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound release gives a canary of three rows what one row has; a sum of the rows in place of their mean is found."""
    trials = Trials(20, 40, CanaryRandom("persons"))
    runs = {
        "moments": lambda: moments_scores(2.0, trials, images=IMAGES),
        "mixtures": lambda: mixture_scores(Poisson(20.0, 20, 4), 3.0, trials, images=IMAGES),
    }
    for run in runs.values():
        scores = run()
        assert estimate(scores.without, scores.with_record, delta=1e-5).low < scores.mu * 1.02
    monkeypatch.setattr(Rows, "shares", property(lambda rows: np.where(rows.counted, 1.0, 0.0)))
    for run in runs.values():
        scores = run()
        assert estimate(scores.without, scores.with_record, delta=1e-5).low > scores.mu * 1.2
