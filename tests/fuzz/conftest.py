"""One fork server and one corpus for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fork_server import ForkServer
from tests.fuzz.campaign import Campaign


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    with ForkServer() as server:
        yield Campaign(server, tmp_path_factory.mktemp("fuzz"))
