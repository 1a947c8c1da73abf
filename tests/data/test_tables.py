"""Parquet files and Hugging Face data sets on disk."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpvision.data import check, load, pack
from dpvision.errors import DataError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
IMAGES = np.random.default_rng(0).integers(0, 256, (90, 6, 4), dtype=np.uint8)
NAMES = ["cat", "dog", "hen"]


def png(image: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "PNG")
    return out.getvalue()


def table(rows: range, *, named: bool = True, **columns: list[Any]) -> Any:
    """A table as the Hugging Face library writes it: a struct of bytes and path, and numbered labels with names."""
    images = [{"bytes": png(IMAGES[n]), "path": f"{n}.png"} for n in rows]
    made = pa.table({"image": images, "label": [n % 3 for n in rows], **columns})
    features = {"image": {"_type": "Image"}, "label": {"names": NAMES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return made.replace_schema_metadata(metadata) if named else made


def save_arrow(path: Path, rows: range) -> None:
    path.mkdir(parents=True)
    with pa.OSFile(str(path / "data-00000-of-00001.arrow"), "wb") as file:
        whole = table(rows)
        with pa.ipc.new_stream(file, whole.schema) as out:
            out.write_table(whole, max_chunksize=7)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))


def test_files_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    pq.write_table(table(range(40)), tmp_path / "set" / "data" / "train-00000-of-00002.parquet", row_group_size=16)
    pq.write_table(table(range(40, 70)), tmp_path / "set" / "data" / "train-00001-of-00002.parquet")
    pq.write_table(table(range(70, 90)), tmp_path / "set" / "data" / "validation-00000-of-00001.parquet")
    data = load(tmp_path / "set")
    assert data.classes == ("cat", "dog", "hen") and data.val is not None and data.test is None
    assert np.array_equal(data.train.images[..., 0], IMAGES[:70]) and np.array_equal(
        data.val.images[..., 0], IMAGES[70:]
    )
    assert data.train.labels.tolist() == [n % 3 for n in range(70)] and data.test_share is None
    assert check(tmp_path / "set").counts["val"] == {"cat": 6, "dog": 7, "hen": 7}


def test_one_file_without_a_split(tmp_path: Path) -> None:
    pq.write_table(table(range(90), named=False), tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet")
    assert data.test is not None and data.test_share == 0.2 and data.classes == ("0", "1", "2")
    assert len(data.train) + len(data.test) == 90 and len(data.test) > 5
    store = load(pack(tmp_path / "a.parquet", tmp_path / "store"))
    assert np.array_equal(store.train.images, data.train.images)


def test_columns_persons_and_a_split_column(tmp_path: Path) -> None:
    rows = range(90)
    splits = ["test" if n % 9 == 8 else "train" for n in rows]
    made = pa.table(
        {
            "img": [png(IMAGES[n]) for n in rows],
            "fine": [NAMES[n % 3] for n in rows],
            "who": [n // 2 for n in rows],
            "split": splits,
        }
    )
    pq.write_table(made, tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet", columns="label=fine,person=who")
    assert data.test is not None and len(data.test) == 10 and data.test.persons is not None
    assert np.array_equal(data.test.images[..., 0], IMAGES[8::9]) and data.train.persons is not None
    assert len(np.unique(np.concatenate([data.train.persons, data.test.persons]))) == 45
    with pytest.raises(
        DataError, match=r"no column 'label'; its columns are img, fine, who, split\. Fix: use --columns label="
    ):
        load(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="cannot have the columns 'x'"):
        load(tmp_path / "a.parquet", columns="x")


def test_a_person_is_the_same_in_every_file_and_split(tmp_path: Path) -> None:
    """Whatever the order in which a file names its persons, as numbers or as text, with spaces around them or not."""
    draw, who = np.random.default_rng(0), [f"patient {n // 9}" for n in range(90)]
    order = draw.permutation(90).tolist()
    for text in (True, False):
        folder = tmp_path / str(text)
        folder.mkdir()
        files = {"train-00000-of-00002": order[:40], "train-00001-of-00002": order[40:70], "test-00000": order[70:]}
        for name, rows in files.items():
            persons = [f"{' ' * (n % 3)}{who[n]}{' ' * (n % 2)}" if text else n // 9 for n in rows]
            made = pa.table(
                {"image": [png(IMAGES[n]) for n in rows], "label": [n % 3 for n in rows], "person": persons}
            )
            pq.write_table(made, folder / f"{name}.parquet", row_group_size=16)
        data = load(folder)
        assert data.test is not None and data.train.persons is not None and data.test.persons is not None
        results = np.concatenate([data.train.persons, data.test.persons]).tolist()
        assert len({*zip(results, (who[n] for n in order), strict=True)}) == len({*results}) == len({*who}) == 10
        assert check(folder).persons == len({who[n] for n in order[:70]})


def test_one_person_cannot_have_two_names_by_types(tmp_path: Path) -> None:
    """Number 1 as 1.0 in another file, or as bytes, would be a second person."""
    for kind, persons in (("float", [n // 9 / 1.0 for n in range(40)]), ("bytes", [b"1"] * 40), ("bool", [True] * 40)):
        path = tmp_path / f"{kind}.parquet"
        pq.write_table(table(range(40), person=persons), path)
        with pytest.raises(DataError, match=f"a person of type {kind} in row 0"):
            load(path)
    for n, name in enumerate(("M\u00fcller", "Mu\u0308ller")):  # one name, composed and decomposed
        (tmp_path / "names").mkdir(exist_ok=True)
        rows = range(40 * n, 40 * n + 40)
        pq.write_table(table(rows, person=[name] * 40), tmp_path / "names" / f"train-{n}.parquet")
    persons = load(tmp_path / "names").train.persons
    assert persons is not None and set(persons.tolist()) == {0}
    (tmp_path / "set").mkdir()
    pq.write_table(table(range(40), person=[n // 9 for n in range(40)]), tmp_path / "set" / "train-0.parquet")
    pq.write_table(table(range(40, 90)), tmp_path / "set" / "train-1.parquet")
    with pytest.raises(DataError, match="with a column of persons and files without one"):
        load(tmp_path / "set")


def test_data_sets_saved_to_disk(tmp_path: Path) -> None:
    save_arrow(tmp_path / "one", range(60))
    assert load(tmp_path / "one", test_share=0).train.labels.tolist() == [n % 3 for n in range(60)]
    save_arrow(tmp_path / "many" / "train", range(60))
    save_arrow(tmp_path / "many" / "test", range(60, 90))
    (tmp_path / "many" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = load(tmp_path / "many")
    assert data.test is not None and np.array_equal(data.test.images[..., 0], IMAGES[60:])
    state = {"_data_files": [{"filename": "x"}], "_indices_files": [{"filename": "y"}]}
    (tmp_path / "one" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match="flatten_indices"):
        load(tmp_path / "one")


def test_broken_rows_are_named_and_left_out(tmp_path: Path) -> None:
    made = table(range(9)).to_pylist()
    made[2]["image"]["bytes"], made[5]["image"]["bytes"] = None, made[5]["image"]["bytes"][:40]
    pq.write_table(pa.Table.from_pylist(made), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 2: has no image\. Fix: .* 2 files are broken"):
        load(tmp_path / "a.parquet")
    data = load(tmp_path / "a.parquet", skip_broken=True, test_share=0)
    assert [broken.path for broken in data.broken] == ["a.parquet, row 2", "a.parquet, row 5"]
    assert np.array_equal(data.train.images[..., 0], IMAGES[[0, 1, 3, 4, 6, 7, 8]])


@pytest.mark.parametrize("column", [[1.5], [None], [[1]], [""]])
def test_labels_that_are_none(tmp_path: Path, column: list[Any]) -> None:
    made = pa.table({"image": [png(IMAGES[0])] * 2, "label": column * 2})
    pq.write_table(made, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: .*label in row 0 .* Fix: "):
        load(tmp_path / "a.parquet")


def test_a_column_of_arrays_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": IMAGES[:4, 0].tolist(), "label": [0, 1, 0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"the column 'image' of type list.* Fix: store the bytes of PNG"):
        load(tmp_path / "a.parquet")


def test_damaged_tables_are_refused_by_name(tmp_path: Path) -> None:
    pq.write_table(table(range(30)), tmp_path / "good.parquet")
    good = (tmp_path / "good.parquet").read_bytes()
    draw, refused = np.random.default_rng(1), 0
    for number in range(80):
        hurt = bytearray(good)
        if number % 4 == 0:
            hurt = hurt[: int(draw.integers(len(good)))]
        else:
            hurt[int(draw.integers(len(good) - 3000, len(good)))] ^= 1 << int(draw.integers(8))
        path = tmp_path / "bad.parquet"
        path.write_bytes(bytes(hurt))
        try:
            load(path)
        except DataError as exc:
            refused += 1
            assert str(exc).startswith(str(path))
    assert refused > 30


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(range(9)), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pyarrow is not installed\. Fix: run pip install 'dpvision\[parquet\]'"):
        load(tmp_path / "a.parquet")
