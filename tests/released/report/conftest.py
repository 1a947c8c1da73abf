"""Two runs with all their files written, once for all tests; tests that change something make their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folder import EVENTS, account, make

from dpvision.released.report import write
from dpvision.storage.run_folder import Run


@pytest.fixture(scope="session")
def private_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _written(tmp_path_factory.mktemp("private") / "run", private=True)


@pytest.fixture(scope="session")
def fixed_key_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return _written(tmp_path_factory.mktemp("fixed") / "run", private=False)


def _written(folder: Path, *, private: bool) -> Run:
    run = make(folder, private=private)
    write(run, account(*EVENTS))
    return run
