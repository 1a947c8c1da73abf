"""Figures by group: only when asked for, never about a few patients, and not to be found by subtraction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpvision.data import load
from dpvision.errors import DataError
from dpvision.models.inputs import Predictions
from dpvision.models.tasks import Task
from dpvision.released.groups import LEAST, choose_shown, measure_groups


def _measure(groups: Any, labels: Any, persons: Any = None, kind: str = "classes", classes: int = 2) -> dict[str, Any]:
    labels, groups = np.asarray(labels), np.asarray(groups, dtype=object)
    rng = np.random.default_rng(0)
    chances = rng.random((len(labels), classes))
    answers = (chances > 0.5).astype(np.int64) if kind == "labels" else chances.argmax(1)
    return measure_groups(Predictions(answers, chances, chances), labels, Task(kind, classes), groups, persons)


def _shown(figures: dict[str, Any]) -> set[tuple[str, int]]:
    return {(cell["group"], cell["class"]) for cell in figures["cells"]}


def test_large_groups_are_shown_with_their_recall_and_auroc() -> None:
    figures = _measure(["f", "m"] * 100, [0, 0, 1, 1] * 50)
    assert _shown(figures) == {(g, c) for g in "fm" for c in (0, 1)} and not figures["hidden"]
    assert all(cell["present"][0] == 50 and cell["auroc"] is not None for cell in figures["cells"])


def test_a_group_of_one_patient_is_never_named() -> None:
    groups = ["f"] * 100 + ["m"] * 100 + ["the only X"]
    figures = _measure(groups, [0, 1] * 100 + [0])
    assert "the only X" not in json.dumps(figures) and figures["hidden"]
    # With X hidden alone, its images were the total minus the others: a second group is hidden, for its class.
    assert len({group for group, number in _shown(figures) if number == 0}) == 1
    assert {group for group, number in _shown(figures) if number == 1} == {"f", "m"}


def test_many_images_of_one_person_are_one_unit() -> None:
    groups, labels = ["a"] * 60 + ["b"] * 60, [0, 1] * 60
    alone = np.concatenate([np.zeros(60), np.arange(1, 61)])
    assert "a" not in {group for group, _ in _shown(_measure(groups, labels, alone))}
    assert _shown(_measure(groups, labels, np.arange(120))) == {(g, c) for g in "ab" for c in (0, 1)}


@pytest.mark.parametrize("seed", range(30))
def test_hidden_figures_are_of_enough_units_together(seed: int) -> None:
    """Whatever the sizes: subtracting all shown groups from a total leaves nobody, or at least LEAST units."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 60, rng.integers(1, 6))
    units = np.repeat(np.arange(sizes.sum()), 1)
    places = np.repeat(np.arange(len(sizes)), sizes)
    sides = [[places == place] for place in range(len(sizes))]
    shown = choose_shown(sides, units, [np.zeros(len(units), dtype=bool)])
    assert all(size >= LEAST for size, is_shown in zip(sizes, shown, strict=True) if is_shown)
    hidden = sum(size for size, is_shown in zip(sizes, shown, strict=True) if not is_shown)
    assert hidden == 0 or hidden >= LEAST or not any(shown)


def test_both_sides_of_a_label_need_enough_units() -> None:
    labels = np.zeros((200, 2), dtype=np.int64)
    labels[:, 0] = np.arange(200) % 2
    labels[:3, 1] = 1  # three patients have the second label, two of them in one group
    figures = _measure(["f", "f", "m", "m"] * 50, labels, kind="labels")
    assert _shown(figures) == {("f", 0), ("m", 0)} and figures["hidden"]


def test_an_auroc_compares_shown_classes_only() -> None:
    """Otherwise its denominator would give the number of images in a hidden cell."""
    labels, groups = [0] * 40 + [1] * 30 + [2], ["a"] * 71
    labels, groups = labels + [0] * 60 + [1] * 60 + [2] * 19, groups + ["b"] * 139
    rng = np.random.default_rng(0)
    scores = rng.random((len(labels), 3))
    shown = {(c["group"], c["class"]): c["auroc"] for c in _measured(scores, labels, groups)["cells"]}
    assert set(shown) == {(g, c) for g in "ab" for c in (0, 1)}
    hidden = np.asarray(labels) == 2
    scores[hidden] = rng.random((int(hidden.sum()), 3)) * [3, -3, 1]
    again = {(c["group"], c["class"]): c["auroc"] for c in _measured(scores, labels, groups)["cells"]}
    assert again == shown


def test_a_group_for_each_image_takes_no_time() -> None:
    figures = _measure([str(number) for number in range(20_000)] + ["a"] * 50, [0, 1] * 10_025)
    assert {group for group, _ in _shown(figures)} == {"a"} and figures["hidden"]


def _measured(scores: Any, labels: list[int], groups: list[str]) -> dict[str, Any]:
    predictions = Predictions(np.zeros(len(labels), dtype=np.int64), scores, scores)
    return measure_groups(predictions, np.array(labels), Task("classes", 3), np.asarray(groups, dtype=object), None)


def _folder(path: Path) -> Path:
    path.mkdir()
    lines = ["path,label,split,group,sex"]
    for number in range(8):
        Image.fromarray(np.full((3, 3), 30 * number, np.uint8)).save(path / f"{number}.png")
        lines.append(
            f"{number}.png,{number % 2},{'test' if number > 3 else 'train'},patient {number},{'fm'[number % 2]}"
        )
    (path / "list.csv").write_text("\n".join(lines) + "\n")
    return path / "list.csv"


def test_a_column_named_group_is_never_read_unless_it_is_named(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source = _folder(tmp_path / "csv")
    image = (source.parent / "1.png").read_bytes()
    images = [(source.parent / f"{n}.png").read_bytes() for n in range(4)]
    assert image
    columns = {"image": images, "label": [0, 1, 0, 1], "split": ["train", "train", "test", "test"]}
    parquet.write_table(pyarrow.table({**columns, "group": list("abcd")}), tmp_path / "t.parquet")
    data = load(tmp_path / "t.parquet")
    assert all(part.groups is None for part in data.splits.values())
    asked = load(tmp_path / "t.parquet", group="group")
    assert asked.train.groups is None and asked.test is not None and asked.test.groups is not None
    assert asked.test.groups.tolist() == ["c", "d"]
    arrays: dict[str, Any] = {f"{s}_images": np.zeros((2, 3, 3), np.uint8) + i for i, s in enumerate(("train", "test"))}
    arrays |= {f"{s}_labels": np.array([0, 1]) for s in ("train", "test")}
    np.savez(tmp_path / "a.npz", **arrays, test_group=np.array(["x", "y"]), test_sex=np.array([0, 1]))
    assert all(part.groups is None for part in load(tmp_path / "a.npz").splits.values())
    test = load(tmp_path / "a.npz", group="sex").test
    assert test is not None and test.groups is not None and test.groups.tolist() == ["0", "1"]


def test_a_column_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    source = _folder(tmp_path / "csv")
    (source.parent / "other.csv").write_text("path,label,split\n0.png,0,train\n1.png,1,test\n")
    with pytest.raises(DataError, match="no column 'site' of groups"):
        load(source.parent / "other.csv", group="site")
    with pytest.raises(DataError, match=r"unknown column 'group'.*use --group group"):
        load(source, group="sex")  # other columns are still refused
    for reserved in ("label", "split", "path", " "):
        with pytest.raises(DataError, match="cannot have groups in the column"):
            load(source, group=reserved)
    with pytest.raises(DataError, match="no column of groups"):
        load("digits", group="sex")
