"""One fork server, and one set of supplies, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.fork_server import ForkServer, shared
from tests.system.kills.killing import Unbroken, unbroken
from tests.system.kills.verbs import Verb, World, supplied


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return shared()


@pytest.fixture(scope="session")
def supplies(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return supplied(server, tmp_path_factory.mktemp("supplies").resolve())


@pytest.fixture(scope="session")
def undisturbed(
    server: ForkServer, supplies: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Verb], Unbroken]:
    """A verb that nobody disturbs; each is run so once."""

    @cache
    def run(verb: Verb) -> Unbroken:
        return unbroken(server, verb, World(tmp_path_factory.mktemp("unbroken").resolve() / "world", supplies))

    return run
