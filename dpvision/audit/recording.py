"""A mechanism on record: all of its data that reaches the noise, and all that is public about its run.

While a mechanism is on record

    noise.release      notes the sum, its sensitivity, its sigma and whose random stream it draws from
    Ledger.spend       notes the event that is charged
    PrivateSum.step    notes the public vectors that shape contributions before they are clipped
    Key.fresh          gives a fixed key, the same one in every recording
    Key.stream         names streams by their use and by when their branch was first seen, not by the branch itself,
                       which is a digest of the data: two recordings toss the same coins

and everything else is the real code. A recording that is made like another one gets back, from each noise call, what
the other one got: the mechanism then walks the same path whatever its data are, and what differs is due to the data.

A mechanism of one's own is recorded if it calls `noise.release(...)` by that name, and is handed its key or makes one
by `Key.fresh()`. What must be equal for neighbours is what it returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.audit.mixture_coins import MixtureCoins
from dpvision.audit.replaced import replaced
from dpvision.core import noise
from dpvision.core.events import Event
from dpvision.core.keys import KEY_BYTES, Key, Stream
from dpvision.core.ledger import Account, Ledger
from dpvision.private.engine import Public
from dpvision.private.training.private_sum import Fetch, PrivateSum

Data = TypeVar("Data")
# Purpose, step, rank and branch of the stream that the noise comes from; the call's number, if nobody knows.
Use = tuple[str, int, int, int] | int


@dataclass(frozen=True)
class Asked:
    """One call of noise.release: what went in, what came out, and how many events were charged by then."""

    use: Use
    total: NDArray[np.float64]
    sensitivity: float
    sigma: float
    result: NDArray[np.float64]
    charged: int


@dataclass
class Recording:
    """What one run of a mechanism did. The error that it ended with, or what it returned."""

    asked: list[Asked] = field(default_factory=list)
    charges: list[Event] = field(default_factory=list)
    public: list[Public | None] = field(default_factory=list)
    streams: Counter[Use] = field(default_factory=Counter)  # how often each was made
    outcome: object = None
    error: Exception | SystemExit | None = None
    rng: MixtureCoins = field(default_factory=MixtureCoins)

    def given(self) -> dict[Use, NDArray[np.float64]]:
        """What each noise call got back; of a stream that was used twice, the first."""
        return {asked.use: asked.result for asked in reversed(self.asked)}


def record(mechanism: Callable[[Data], object], data: Data, *, like: Recording | None = None) -> Recording:
    """Run the mechanism on the data; `like` freezes what its noise calls return, and the coins that others tossed."""
    made = Recording(rng=MixtureCoins(None if like is None else like.rng))
    with _on_record(made, {} if like is None else like.given()), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            made.outcome = mechanism(data)
        except (Exception, SystemExit) as error:
            made.error = error
    return made


@contextmanager
def _on_record(made: Recording, given: dict[Use, NDArray[np.float64]]) -> Iterator[None]:
    release, spend, stream_of, step_of = noise.release, Ledger.spend, Key.stream, PrivateSum.step
    branches: dict[str, int] = {}
    keys: list[Key] = []

    def releasing(
        total: NDArray[np.float64], stream: Stream, *, sensitivity: float, sigma: float
    ) -> NDArray[np.float64]:
        use = getattr(stream, "use", len(made.asked))
        before = np.array(total, dtype=np.float64)
        result = release(total, stream, sensitivity=sensitivity, sigma=sigma)  # it may refuse
        result = given.get(use, result)
        made.asked.append(Asked(use, before, sensitivity, sigma, result.copy(), len(made.charges)))
        return result

    def spending(self: Ledger, event: Event, **rest: Any) -> Account:
        account = spend(self, event, **rest)
        made.charges.append(event)
        return account

    def stepping(self: PrivateSum, number: int, units: int, fetch: Fetch, public: Public | None = None) -> torch.Tensor:
        made.public.append(deepcopy(public))
        return step_of(self, number, units, fetch, public)

    def streaming(self: Key, purpose: str, *, step: int, rank: int = 0, branch: str = "") -> Stream:
        number = branches.setdefault(branch, len(branches))
        stream = stream_of(self, purpose, step=step, rank=rank, branch=str(number))
        stream.use = (purpose, step, rank, number)  # type: ignore[attr-defined]
        made.streams[purpose, step, rank, number] += 1
        return stream

    def fresh() -> Key:
        keys.append(Key(blake2b(b"replay %d" % len(keys), digest_size=KEY_BYTES).digest(), private=True))
        return keys[-1]

    with ExitStack() as stack:
        for owner, name, value in (
            (noise, "release", releasing),
            (Ledger, "spend", spending),
            (PrivateSum, "step", stepping),
            (Key, "stream", streaming),
            (Key, "fresh", staticmethod(fresh)),
        ):
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(made.rng.tossed())
        yield
