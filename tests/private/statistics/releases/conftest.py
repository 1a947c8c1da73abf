"""One thread for each test; maps of random images are made once for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.one_thread import one_thread
from tests.private.statistics.releases.small import sharing

__all__ = ["one_thread"]


@pytest.fixture(scope="session")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("maps")


@pytest.fixture
def small_home(maps: Path, own_home: Path) -> Iterator[Path]:
    """A new ledger, and maps of a few random images."""
    with sharing(maps, own_home):
        yield own_home
