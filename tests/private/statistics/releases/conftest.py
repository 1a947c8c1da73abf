"""One thread for each test; maps of random images are made once for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpvision.private.statistics.baselines import synthesis
from tests.one_thread import one_thread
from tests.private.statistics.releases.small import FEW_STEPS, sharing

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("maps")


@pytest.fixture
def small_home(maps: Path, own_home: Path) -> Iterator[Path]:
    """A new ledger, and maps of a few random images."""
    with sharing(maps, own_home):
        yield own_home


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of published methods are fitted in a few steps, which no charge and no text depends on."""
    monkeypatch.setattr(synthesis, "METHODS", FEW_STEPS)
