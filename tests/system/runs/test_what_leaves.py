"""Whatever leaves, on every way that it may take: fixed noise stays marked, private images stay unnamed, and accounts
that were set apart are on the card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.core.keys import Key
from dpvision.data import identify, load
from dpvision.errors import DataError
from dpvision.estimators import PrivateImageClassifier, PrivateRelease
from dpvision.private.accounts.accounts import choose, read_accounts
from dpvision.private.accounts.blocks import digest_blocks
from dpvision.private.accounts.overlap import raw_digests
from dpvision.private.statistics import release
from dpvision.private.training import train
from dpvision.public.provenance import pixel_digests, provenance_of, read_card_provenance, read_provenance
from dpvision.released import report
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import with_changes
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread  # noqa: F401
from tests.system.runs.commands import run as command
from tests.system.runs.commands import write_data
from tests.system.runs.stopping import until

SETTINGS = Config(epsilon=3.0, budget=60.0, model="linear", batch=20, steps=6, n=200)


# Noise that somebody knows

WAYS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "another learning rate": {"lr": 0.5},
    "another batch": {"batch": 30},
    "another sigma": {"sigma": 9.0},
    "more steps": {"steps": 8},
    "another cut": {"physical": 16},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["nothing", "the key is lost", "other software"])
def test_what_began_with_a_fixed_key_is_never_called_private(
    way: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever changes on the way: the first steps' noise is known to whoever knows the key."""
    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), SETTINGS)
    run = train.begin(prepared, tmp_path / "run", test_key="a word")
    train.proceed(run, prepared, stop=until(3))
    if what == "the key is lost":
        for key in (tmp_path / "home" / "keys").glob("*.key"):
            Key.destroy(key)
    if what == "other software":
        monkeypatch.setattr("dpvision.private.training.prepare.software", lambda *_, **__: "another torch")
    again = train.reopen(run, WAYS[way])
    assert not train.proceed(run, again).private
    account = ledger_of(again.fingerprint).account()
    assert not any(charge.private for charge in account.charges)
    report.write(run, account)
    assert "NOT PRIVATE" in json.loads((run.folder / "card.json").read_text())["status"]
    assert safetensors.read_header(run.weights)["private"] == run_folder.NOT_PRIVATE
    with pytest.raises(DataError, match="is not private"):
        train.prepare(str(tmp_path / "data.npz"), replace(SETTINGS, pretrained=str(run.weights)))


# Without images to test on

CARDS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "moments": lambda source, out: _released("moments", source, out),
    "mixtures": lambda source, out: _released("neuromix", source, out),
    "class-schedule": lambda source, out: _released("class-schedule", source, out),
    "PrivateRelease": lambda source, out: PrivateRelease(
        epsilon=1.0, classes=4, n=200, encoder="pixels", rank=0, rows=50, out=out
    ).fit(*_arrays(source)).card_,
    "PrivateImageClassifier": lambda source, out: PrivateImageClassifier(
        epsilon=1.0, classes=4, n=200, model="linear", steps=3, out=out
    ).fit(*_arrays(source)).card_,
}  # fmt: skip


@pytest.mark.parametrize("kind", CARDS)
def test_without_a_test_split_no_card_has_an_accuracy(kind: str, tmp_path: Path) -> None:
    """Not even that of the training images, which no noise would protect."""
    source = write_data(tmp_path / "data.npz")
    with np.load(source) as arrays:
        np.savez(source, **{name: arrays[name] for name in ("train_images", "train_labels")})
    card = CARDS[kind](str(source), tmp_path / "out")
    assert card["accuracy"] is None
    assert not [name for name in _names(card) if "accuracy" in name and _at(card, name)]


