"""A released folder: anyone reads it with numpy and safetensors alone, and a hostile one is refused, whatever is in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dpvision.errors import ConfigError, DataError
from dpvision.private.features import public_map
from dpvision.private.features.public_map import features_of, read_preparation
from dpvision.private.statistics.release import Encoded, prepare
from dpvision.released import folder as folders
from dpvision.released.folder import create_folder, read_rows, read_schema, write_rows
from dpvision.settings.release import Release
from tests.private.statistics.releases.small import IMAGES, RANK, made, sharing, small

SETTINGS: dict[str, Release] = {
    "moments": small("moments", budget=1000.0),
    "neuromix": small("neuromix", rows=70),
    "class-schedule": small("class-schedule", rows=200),
    "as they are": small("neuromix", rows=70, rank=0, encoder="pixels"),
    "bounded": small("neuromix", rows=70, rank=0, bound=3.5),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folder") / "home"


@pytest.fixture(scope="module")
def released(maps: Path, home: Path) -> dict[str, Path]:
    with sharing(maps, home):
        for name, settings in SETTINGS.items():
            made(home.parent / name, settings)
    return {name: home.parent / name for name in SETTINGS}


@pytest.fixture
def copied(released: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(released["neuromix"], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", SETTINGS)
def test_the_readme_reads_it_without_dpvision(name: str, released: dict[str, Path]) -> None:
    text = (released[name] / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, flags=re.S)[0]
    assert len(code.strip().splitlines()) == 5
    code = (
        "import sys\nsys.modules['dpvision'] = None\n"  # an import of it fails
        f"{code}\nprint(features.shape, features.dtype, labels.shape, labels.dtype, np.isfinite(features).all())\n"
        "assert not {'torch', 'dpvision.errors'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=released[name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    schema = json.loads((released[name] / "schema.json").read_text())
    rows, width = SETTINGS[name].rows, RANK if SETTINGS[name].rank else 64
    assert (schema["rows"], schema["width"]) == (rows, width)
    labels = f"({rows},) int64" if name in ("moments", "class-schedule") else f"({rows}, 10) float32"
    assert done.stdout.strip() == f"({rows}, {width}) float32 {labels} True"
    assert schema["labels"]["dtype"] in labels and len(schema["classes"]) == 10
    features, result = read_rows(released[name])
    assert f"{features.shape} {features.dtype} {result.shape} {result.dtype}" == f"({rows}, {width}) float32 {labels}"


def test_the_readme_of_moments_classifies_by_them_without_dpvision(
    released: dict[str, Path], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(home))
    save_file(features_of(released["moments"], "digits"), tmp_path / "test.safetensors")
    read, use = re.findall(r"```python\n(.*?)```", (released["moments"] / "README.md").read_text(), flags=re.S)
    test = f"test = load_file({str(tmp_path / 'test.safetensors')!r})\nfeatures = test['features']\n"
    code = f"{read}{test}{use}print((guess == test['labels']).mean())"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=released["moments"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    card = json.loads((released["moments"] / "card.json").read_text())
    assert abs(float(done.stdout) - card["accuracy"]["linear discriminant of the moments"]) < 0.03


@pytest.mark.parametrize("name", SETTINGS)
def test_the_readme_names_each_file(name: str, released: dict[str, Path]) -> None:
    text = (released[name] / "README.md").read_text()
    for file in released[name].iterdir():
        assert re.sub(r"\d{5}", "*", file.name) in text or file.name == "README.md"
    assert ("map.safetensors" in text) == (released[name] / "map.safetensors").exists()
    assert ("moments.safetensors" in text) == (name == "moments")


def test_what_is_in_it(released: dict[str, Path]) -> None:
    always = {"README.md", "card.json", "card.md", "report.html", "rows-00000.safetensors", "schema.json"}
    assert {p.name for p in released["as they are"].iterdir()} == always
    assert {p.name for p in released["neuromix"].iterdir()} == always | {"map.safetensors"}
    assert {p.name for p in released["moments"].iterdir()} == always | {"map.safetensors", "moments.safetensors"}
    for folder in released.values():
        assert folder.stat().st_mode & 0o777 == 0o755 and all(
            p.stat().st_mode & 0o444 == 0o444 for p in folder.iterdir()
        )


@pytest.mark.parametrize("name", SETTINGS)
def test_features_of_the_private_images_are_those_that_were_used(
    name: str, released: dict[str, Path], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: what others get for their images is what the release was made of."""
    monkeypatch.setenv("DPVISION_HOME", str(home))
    monkeypatch.setattr(public_map, "IMAGES", IMAGES)
    encoded = Encoded(prepare("digits", SETTINGS[name]))
    features = features_of(released[name], "digits", split="train")
    assert features["features"].dtype == np.float32 and np.array_equal(features["features"], encoded.rows.x)
    assert np.array_equal(features["labels"], encoded.rows.labels)
    assert encoded.test is not None
    assert np.array_equal(features_of(released[name], "digits")["features"], encoded.test[0])


