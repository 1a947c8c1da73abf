"""What a run computes with is what it began with: features, public weights, software; and public is not private."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from dpvision.core import files
from dpvision.errors import ConfigError, DataError, LedgerMismatch, UnsafeLayer
from dpvision.models import Featured, build
from dpvision.private.features import cache
from dpvision.private.training import state, train
from dpvision.released.report import card
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.storage.home import ledger_of

SETTINGS = Config(epsilon=3.0, batch=20, steps=6, model="small-cnn", part="head", budget=1e4, checkpoint_every=1)


def _write(path: Path, images: NDArray[Any]) -> str:
    labels = np.arange(len(images)) % 4
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:8] // 2, test_labels=labels[:8])
    return str(path)


@pytest.fixture
def source(tmp_path: Path) -> str:
    return _write(tmp_path / "data.npz", np.random.default_rng(0).integers(0, 256, (80, 8, 8, 1), dtype=np.uint8))


def _train_file(prepared: train.Prepared) -> Path:
    parts = prepared.network.split(prepared.network.build())
    assert parts is not None
    return cache.path_of(prepared.network.features_key(prepared.data.train, parts))


def test_a_run_goes_on_only_with_the_features_it_began_with(source: str, tmp_path: Path) -> None:
    """Another row under the same noise would show the record."""
    prepared = train.prepare(source, SETTINGS)
    run = train.begin(prepared, tmp_path / "run", test_key="word")
    asked = iter([False] * 3 + [True])
    train.proceed(run, prepared, stop=lambda: next(asked))
    file = _train_file(prepared)
    whole = file.read_bytes()
    np.lib.format.open_memmap(file, mode="r+")[7] = 0.0
    with pytest.raises(LedgerMismatch, match="features"):
        train.proceed(run, train.reopen(run))
    file.unlink()  # recomputed, they are the same
    assert train.proceed(run, train.reopen(run)).complete
    assert file.read_bytes() == whole


def test_the_same_images_in_another_order_have_features_of_their_own(source: str) -> None:
    """Else an image's features would meet another image's label and person: a private row in two units."""
    images, order = np.load(source)["train_images"], np.roll(np.arange(80), 4)  # the labels stay where they are
    known = train.prepare(source, SETTINGS)
    other = train.prepare(_write(Path(source).with_name("other.npz"), images[order]), SETTINGS)
    assert other.fingerprint == known.fingerprint and _train_file(other) != _train_file(known)
    rows, rolled = (
        p.network.load_or_compute_inputs(p.data.train, p.network.build())(slice(0, 80)) for p in (known, other)
    )
    assert torch.allclose(rolled, rows[order], atol=1e-5) and not torch.allclose(rolled, rows, atol=1e-2)


def test_a_copy_of_a_run_has_other_noise_for_other_features(source: str, tmp_path: Path) -> None:
    """A folder that was copied before its first step, and one row changed: both are charged, and nothing cancels."""
    prepared = train.prepare(source, SETTINGS)
    run = train.begin(prepared, tmp_path / "run")
    shutil.copytree(run.folder, tmp_path / "copy")
    copy = run_folder.Run(tmp_path / "copy")
    weights = []
    for result in (run, copy):
        asked = iter([False, True])
        train.proceed(result, train.reopen(result), stop=lambda asked=asked: next(asked))
        weights.append(state.State.load(result.state, prepared.network.build()).weights)
        np.lib.format.open_memmap(_train_file(prepared), mode="r+")[7] = 0.0
    assert len(ledger_of(prepared.fingerprint).account().charges) == 2
    first = torch.nn.utils.parameters_to_vector([p for p in prepared.network.build().parameters() if p.requires_grad])
    one, other = (w - first.detach() for w in weights)
    assert abs(float(torch.nn.functional.cosine_similarity(one, other, dim=0))) < 0.5


@pytest.mark.parametrize("edited", ["in_order", "features"])
def test_what_a_run_is_bound_to_is_signed(edited: str, source: str, tmp_path: Path) -> None:
    """An edit of run.json does not make other data pass."""
    prepared = train.prepare(source, SETTINGS)
    run = train.begin(prepared, tmp_path / "run")
    asked = iter([False] * 3 + [True])
    train.proceed(run, prepared, stop=lambda: next(asked))
    if edited == "features":
        np.lib.format.open_memmap(_train_file(prepared), mode="r+")[7] = 0.0
    else:
        images = np.load(source)["train_images"]
        other = train.prepare(_write(Path(source), images[[1, 0, *range(2, 80)]]), SETTINGS)
        run.write_facts({**run.facts(), "in_order": other.in_order, "fingerprint": other.fingerprint})
    with pytest.raises(LedgerMismatch, match="changed since the run began"):
        train.proceed(run, train.reopen(run))


def test_features_of_another_version_are_a_new_branch(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may round differently: the run continues with fresh noise and a separate charge."""
    prepared = train.prepare(source, SETTINGS)
    run = train.begin(prepared, tmp_path / "run", test_key="word")
    asked = iter([False] * 3 + [True])
    train.proceed(run, prepared, stop=lambda: next(asked))
    monkeypatch.setattr(state, "computing", lambda: "a later version")
    monkeypatch.setattr(cache, "code_version", lambda: "a later version")
    monkeypatch.setattr(Featured, "features", lambda self, x: self.prefix(x) * (1 + 1e-6))
    assert train.proceed(run, train.reopen(run)).complete
    assert len(ledger_of(prepared.fingerprint).account().charges) == 2


