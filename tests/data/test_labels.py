"""Several labels per image, and grades: what is read, what is refused, and what is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.nn import Identity

from dpvision.data import Split, check, identify, load, load_rows, pack
from dpvision.errors import DataError
from dpvision.released.model import Model


def _npz(path: Path, labels: Any, **more: Any) -> Path:
    np.savez(path, train_images=np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3), train_labels=labels, **more)
    return path


def _csv(folder: Path, text: str) -> Path:
    for number in range(4):
        Image.fromarray(np.full((3, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    (folder / "list.csv").write_text(text)
    return folder / "list.csv"


UNKNOWN = [[1.0, 0.0], [np.nan, 1.0], [-1.0, -1.0], [0.0, 1.0]]


def test_an_npz_has_one_column_per_label(tmp_path: Path) -> None:
    data = load(_npz(tmp_path / "a.npz", np.array(UNKNOWN)), classes=["edema", "mass"], task="labels")
    assert data.task == "labels" and data.classes == ("edema", "mass") and data.train.labels.dtype == np.int8
    assert data.train.labels.tolist() == [[1, 0], [-1, 1], [-1, -1], [0, 1]]
    inferred = load(tmp_path / "a.npz", task="labels")
    assert inferred.classes == ("0", "1") and "classes" in inferred.inferred and "classes" not in data.inferred
    whole = load(_npz(tmp_path / "b.npz", np.array([[1], [0], [1], [0]], np.uint8)), task="labels")
    assert whole.train.labels.shape == (4, 1)
    other = load(_npz(tmp_path / "c.npz", np.array([[1, 0], [0, 1], [0, 0], [0, 1]])), task="labels")
    assert identify(other.train)[0] == identify(data.train)[0] and identify(other.train)[1] != identify(data.train)[1]


def test_a_cell_names_the_labels_that_are_on(tmp_path: Path) -> None:
    path = _csv(tmp_path, "path,label\n0.png,edema|mass\n1.png,\n2.png,?\n3.png,mass | ?edema\n")
    data = load(path, task="labels", classes=["mass", "edema", "other"])
    assert data.train.labels.tolist() == [[1, 1, 0], [0, 0, 0], [-1, -1, -1], [1, -1, 0]]
    assert load(path, task="labels").classes == ("edema", "mass")
    assert check(path, task="labels").counts["train"] == {"edema": 1, "mass": 2}


def test_declared_labels_may_have_a_column_each(tmp_path: Path) -> None:
    path = _csv(tmp_path, "path,Edema,Mass,person\n0.png,1,0.0,a\n1.png,,1,b\n2.png,-1,nan,c\n3.png,0,1.0,d\n")
    data = load(path, task="labels", classes=["Edema", "Mass"])
    assert data.train.labels.tolist() == [[1, 0], [-1, 1], [-1, -1], [0, 1]] and data.train.persons is not None
    with pytest.raises(DataError, match="has no columns path and label"):
        load(path, task="labels")


@pytest.mark.parametrize("name", ["person", "Split", "patient_id"])
def test_a_label_column_is_never_the_person_or_the_split(name: str, tmp_path: Path) -> None:
    path = _csv(tmp_path, f"path,{name},dog\n0.png,1,0\n1.png,0,1\n2.png,1,1\n3.png,0,0\n")
    with pytest.raises(DataError, match=f"a column of its own for the label {name!r}.*Fix: rename"):
        load(path, task="labels", classes=[name, "dog"])
    cells = _csv(tmp_path, f"path,label\n0.png,{name}\n1.png,dog\n2.png,{name}|dog\n3.png,\n")
    assert load(cells, task="labels").train.persons is None


@pytest.mark.parametrize("name", ["Person", "PATIENT_ID"])
def test_persons_of_a_table_are_found_in_any_case(name: str, tmp_path: Path) -> None:
    """Else several images of one patient would count as units, and be shown as a group."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    _csv(tmp_path, "")
    images = [(tmp_path / f"{n}.png").read_bytes() for n in range(4)]
    columns = {"image": images, "label": ["a", "b", "a", "b"], name: ["x", "x", "y", "z"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    persons = load(tmp_path / "a.parquet", test_share=0).train.persons
    assert persons is not None and len(np.unique(persons)) == 3
    with pytest.raises(DataError, match=r"uses the column 'label' twice.*Fix: use --columns"):
        load(tmp_path / "a.parquet", test_share=0, columns="person=label")
    parquet.write_table(pyarrow.table({**columns, name.lower(): columns[name]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"has the columns.*Fix: use --columns person=NAME"):
        load(tmp_path / "b.parquet", test_share=0)


def test_a_model_leaves_out_broken_files_as_its_run_did(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((3, 3), ord(name), np.uint8)).save(tmp_path / name / "1.png")
    (tmp_path / "a" / "2.png").write_bytes(b"nope")
    model = Model(Identity(), (1, 3, 3), ("a", "b"), reading={"rule": 2, "test_share": 0, "skip_broken": True})
    assert len(model.load(str(tmp_path), size=None).train) == 2
    with pytest.raises(DataError, match=r"2\.png"):
        Model(Identity(), (1, 3, 3), ("a", "b"), reading={"rule": 2, "test_share": 0}).load(str(tmp_path), size=None)


def test_two_labels_are_not_a_label_and_a_person() -> None:
    images = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2, 1)
    one, two = np.array([0, 1]), np.array([1, 0])
    flat = np.concatenate([one, two])
    with_person = identify(Split(images, flat[:2], flat[2:]))[1]
    assert with_person != identify(Split(images, flat.reshape(2, 2), None))[1]


def test_a_table_has_a_list_or_columns(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    _csv(tmp_path, "")
    images = [(tmp_path / f"{n}.png").read_bytes() for n in range(4)]
    lists = pyarrow.table({"image": images, "label": [["a", "b"], [], ["b"], ["?a"]]})
    parquet.write_table(lists, tmp_path / "lists.parquet")
    options: dict[str, Any] = {"task": "labels", "test_share": 0}
    assert load(tmp_path / "lists.parquet", **options).train.labels.tolist() == [[1, 1], [0, 0], [0, 1], [-1, 0]]
    columns = pyarrow.table({"image": images, "a": [1, 0, None, -1], "b": [True, False, None, True]})
    parquet.write_table(columns, tmp_path / "columns.parquet")
    found = load(tmp_path / "columns.parquet", classes=["a", "b"], **options).train.labels
    assert found.tolist() == [[1, 1], [0, 0], [-1, -1], [-1, 1]]
    numbers = pyarrow.table({"image": images, "label": [3, 1, 0, 2]})
    parquet.write_table(numbers, tmp_path / "numbers.parquet")
    with pytest.raises(DataError, match="neither a list nor a text"):
        load(tmp_path / "numbers.parquet", **options)


def test_a_packed_store_keeps_them(tmp_path: Path) -> None:
    store = pack(_npz(tmp_path / "a.npz", np.array(UNKNOWN)), tmp_path / "store", classes=["x", "y"], task="labels")
    data = load(store, task="labels")
    assert data.classes == ("x", "y") and data.train.labels.tolist() == [[1, 0], [-1, 1], [-1, -1], [0, 1]]
    with pytest.raises(DataError, match="packed with --task labels"):
        load(store)


HOSTILE: dict[str, tuple[Any, str]] = {
    "out of range": (np.array([[2, 0]] * 4), "other than 1, 0"),
    "infinite": (np.array([[np.inf, 0]] * 4), "other than 1, 0"),
    "10,000 labels": (np.zeros((4, 10_000), np.int8), "1 to 1,000 labels"),
    "no label": (np.zeros((4, 0), np.int8), "1 to 1,000 labels"),
    "one number each": (np.zeros(4, np.int8), "1 to 1,000 labels"),
    "three axes": (np.zeros((4, 2, 2), np.int8), "1 to 1,000 labels"),
    "too few": (np.zeros((3, 2), np.int8), "for 4 images"),
    "text": (np.array([["a", "b"]] * 4), "of type"),
    "complex": (np.array([[1j, 0]] * 4), "not a plain number"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_arrays_are_refused(tmp_path: Path, what: str) -> None:
    labels, message = HOSTILE[what]
    with pytest.raises(DataError, match=message):
        load(_npz(tmp_path / "a.npz", labels), task="labels")


def test_splits_must_have_the_same_labels(tmp_path: Path) -> None:
    test = {"test_images": np.zeros((1, 3, 3), np.uint8), "test_labels": np.zeros((1, 3), np.int8)}
    with pytest.raises(DataError, match="2 labels in train and 3 labels in test"):
        load(_npz(tmp_path / "a.npz", np.array(UNKNOWN), **test), task="labels")
    with pytest.raises(DataError, match="2 labels per image, but 3 are declared"):
        load(_npz(tmp_path / "b.npz", np.array(UNKNOWN)), task="labels", classes=3)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("a|a", "stated twice"),
        ("a|?a", "stated twice"),
        ("a||b", "one of which is empty"),
        ("?|a", "stated twice"),
        ("|".join(f"n{i}" for i in range(1001)), "1 to 1,000 labels"),
        ("\x07", "a class named"),
    ],
)
def test_hostile_cells_are_refused(tmp_path: Path, cells: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(_csv(tmp_path, f"path,label\n0.png,{cells}\n1.png,b\n"), task="labels")


def test_ragged_or_unreadable_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 3 has 2 fields"):
        load(_csv(tmp_path, "path,a,b\n0.png,1,0\n1.png,1\n"), task="labels", classes=["a", "b"])
    with pytest.raises(DataError, match="line 2 has 'maybe' for the label 'a'"):
        load(_csv(tmp_path, "path,a,b\n0.png,maybe,0\n"), task="labels", classes=["a", "b"])
    with pytest.raises(DataError, match="neither a column label nor one named 'b'"):
        load(_csv(tmp_path, "path,a\n0.png,1\n"), task="labels", classes=["a", "b"])
    with pytest.raises(DataError, match="in test, has the class 'c'"):
        load(_csv(tmp_path, "path,label,split\n0.png,a|b,train\n1.png,c,test\n"), task="labels", classes=["a", "b"])
    for name in ("a|b", "?a"):
        with pytest.raises(DataError, match="use a name without"):
            load("digits", task="labels", classes=[name, "c"])


def test_one_label_per_image_is_not_several(tmp_path: Path) -> None:
    for cls in ("a", "b"):
        (tmp_path / "photos" / cls).mkdir(parents=True)
        Image.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "photos" / cls / "1.png")
    with pytest.raises(DataError, match="is a folder of classes"):
        load(tmp_path / "photos", task="labels")
    with pytest.raises(DataError, match="one label per image"):
        load("digits", task="labels")
    with pytest.raises(DataError, match="Fix: train on it with --task labels"):
        load(_npz(tmp_path / "a.npz", np.array(UNKNOWN)))
    with pytest.raises(DataError, match="the task 'colours'"):
        load("digits", task="colours")


def test_the_order_of_grades_is_declared_or_numeric(tmp_path: Path) -> None:
    path = _csv(tmp_path, "path,label\n0.png,none\n1.png,mild\n2.png,severe\n3.png,mild\n")
    with pytest.raises(DataError, match="their order is not known"):
        load(path, task="grades")
    data = load(path, task="grades", classes=["none", "mild", "severe"])
    assert data.task == "grades" and data.train.labels.tolist() == [0, 1, 2, 1]
    numbers = _csv(tmp_path, "path,label\n0.png,2\n1.png,10\n2.png,0\n3.png,2\n")
    assert load(numbers, task="grades").classes == ("0", "2", "10")
    with pytest.raises(DataError, match="2 to 100"):
        load("digits", task="grades", classes=101)


def test_rows_of_features_have_labels_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", train_features=np.ones((4, 3), np.float32), train_labels=np.array(UNKNOWN))
    assert load_rows(tmp_path / "f.npz", task="labels").train.labels.shape == (4, 2)
    with pytest.raises(DataError, match="several labels per image"):
        load_rows(tmp_path / "f.npz")
