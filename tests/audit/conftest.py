"""One thread for each test; fixed keys and draws for tests that ask for them."""

from collections.abc import Iterator

import pytest

from tests.audit.fixed_randomness import fixed_randomness
from tests.one_thread import one_thread

__all__ = ["one_thread"]


@pytest.fixture
def fixed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Randomness that is the same in each run of a test."""
    with fixed_randomness(request.node.name):
        yield
