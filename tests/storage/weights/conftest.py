"""A server, and an environment without proxies and without huggingface_hub unless a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpvision.storage.weights import store
from tests.storage.weights.server import Manners, serving, weights_file


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("HF_HUB_OFFLINE", "DPVISION_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(store, "load_hub", lambda: None)


@pytest.fixture
def manners() -> Manners:
    return Manners(weights_file(300_000))


@pytest.fixture
def address(manners: Manners, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the server, which is the hub of this test."""
    with serving(manners) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield address