@pytest.mark.parametrize("damage", ["empty", "npz", "no axes", "header", "narrow", "more axes", "kind"])
def test_damaged_features_are_named_and_nothing_is_charged(damage: str, source: str, tmp_path: Path) -> None:
    prepared = train.prepare(source, SETTINGS)
    prepared.compute_features(lambda *_: None)
    file = _train_file(prepared)
    good = np.load(file)
    with file.open("wb") as out:
        if damage == "npz":
            np.savez(out, a=good)
        elif damage == "header":
            out.write(b"\x93NUMPY\x01\x00\x10\x00{'descr: (((((((\n")
        elif damage != "empty":
            bad = {
                "no axes": np.float32(1),
                "narrow": good[:, :-1],
                "more axes": good[:, None],
                "kind": good.astype(">f8"),
            }
            np.save(out, bad[damage])
    with pytest.raises(DataError, match="remove the file"):
        train.proceed(train.begin(prepared, tmp_path / "run", test_key="word"), prepared)
    assert not ledger_of(prepared.fingerprint).exists()


def test_public_weights_that_change_after_they_were_named(source: str, tmp_path: Path) -> None:
    """The named inputs are those that train; a run cannot continue with others."""
    file = tmp_path / "public.safetensors"
    save_file(build("small-cnn", (1, 8, 8), classes=4, seed=5).state_dict(), file)
    prepared = train.prepare(source, replace(SETTINGS, pretrained=str(file)))
    save_file(build("small-cnn", (1, 8, 8), classes=4, seed=6).state_dict(), file)
    named = build("small-cnn", (1, 8, 8), classes=4, seed=5).state_dict()
    assert all(torch.equal(named[name], value) for name, value in prepared.network.build().state_dict().items())
    run = train.begin(prepared, tmp_path / "run")
    with pytest.raises(LedgerMismatch, match="public weights or images changed"):
        train.proceed(run, train.reopen(run))


def test_weights_too_large_for_their_kind_are_refused(source: str, tmp_path: Path) -> None:
    tensors = {n: t.double() for n, t in build("small-cnn", (1, 8, 8), classes=4, seed=5).state_dict().items()}
    tensors["0.weight"][0] = 1e300
    save_file(tensors, tmp_path / "public.safetensors")
    with pytest.raises(DataError, match="not finite"):
        train.prepare(source, replace(SETTINGS, pretrained=str(tmp_path / "public.safetensors")))


def test_weights_of_a_fixed_key_are_not_public(source: str, tmp_path: Path) -> None:
    prepared = train.prepare(source, SETTINGS)
    first = train.begin(prepared, tmp_path / "first", test_key="word")
    assert train.proceed(first, prepared).complete
    with pytest.raises(DataError, match="fixed key"):
        train.prepare(source, replace(SETTINGS, pretrained=str(first.weights)))


def test_what_the_first_weights_tell_is_counted_too(source: str, tmp_path: Path) -> None:
    """A training that starts from weights of a private one may be about the same records: its card states both."""
    folders, tells = [tmp_path / name for name in "abc"], []
    for number, folder in enumerate(folders):
        first = str(folders[number - 1] / "weights.safetensors") if number else None
        prepared = train.prepare(source, replace(SETTINGS, pretrained=first))
        run = train.begin(prepared, folder)
        assert train.proceed(run, prepared).complete
        account = ledger_of(prepared.fingerprint).account()
        stated = card(run, account)
        tells.append(stated["guarantee"]["epsilon"])
        assert tells[-1] >= account.spent() * 0.9999, "all runs are about the same records here"
        assert len(account.charges) == number + 1, "each is charged for itself alone"
    assert tells[0] < tells[1] < tells[2]
    assert any("was trained privately" in line for line in stated["not_covered"])
    assert any(line["epsilon"] > tells[1] for line in map(json.loads, run.metrics.read_text().splitlines()))
    facts = run.facts()
    run.write_facts({**facts, "public": {"pretrained": {**facts["public"]["pretrained"], "event": facts["event"]}}})
    with pytest.raises(DataError, match="lacks that of the initial weights"):
        card(run, account)


