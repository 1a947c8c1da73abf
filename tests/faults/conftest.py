"""One fork server, and one set of supplies, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.verbs import supplied
from tests.fork_server import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with ForkServer() as started:
        yield started


@pytest.fixture(scope="session")
def supplies(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return supplied(server, tmp_path_factory.mktemp("supplies").resolve())
