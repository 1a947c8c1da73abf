"""The same through huggingface_hub, where it is installed, from the same server."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dpvision.errors import DataError
from dpvision.storage.weights import hub, registry, store
from tests.storage.weights.server import COMMIT, Manners, sha256, weights_file


@pytest.fixture(autouse=True)
def through_the_hub(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(store, "load_hub", hub.load_hub)


def test_without_the_library_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.load_hub() is not None
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.load_hub() is None


@pytest.fixture
def pinned(manners: Manners, monkeypatch: pytest.MonkeyPatch) -> str:
    size, digest = len(manners.data), sha256(manners.data)
    entry = replace(registry.NETWORKS["dinov2-vits14"], name="pinned", revision=COMMIT, sha256=digest, size=size)
    monkeypatch.setitem(registry._BY_NETWORK, "pinned", entry)
    return "pinned"


def _left(own_home: Path) -> list[str]:
    return sorted(p.name for p in (own_home / "weights").iterdir() if not p.name.endswith(".lock"))


def test_a_file_is_downloaded_through_it(address: str, manners: Manners, pinned: str, own_home: Path) -> None:
    fetched = store.get(pinned)
    assert fetched.path.read_bytes() == manners.data and fetched.record.revision == COMMIT
    assert _left(own_home) == ["pinned.json", "pinned.safetensors"]
    path = f"/facebook/dinov2-small/resolve/{COMMIT}/model.safetensors"
    asked = [(method, path) for method, path, _ in manners.seen]  # the library asks for other things too
    assert ("HEAD", path) in asked and ("GET", path) in asked


def test_the_commit_of_an_unpinned_file_is_recorded(address: str, manners: Manners) -> None:
    first = store.get("timm:net")
    assert first.record.revision == COMMIT and first.record.digest_from == store.FIRST_USE
    first.path.unlink()
    manners.data, manners.etag = weights_file(300_000, seed=1), '"second"'
    with pytest.raises(DataError, match="SHA-256"):
        store.get("timm:net")


def test_another_file_than_the_pinned_one_is_refused(
    address: str, manners: Manners, pinned: str, own_home: Path
) -> None:
    manners.data = manners.data[:-4] + b"abcd"
    with pytest.raises(DataError, match=r"SHA-256 .*Nothing was stored"):
        store.get(pinned)
    assert _left(own_home) == []


def test_another_size_is_refused_before_it_is_downloaded(
    address: str, manners: Manners, pinned: str, own_home: Path
) -> None:
    manners.data += b"more"
    with pytest.raises(DataError, match=r"announces .* bytes, and the file has"):
        store.get(pinned)
    assert {method for method, _, _ in manners.seen} == {"HEAD"} and _left(own_home) == []


def test_a_pickle_is_refused(address: str, manners: Manners, own_home: Path) -> None:
    manners.data = pickle.dumps({"weight": list(range(100))})
    with pytest.raises(DataError, match=r"torch.save or pickle"):
        store.get("timm:net")
    assert _left(own_home) == []


def test_a_missing_file_is_a_clear_error(address: str, manners: Manners) -> None:
    manners.redirect = "/elsewhere/nothing"
    manners.status = [404] * 20
    with pytest.raises(DataError, match=r"huggingface_hub could not download it .*the same command resumes"):
        store.get("timm:net")
