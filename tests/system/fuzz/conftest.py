"""One fork server and one corpus for all tests of this folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import shared
from tests.system.fuzz.campaign import Campaign


@pytest.fixture(scope="session")
def campaign() -> Iterator[Campaign]:
    """In a folder that stays where an input failed."""
    root = Path(tempfile.mkdtemp(prefix="dpvision-fuzz-"))
    made = Campaign(shared(), root)
    yield made
    if not made.faults.exists():
        shutil.rmtree(root)
