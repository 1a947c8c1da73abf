"""Charge what is going to be released, and name it: the step between settings and noise that all releases share.

Formal guarantee: a `Charge` comes back only once it is on the disk (ledger.spend), and within the budget of its ledger.
Its name is a secret function of everything that shapes the result, so it tells nothing of it. With a fresh key it is
new each time. With a fixed one, the same inputs give the same noise and are charged once; any other input gives other
noise and a charge of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from dpvision.core.events import Budget, Event
from dpvision.core.keys import Key
from dpvision.core.ledger import Charge, Ledger
from dpvision.errors import ConfigError
from dpvision.private.accounts import overlap
from dpvision.private.accounts.accounts import Accounts
from dpvision.private.accounts.overlap import Sketch


def charged(
    ledger: Ledger, budget: Budget, event: Event, key: Key, *, id: str, run: str, sketch: Sketch = overlap.NOTHING
) -> Charge:
    """The charge of the event, once the ledger has it. An account of persons, or one that is spent, is refused."""
    to = Accounts(ledger, named=True)
    private, fingerprint = key.private, ledger.fingerprint
    return to.charge(event, budget, fingerprint=fingerprint, sketch=sketch, id=id, run=run, private=private)[0]


def secret_name(key: Key, purpose: str, what: str, arrays: Iterable[NDArray[Any]]) -> str:
    """Names the noise and the charge of `what`, settings in words, done to the arrays."""
    everything = hashlib.blake2b(what.encode(), digest_size=32)
    for part in arrays:
        everything.update(str(part.shape).encode())
        everything.update(part.data)
    return key.stream(purpose, step=0, branch=everything.hexdigest()).words(2).tobytes().hex()


def number_of_units(n: int) -> int:
    """The public n, or a refusal."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n is {n!r}: the public number of images must be a whole number above 0.")
    return n