def test_images_and_persons_do_not_add_up(tmp_path: Path) -> None:
    """A bound for one image says little about a person with many images, and vice versa."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    lines = ["path,label,person,split"]
    for number in range(40):
        name = f"images/{number}.png"
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / name)
        lines.append(f"{name},{'ab'[number % 2]},{number // 4},train")
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    settings = replace(SETTINGS, part="all", model="linear", batch=5, delta=1e-3)
    for unit, other in (("image", "person"), ("person", "image")):
        prepared = train.prepare(str(tmp_path / "data.csv"), replace(settings, unit=unit))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DPVISION_HOME", str(tmp_path / f"home of {unit}"))
            run = train.begin(prepared, tmp_path / unit)
            assert train.proceed(run, prepared).complete
        first = replace(settings, pretrained=str(run.weights))
        assert train.prepare(str(tmp_path / "data.csv"), replace(first, unit=unit)).public.earlier_events
        with pytest.raises(ConfigError, match=f"with privacy for each {unit}.*Fix: use --unit {unit}"):
            train.prepare(str(tmp_path / "data.csv"), replace(first, unit=other))


def test_features_are_computed_by_one_process_at_a_time(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = train.prepare(source, SETTINGS)
    parts, file = prepared.network.split(prepared.network.build()), _train_file(prepared)
    assert parts is not None
    of = prepared.network.features_key(prepared.data.train, parts)
    whole = cache.load_or_compute(parts, prepared.data.train, key=of).copy()
    data = file.read_bytes()
    file.unlink()
    monkeypatch.setattr(cache, "_compute", lambda *_: pytest.fail("computed twice"))
    results: list[NDArray[Any]] = []
    second = threading.Thread(target=lambda: results.append(cache.load_or_compute(parts, prepared.data.train, key=of)))
    with files.locked(file.with_suffix(".lock")):  # a first process, which is at work
        second.start()
        second.join(0.3)
        assert second.is_alive(), "the second one waits"
        file.write_bytes(data)
    second.join(10)
    np.testing.assert_array_equal(results[0], whole)


class _Mixes(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "first":
            return x - x[:1]
        if self.how == "last":
            return x - x[-1:]
        if self.how == "neighbour":
            return x + x.roll(4, 0)
        if self.how.startswith("place"):
            return torch.where(torch.arange(len(x)).view(-1, 1, 1, 1) == int(self.how[-1]), x.nextafter(x + 1), x)
        if self.how == "remembers":
            self.seen += x.sum()
        return x


@pytest.mark.parametrize("how", ["first", "last", "neighbour", "remembers"])
def test_a_frozen_part_that_mixes_or_remembers_is_refused(how: str) -> None:
    with pytest.raises(UnsafeLayer):
        cache.require_separate(Featured(_Mixes(how), nn.Flatten()), (1, 4, 4))
    cache.require_separate(Featured(_Mixes("not"), nn.Flatten()), (1, 4, 4))


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("piece", [8, None])
def test_a_frozen_part_that_looks_at_places_is_refused(place: int, piece: int | None) -> None:
    """Though it differs in the last bit, and at one place alone."""
    with pytest.raises(UnsafeLayer, match="at a different position"):
        cache.require_separate(Featured(_Mixes(f"place {place}"), nn.Flatten(), piece=piece), (1, 4, 4))


@pytest.mark.parametrize("how", ["resized", "float", "test split"])
def test_private_images_in_another_form_are_not_public(how: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    private = rng.integers(0, 256, (80, 8, 8, 1), dtype=np.uint8)
    size = None
    if how == "resized":
        source, size = str(tmp_path / "photos"), (8, 8)
        for number, image in enumerate(rng.integers(0, 256, (80, 16, 16), dtype=np.uint8)):
            place = tmp_path / "photos" / "train" / str(number % 4)
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{number}.png")
        public = train.prepare(source, replace(SETTINGS, part="all", size=size)).data.train.images
    elif how == "float":
        source, public = _write(tmp_path / "data.npz", private.astype(np.float32) / 255), private
    else:
        source, public = _write(tmp_path / "data.npz", private), private[:8] // 2
    mixed = replace(SETTINGS, part="all", size=size, k_base=2, k_self=1, k_diff=1, augment=("flip",))
    other = _write(tmp_path / "other.npz", np.asarray(public))
    with pytest.raises(ConfigError, match="not public"):
        train.prepare(source, replace(mixed, synthetic=other))
    fresh = _write(tmp_path / "fresh.npz", rng.integers(0, 256, (80, 8, 8, 1), dtype=np.uint8))
    train.prepare(source, replace(mixed, synthetic=fresh))


def test_another_processor_or_library_is_other_software(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state.software()
    for name, value in (("_version", lambda name: "0.0.1"), ("os.environ", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"})):
        with monkeypatch.context() as patch:
            patch.setattr(f"dpvision.storage.home.{name}", value)
            assert state.software() != before
    assert state.software() == before