def _names(value: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return []
    return [(*before, k) for k in value] + [n for k, v in value.items() for n in _names(v, (*before, k))]


def _at(card: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        card = card[name]
    return card


def _arrays(source: str) -> tuple[np.ndarray, np.ndarray]:
    split = load(source).train
    return np.asarray(split.images), np.asarray(split.labels)


def _released(recipe: str, source: str, out: Path) -> dict[str, Any]:
    asked = {"epsilon": 1.0, "delta": 1e-6, "n": 200, "encoder": "pixels", "rank": 0, "rows": 50}
    settings = with_changes(
        release_recipe(recipe), {**asked, "class_counts": (50,) * 4} if "class" in recipe else asked
    )
    return release.make(release.prepare(source, settings), out)


# Names of private images

PUBLIC: dict[str, dict[str, Any]] = {
    "warm weights": {"model": "wrn-10-1", "pretrained": "warm/weights.safetensors"},
    "synthetic images": {"k_diff": 1, "augment": ("flip",), "k_base": 1, "synthetic": "public.npz"},
    **{
        f"assisted by {assist}": {"assist": assist, "synthetic": "public.npz", "public_batch": 6}
        for assist in ("dope", "mirror", "adadps")
    },
    "nothing public": {},
}


@pytest.mark.parametrize("what", PUBLIC)
def test_no_released_file_names_a_private_image(what: str, tmp_path: Path) -> None:
    """By none of the digests that the package computes of images, whole or short, as bytes or as text."""
    source = write_data(tmp_path / "data.npz")
    rng = np.random.default_rng(5)
    public = {"train_images": rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8), "train_labels": np.arange(40) % 4}
    np.savez(tmp_path / "public.npz", **public)
    learned = provenance_of(public["train_images"])
    (tmp_path / "public.npz.taught_by.json").write_text(json.dumps({"learned_from": learned}))
    changes = dict(PUBLIC[what])
    if "pretrained" in changes:
        words = ("--model", "wrn-10-1", "--steps", 2, "--batch", 8, "--classes", 4, "--out", tmp_path / "warm")
        assert command("warm", tmp_path / "public.npz", *words, home=tmp_path / "home")[0] == 0
    for name in ("pretrained", "synthetic"):
        if name in changes:
            changes[name] = str(tmp_path / changes[name])
    prepared = train.prepare(str(source), replace(SETTINGS, **changes))
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared)
    report.write(run, read_accounts(run.facts()).first.account())

    images = np.asarray(prepared.data.train.images)
    _, _, stored = identify(prepared.data.train)
    digests = [*stored, *pixel_digests(images), *(d for kinds in raw_digests(images) for d in kinds)]
    parts = [part.tobytes() for part in digest_blocks(images)[0].reshape(-1) if int(part)]
    for path in (p for p in run.folder.iterdir() if p.is_file()):
        content = path.read_bytes()
        for digest in filter(None, (*digests, *parts)):
            assert digest[:8] not in content and digest.hex()[:16].encode() not in content, path.name
    noted = read_provenance(Path(changes["pretrained"])) if "pretrained" in changes else ""
    noted = read_card_provenance(changes["synthetic"]) if "synthetic" in changes else noted
    assert set(safetensors.read_header(run.weights).get("learned_from", "").split()) == set(noted.split())
    assert noted or what == "nothing public"


# Accounts that were set apart

SHARES = {"all of a small account, little of the new data": (20, 1400), "little of a large account": (1400, 20)}


@pytest.mark.parametrize("which", SHARES)
@pytest.mark.parametrize("how", ["found", "a reason", "a named account"])
def test_an_account_that_shares_images_is_charged_or_on_the_card(which: str, how: str, tmp_path: Path) -> None:
    """Also where the share is small on one of the two sides."""
    first, second = SHARES[which]
    images, labels = load("digits").train.images, np.asarray(load("digits").train.labels)
    cards, settings = [], Config(epsilon=0.5, budget=30.0, model="linear", steps=3, full_batch=True, classes=10)
    old = None
    for number, count in enumerate((first, second)):
        rows = np.concatenate([np.flatnonzero(labels == k)[: -(-count // 10)] for k in range(10)])[:count]
        np.savez(tmp_path / f"{number}.npz", train_images=images[rows], train_labels=labels[rows])
        prepared = train.prepare(str(tmp_path / f"{number}.npz"), replace(settings, n=count))
        given = {} if not number or how == "found" else {"new_account": "other consent"}
        if number and how == "a named account":
            given = {"named": "ab" * 32}
        accounts = choose(prepared.fingerprint, prepared.sketch, **given)
        run = train.begin(prepared, tmp_path / f"run{number}", accounts=accounts)
        train.proceed(run, prepared)
        cards.append(report.card(run, read_accounts(run.facts()).first.account()))
        old = old or ledger_of(prepared.fingerprint).account().id
    (listed,) = cards[1]["overlapping_accounts"]
    assert listed["account"] == old and listed["charged"] is (how == "found")
    assert any("counted separately" in line for line in cards[1]["not_covered"]) is (how != "found")