def test_features_that_can_not_be_had(released: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no val split\. Fix: use --split train or test"):
        features_of(released["bounded"], "digits", split="val")
    with pytest.raises(ConfigError, match="has no weights"):
        features_of(released["bounded"], "digits", weights=tmp_path / "w.safetensors")
    np.savez(tmp_path / "a.npz", train_images=np.zeros((4, 8, 8, 3), np.uint8), train_labels=np.arange(4))
    with pytest.raises(DataError):
        features_of(released["bounded"], str(tmp_path / "a.npz"), split="train")


def _json(name: str, **values: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        for key, value in values.items():
            place, inside = content, key.split("__")
            for part in inside[:-1]:
                place = place[part]
            if value is ...:
                del place[inside[-1]]
            else:
                place[inside[-1]] = value
        (folder / name).write_text(json.dumps(content))

    return write


def _text(name: str, text: str | bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode()) and None


def _arrays(name: str, **values: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        loaded = {**load_file(folder / name), **values}
        save_file({k: np.ascontiguousarray(v) for k, v in loaded.items() if v is not None}, folder / name)

    return write


def _cut(name: str, length: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:length]) and None


def _removed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _large(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with open(folder / name, "r+b") as file:
            file.truncate(
                folders.MAX_ARRAYS + 1 if name.endswith("safetensors") else (1 << 24) + 1
            )  # a hole, not a disk full

    return write


def _a_little_larger(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with open(folder / name, "r+b") as file:
            file.truncate((1 << 17) + (folder / name).stat().st_size)

    return write


def _two_kinds(folder: Path) -> None:
    _json("schema.json", files=[ROWS, "rows-00001.safetensors"], rows=140)(folder)
    shutil.copy(folder / ROWS, folder / "rows-00001.safetensors")
    _arrays("rows-00001.safetensors", features=NARROW)(folder)


ROWS, NARROW = "rows-00000.safetensors", np.zeros((70, 3), np.float32)
HOSTILE_SCHEMAS = {
    "no schema": _removed("schema.json"),
    "not JSON": _text("schema.json", "{"),
    "not text": _text("schema.json", b"\xff\xfe\x00"),
    "deep": _text("schema.json", "[" * 100_000),
    "a list": _text("schema.json", "[]"),
    "a number": _text("schema.json", "3"),
    "long number": _text("schema.json", '{"rows": ' + "9" * 10_000 + "}"),
    "large": _large("schema.json"),
    "another format": _json("schema.json", format="dpvision-release-2"),
    "path out": _json("schema.json", files=["../rows-00000.safetensors"]),
    "path out behind": _json("schema.json", files=["rows-x/../../../etc/passwd"]),
    "absolute": _json("schema.json", files=["/etc/passwd"]),
    "other name": _json("schema.json", files=["map.safetensors"]),
    "names that are none": _json("schema.json", files=[3]),
    "names in a text": _json("schema.json", files=ROWS),
    "no names": _json("schema.json", files=[]),
    "no list of names": _json("schema.json", files=...),
    "name with a NUL": _json("schema.json", files=["rows-\0"]),
    "not there": _json("schema.json", files=["rows-00007.safetensors"]),
    "twice": _json("schema.json", files=[ROWS, ROWS]),
    "more rows": _json("schema.json", rows=71),
    "rows in words": _json("schema.json", rows="70"),
    "rows true": _json("schema.json", rows=True),
    "no rows": _json("schema.json", rows=-70),
    "other width": _json("schema.json", width=3),
    "no classes": _json("schema.json", classes=...),
    "classes in words": _json("schema.json", classes="ten"),
    "classes that are none": _json("schema.json", classes=[{}]),
    "fewer classes": _json("schema.json", classes=["a"]),
}
HOSTILE_ROWS = {
    "cut": _cut(ROWS, 1000),
    "cut in the header": _cut(ROWS, 12),
    "empty": _cut(ROWS, 0),
    "header too long": _text(ROWS, b"\xff" * 64),
    "large": _large(ROWS),
    "narrow": _arrays(ROWS, features=NARROW),
    "one dimension": _arrays(ROWS, features=np.zeros(70, np.float32)),
    "no dimension": _arrays(ROWS, features=np.float32(1)),
    "three dimensions": _arrays(ROWS, features=np.zeros((70, RANK, 1), np.float32)),
    "other numbers": _arrays(ROWS, features=np.zeros((70, RANK), np.int64)),
    "labels too few": _arrays(ROWS, labels=np.zeros((69, 10), np.float32)),
    "labels too narrow": _arrays(ROWS, labels=np.zeros((70, 9), np.float32)),
    "labels of another kind": _arrays(ROWS, labels=np.zeros((70,), np.uint8)),
    "no labels": _arrays(ROWS, labels=None),
    "two widths": _two_kinds,
}
HOSTILE_CARDS = {
    "no card": _removed("card.json"),
    "not JSON": _text("card.json", "nonsense"),
    "deep": _text("card.json", '{"a":' * 100_000),
    "a list": _text("card.json", "[1]"),
    "large": _large("card.json"),
    "no features": _json("card.json", features=...),
    "features in a text": _json("card.json", features="pixels"),
    "encoder of another kind": _json("card.json", features__encoder=["pixels"]),
    "weights of another kind": _json("card.json", features__weights=3),
    "no config": _json("card.json", config=[]),
    "no shape": _json("card.json", image_shape=...),
    "two sides": _json("card.json", image_shape=[8, 8]),
    "infinite side": _json("card.json", image_shape=[float("inf"), 8, 1]),
    "side in words": _json("card.json", image_shape=["8", 8, 1]),
    "side below 0": _json("card.json", image_shape=[-8, 8, 1]),
    "no such side": _json("card.json", image_shape=[10**12, 10**12, 1]),
    "no such channels": _json("card.json", image_shape=[8, 8, 2]),
    "other side": _json("card.json", image_shape=[9, 8, 1]),
}
HOSTILE_MAPS = {
    "NaN": _arrays("map.safetensors", mean=np.full(64, np.nan)),
    "infinite": _arrays("map.safetensors", matrix=np.full((64, RANK), np.inf)),
    "no mean": _arrays("map.safetensors", mean=None),
    "short mean": _arrays("map.safetensors", mean=np.zeros(63)),
    "short matrix": _arrays("map.safetensors", matrix=np.zeros((63, RANK))),
    "one dimension": _arrays("map.safetensors", matrix=np.zeros(64)),
    "other rank": _arrays("map.safetensors", matrix=np.zeros((64, RANK - 1))),
    "cut": _cut("map.safetensors", 200),
    "none": _removed("map.safetensors"),
    "large": _large("map.safetensors"),
}


@pytest.mark.parametrize("kind", HOSTILE_SCHEMAS)
def test_hostile_schemas(kind: str, copied: Path) -> None:
    HOSTILE_SCHEMAS[kind](copied)
    with pytest.raises(DataError):
        read_rows(copied)


def test_files_larger_than_the_schema_allows_are_not_read(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hole of some gigabytes would take the memory before anything is found wrong."""
    monkeypatch.setattr(folders, "read_safetensors", lambda _: pytest.fail("read"))
    _a_little_larger(ROWS)(copied)
    with pytest.raises(DataError, match=r"rows-00000.*bytes, more than the .* allowed"):
        read_rows(copied)
    _a_little_larger("map.safetensors")(copied)
    with pytest.raises(DataError, match=r"map\.safetensors.*bytes, more than the .* allowed"):
        read_preparation(copied, {"bound": None}, 64, columns=RANK)
    with pytest.raises(DataError, match=r"map\.safetensors.*bytes, more than the .* allowed"):
        read_preparation(copied, {"bound": None}, 64, columns=10**12)


def test_files_that_are_too_large_together_are_not_read(tmp_path: Path) -> None:
    for number in range(2):
        arrays = {"features": np.zeros((20_000, 1), np.float32), "labels": np.zeros(20_000, np.int64)}
        folders.write_arrays(tmp_path / f"rows-0000{number}.safetensors", arrays)
    schema = {"format": folders.FORMAT, "rows": 20_000, "width": 1, "classes": ["a"]}
    folders.write_json(tmp_path / "schema.json", schema | {"files": [ROWS, "rows-00001.safetensors"]})
    with pytest.raises(DataError, match=r"rows-00001.*bytes, more than the .* allowed"):
        read_rows(tmp_path)
    folders.write_json(tmp_path / "schema.json", schema | {"files": [ROWS]})
    assert len(read_rows(tmp_path)[0]) == 20_000


def test_too_little_memory_is_said(copied: Path) -> None:
    """Of a schema and files that agree on 3 GB of nothing; in a process that may not have them."""
    _json("schema.json", rows=3 << 22, width=246)(copied)
    with open(copied / ROWS, "r+b") as file:
        file.truncate(3 << 30)
    code = (
        "import resource, sys\n"
        "from dpvision.errors import DataError\n"
        "from dpvision.released.folder import read_rows\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "try:\n"
        "    read_rows(sys.argv[1])\n"
        "except DataError as exc:\n"
        "    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(copied)], capture_output=True, text=True)
    assert "needs more memory than this machine has" in done.stdout, done.stderr


def test_rows_are_never_read_from_outside(copied: Path) -> None:
    """Even where the way out exists and fine rows are there."""
    (copied / "rows-x").mkdir()
    (copied / ROWS).rename(copied.parent / "rows-out.safetensors")
    outside = "rows-x/../../rows-out.safetensors"
    assert (copied / outside).exists()
    for name in (outside, "../rows-out.safetensors", str(copied.parent / "rows-out.safetensors")):
        _json("schema.json", files=[name])(copied)
        with pytest.raises(DataError, match=r"schema\.json is not of format"):
            read_rows(copied)


@pytest.mark.parametrize("kind", HOSTILE_ROWS)
def test_hostile_rows(kind: str, copied: Path) -> None:
    HOSTILE_ROWS[kind](copied)
    with pytest.raises(DataError):
        read_rows(copied)


@pytest.mark.parametrize("kind", HOSTILE_CARDS)
def test_hostile_cards(kind: str, copied: Path) -> None:
    HOSTILE_CARDS[kind](copied)
    with pytest.raises(DataError):
        features_of(copied, "digits")


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), True, "1", [1.0]])
def test_hostile_bounds(bound: Any, copied: Path) -> None:
    (copied / "map.safetensors").unlink()
    _json("card.json", config__bound=bound)(copied)
    with pytest.raises(DataError):
        features_of(copied, "digits")


@pytest.mark.parametrize("kind", HOSTILE_MAPS)
def test_hostile_maps(kind: str, copied: Path) -> None:
    HOSTILE_MAPS[kind](copied)
    with pytest.raises(DataError):
        features_of(copied, "digits")


def test_encoders_that_a_card_may_not_name(copied: Path) -> None:
    """Nothing is fetched, and no file is opened for the card's word alone."""
    for name in ("../../etc/passwd", "no-such-model", "resnet9", ""):
        _json("card.json", features__encoder=name)(copied)
        with pytest.raises((ConfigError, DataError)):
            features_of(copied, "digits")
    _json("card.json", features__encoder="pixels", features__weights="ab" * 32)(copied)
    with pytest.raises(ConfigError, match="does not have the weights of the release"):
        features_of(copied, "digits")


def _blocks(sizes: list[int]) -> Iterator[folders.Block]:
    start = 0
    for size in sizes:
        values = np.arange(start, start + size)
        yield values[:, None].astype(np.float32), values
        start += size


def test_many_rows_are_in_several_files_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "SHARD", 10)
    assert write_rows(tmp_path, _blocks([4, 4, 4, 9, 1, 3])) == 25
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"rows-{i:05d}.safetensors" for i in range(3)]
    schema = {"format": folders.FORMAT, "rows": 25, "width": 1, "classes": ["a"], "files": names}
    folders.write_json(tmp_path / "schema.json", schema)
    features, labels = read_rows(tmp_path)
    assert np.array_equal(labels, np.arange(25)) and np.array_equal(features[:, 0], labels)
    assert read_schema(tmp_path) == schema


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), create_folder(tmp_path / "a" / "out") as folder:
        (folder / "part").write_text("x")
        assert not (tmp_path / "a" / "out").exists() and folder.stat().st_mode & 0o077 == 0
        raise ZeroDivisionError
    assert not list((tmp_path / "a").iterdir())
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="already exists"), create_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "x"


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    schema = {"format": folders.FORMAT, "rows": 1, "width": 1, "classes": ["a"], "files": [ROWS]}
    os.mkfifo(tmp_path / ROWS)
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with pytest.raises(DataError, match="FIFO"):
        read_rows(tmp_path)
    (tmp_path / "schema.json").unlink()
    os.mkfifo(tmp_path / "schema.json")
    with pytest.raises(DataError, match="FIFO"):
        read_rows(tmp_path)
