"""What a released folder states about itself: the guarantee, its limits, and nothing that it must not reveal."""

from __future__ import annotations

import json
import re
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

from dpvision.core import accountant
from dpvision.core.events import from_json
from dpvision.core.keys import Key
from dpvision.data import load, pack
from dpvision.errors import ConfigError
from dpvision.private.statistics.release import make, prepare
from dpvision.released.report import cards, wording
from dpvision.released.report.wording import FIXED_NOISE
from dpvision.settings.figures import upper
from dpvision.storage.home import ledger_of
from tests.private.statistics.releases.small import files, made, small
from tests.system.runs.commands import write_data

pytestmark = pytest.mark.usefixtures("small_home", "few_steps")
PUBLISHED = ("dp-merf", "dp-hp", "p3gm")
RECIPES = ("moments", "class-schedule", "neuromix", "neuromix-hs", "dpmix", *PUBLISHED)


def _header(raw: bytes) -> bytes:
    return raw[8 : 8 + int.from_bytes(raw[:8], "little")]


def _readable(folder: Path) -> dict[str, str]:
    """All text in a folder: whole text files, and the headers of arrays."""
    return {
        name: (_header(raw) if name.endswith(".safetensors") else raw).decode() for name, raw in files(folder).items()
    }


def _numbers(value: Any) -> list[float]:
    """All numbers in plain JSON values."""
    if isinstance(value, dict):
        return _numbers(list(value.values()))
    if isinstance(value, list):
        return [number for part in value for number in _numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_is_told_that_must_not_be(recipe: str, tmp_path: Path, small_home: Path, monkeypatch: Any) -> None:
    """Neither the operator's folders and names, nor what finds the ledger, nor the key, nor how large classes are."""
    source = write_data(tmp_path / "somebodys-secret-name.npz", images=203)
    kept: list[bytes] = []
    monkeypatch.setattr(Key, "destroy", lambda place: kept.append(place.read_bytes()[8:]))
    prepared = prepare(str(source), small(recipe, budget=100.0))
    out = tmp_path / "where it was made"
    made_card = make(prepared, out)
    jsonschema.validate(
        made_card, json.loads((resources("dpvision.released.report") / "card.schema.json").read_text("utf-8"))
    )
    (charge,) = ledger_of(prepared.fingerprint).account().charges
    (key,) = kept
    words = [str(tmp_path), "where it was made", "somebodys-secret-name", str(small_home), str(Path.home())]
    words += [
        prepared.fingerprint[:12],
        prepared.in_order[:12],
        charge.id[:12],
        key.hex()[:12],
    ]
    words += [f"{digest:016x}" for digest in prepared.sketch.rows[:3].flatten()]
    for name, text in _readable(out).items():
        for word in words:
            assert word not in text, f"{name} reveals {word}"
        assert key not in (out / name).read_bytes()
    counts = set(np.bincount(load(str(source)).train.labels).tolist())
    assert len(counts) == 4 and min(counts) > 40
    for name in ("card.json", "schema.json"):
        assert not counts & set(_numbers(json.loads((out / name).read_text()))), name
    for name in ("card.md", "README.md", "report.html"):
        assert not counts & {int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", (out / name).read_text())}, name


@pytest.mark.parametrize("recipe", ["moments", "neuromix"])
def test_made_with_a_fixed_key_it_is_not_private_and_says_so_everywhere(recipe: str, tmp_path: Path) -> None:
    made(tmp_path / "out", small(recipe), test_key="known to all")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["status"] == wording.FIXED_KEY and card["status"].startswith("NOT PRIVATE")
    assert card["guarantee"]["epsilon"] is None and card["guarantee"]["if_the_noise_were_secret"]["epsilon"] <= 8
    assert all(one["true_positive_rate_at_most"] == 1.0 for one in card["attack_success"])
    assert "Nothing is covered" in card["not_covered"][0]
    assert card["mechanism"]["noise"] == FIXED_NOISE
    for name in ("README.md", "report.html"):
        text = (tmp_path / "out" / name).read_text()
        assert "NOT PRIVATE" in text and "at no further privacy cost" not in text
    text = (tmp_path / "out" / "card.md").read_text()
    assert "**NOT PRIVATE" in text and "gives no privacy guarantee" in text and "| epsilon | none |" in text
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "gives no privacy guarantee" in readme and "Do not release it" in readme


def test_noise_that_tells_more_than_is_asked_for_is_refused(tmp_path: Path) -> None:
    """However large the budget of the data set is."""
    for sigma in (0.002, 0.1):
        with pytest.raises(ConfigError, match="more than the requested 8"):
            made(tmp_path / "out", small("moments", sigma=sigma, budget=1e9))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_private_one_says_what_holds(recipe: str, tmp_path: Path) -> None:
    facts = made(tmp_path / "out", small(recipe, epsilon=2.0, licence="CC-BY-4.0"))
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    event = from_json(card["events"][0])
    epsilon = accountant.epsilon(event, 1e-5)
    assert card["guarantee"]["epsilon"] == epsilon and card["account_of_a_record"] == cards.account_of_a_record(event)
    assert card["adjacency"] == wording.ADD_OR_REMOVE and not card["read_off"], "digits: all of it is public"
    for name in ("card.md", "README.md"):
        text = (tmp_path / "out" / name).read_text()
        assert f"epsilon {upper(epsilon)} at delta 1e-05" in text and "CC-BY-4.0" in text
        assert "Anyone who sees this data set" in text and "NOT PRIVATE" not in text
    assert upper(epsilon) in (tmp_path / "out" / "card.md").read_text()
    noise = card["mechanism"].get("noise_x")
    assert (noise is None) == (recipe in ("moments", *PUBLISHED)) and card["mechanism"]["sigma"] == card["config"][
        "sigma"
    ]
    (line,) = (line for line in card["not_covered"] if "The accuracies are those of classifiers" in line)
    assert "anyone in both splits, the accuracies are not covered" in line
    assert facts["accuracy"] == card["accuracy"]


def test_what_was_read_off_the_data_or_declared_is_said(tmp_path: Path) -> None:
    source = str(write_data(tmp_path / "data.npz"))
    made(tmp_path / "a", small("moments", budget=100.0), source=source)
    card = json.loads((tmp_path / "a" / "card.json").read_text())
    assert "number of images" in card["read_off"] and card["adjacency"] == wording.ZERO_OUT
    assert sum("read from the data" in line for line in card["not_covered"]) >= 1
    declared = small("moments", n=200, classes=4, size=(8, 8), channels=1, class_counts=(50, 50, 50, 50))
    made(tmp_path / "b", declared, source=source)
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    assert not card["read_off"] and card["adjacency"] == wording.ADD_OR_REMOVE
    assert any("was declared public" in line for line in card["not_covered"])
    assert card["mechanism"]["class_counts"] == "declared public"


def _not_covered(folder: Path) -> str:
    return " ".join(json.loads((folder / "card.json").read_text())["not_covered"])


def test_what_was_left_out_when_a_store_was_packed_is_said(tmp_path: Path) -> None:
    data = load("digits").train
    for number in range(40):
        place = tmp_path / "images" / "train" / str(data.labels[number])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(data.images[number, :, :, 0])).save(place / f"{number}.png")
    declared = small("moments", n=40, classes=10, size=(8, 8), channels=1, budget=1e3)
    for skip in (False, True):
        store = pack(tmp_path / "images", tmp_path / f"store{skip}", classes=10, size=8, channels=1, skip_broken=skip)
        made(tmp_path / f"{skip}", declared, source=str(store))
    assert "reveals that all images could be read" in _not_covered(tmp_path / "False")
    text = _not_covered(tmp_path / "True")
    assert "may have been left out" in text and "all images could be read" not in text


def test_names_of_classes_that_were_read_off_are_said_to_be(tmp_path: Path) -> None:
    """Though their number was declared when a release was made from the store."""
    source = write_data(tmp_path / "data.npz")
    store = pack(source, tmp_path / "store")
    meta = json.loads((store / "meta.json").read_text())
    (store / "meta.json").write_text(json.dumps(meta | {"classes": ["anna", "ben", "cleo", "dora"]}))
    settings = small("moments", n=200, classes=4, size=(8, 8), channels=1)
    made(tmp_path / "out", settings, source=str(store))
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["classes"][0] == "anna" and card["read_off"] == ["classes"]
    assert "The list of classes was read from the data" in _not_covered(tmp_path / "out")


def test_a_release_beside_one_of_a_fixed_key_says_so(tmp_path: Path) -> None:
    made(tmp_path / "a", small("moments", budget=100.0), test_key="known")
    made(tmp_path / "b", small("class-schedule"))
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    assert card["status"] == "private" and any("fixed key" in line for line in card["not_covered"])
