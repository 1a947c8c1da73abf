"""Record a run of a mechanism: all data that reaches the noise, and everything that is public.

While a mechanism is recorded

    noise.add_noise    records the sum, its sensitivity, its sigma and the random stream that it draws from
    Ledger.spend       records the event that is charged
    PrivateSum.step    records the public vectors that shape contributions before they are clipped
    Key.fresh          returns a fixed key, the same one in every recording
    Key.stream         names streams by their use and by the order in which their branches appear, not by the branch
                       itself, which is a digest of the data: two recordings draw the same random numbers
    samplers           of mixtures draw the same rows and weights for records that both recordings have

Everything else is the real code. In a recording that is made `like` another one, each noise call returns the result of
that recording: the mechanism takes the same path whatever its data are, and every difference is due to the data.

A mechanism of your own can be recorded if it calls `noise.add_noise(...)` by that name, and gets its key as an argument
or from `Key.fresh()`. Its return values on neighbours must be equal.
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

from dpvision.core import noise
from dpvision.core.account import Account
from dpvision.core.events import Event
from dpvision.core.keys import KEY_BYTES, Key, Stream
from dpvision.core.ledger import Ledger
from dpvision.core.sampling import Poisson, RowMembers, Scheduled
from dpvision.private.engine import Public
from dpvision.private.statistics.mixtures import RandomWeights
from dpvision.private.training.private_sum import Fetch, PrivateSum

Data = TypeVar("Data")
# Purpose, step, rank and branch of the stream of the noise; the number of the call if the stream is unknown.
Use = tuple[str, int, int, int] | int


@contextmanager
def patched(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute of a module or class for the duration of a block."""
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class MixtureDraws:
    """The records that were drawn for each block of rows of a released mixture, and their weights, as in `like`.

    A mixture draws all records and rows from one stream at once, so one more record would change the draws of all
    others. The draws of one recording are therefore stored by row and record, and reused for the same records in the
    next; a new record has its own draws. Records that both recordings have must be at the same positions, so an
    additional record must be the last one.
    """

    def __init__(self, like: MixtureDraws | None = None) -> None:
        self._like = like
        # By block, identified by the step of its stream: pairs (row of the block, record), number of records, weights.
        self._drawn: dict[Any, list[tuple[int, int]]] = {}
        self._records: dict[Any, int] = {}
        self._weights: dict[Any, dict[tuple[int, int], float]] = {}

    @contextmanager
    def patch_samplers(self) -> Iterator[None]:
        """Make samplers and weights of mixtures use these draws within the block."""
        shares_of = RandomWeights.shares

        def patched_choose(choose: Any) -> Any:
            def choosing(sampler: Any, labels: NDArray[np.int64], rows: range, stream: Stream) -> RowMembers:
                return self._choose(choose(sampler, labels, rows, stream), len(labels), _block(stream))

            return choosing

        def weighing(weights: RandomWeights, stream: Stream, count: int, *, degree: float) -> NDArray[np.float64]:
            return self._weigh(shares_of(weights, stream, count, degree=degree), _block(stream))

        with (
            patched(Poisson, "choose", patched_choose(Poisson.choose)),
            patched(Scheduled, "choose", patched_choose(Scheduled.choose)),
            patched(RandomWeights, "shares", weighing),
        ):
            yield

    def _choose(self, fresh: RowMembers, records: int, block: Any) -> RowMembers:
        rows = len(fresh.starts) - 1
        row = np.repeat(np.arange(rows), np.diff(fresh.starts)).tolist()
        drawn = list(zip(row, fresh.members.tolist(), strict=True))
        if self._like is not None and block in self._like._drawn:
            known = self._like._records[block]
            drawn = [d for d in self._like._drawn[block] if d[1] < records] + [d for d in drawn if d[1] >= known]
            drawn.sort()
        self._drawn[block], self._records[block] = drawn, records
        members = np.array([member for _, member in drawn], dtype=np.int64)
        return RowMembers(members, np.searchsorted([row for row, _ in drawn], np.arange(rows + 1)))

    def _weigh(self, fresh: NDArray[np.float64], block: Any) -> NDArray[np.float64]:
        known = {} if self._like is None else self._like._weights.get(block, {})
        drawn = self._drawn.get(block, [])
        if len(drawn) != len(fresh):
            return fresh  # there is not one weight for each drawn record
        self._weights[block] = {d: known.get(d, float(w)) for d, w in zip(drawn, fresh, strict=True)}
        return np.array([self._weights[block][d] for d in drawn])


def _block(stream: Stream) -> Any:
    use = getattr(stream, "use", None)
    return None if use is None else use[1:]


@dataclass(frozen=True)
class NoiseCall:
    """One call of noise.add_noise: its arguments, its result, and the number of events charged before it."""

    use: Use
    total: NDArray[np.float64]
    sensitivity: float
    sigma: float
    result: NDArray[np.float64]
    charged: int


@dataclass
class Recording:
    """One run of a mechanism: its noise calls, everything public, and its return value or its error."""

    calls: list[NoiseCall] = field(default_factory=list)
    charges: list[Event] = field(default_factory=list)
    public: list[Public | None] = field(default_factory=list)
    streams: Counter[Use] = field(default_factory=Counter)  # how often each stream was opened
    outcome: object = None
    error: Exception | SystemExit | None = None
    draws: MixtureDraws = field(default_factory=MixtureDraws)

    def results(self) -> dict[Use, NDArray[np.float64]]:
        """Return the result of each noise call by its stream; if a stream was used twice, the first result."""
        return {call.use: call.result for call in reversed(self.calls)}


def record(mechanism: Callable[[Data], object], data: Data, *, like: Recording | None = None) -> Recording:
    """Run the mechanism on the data and record it, with the noisy results and the draws of `like`."""
    recording = Recording(draws=MixtureDraws(None if like is None else like.draws))
    with _recorded(recording, {} if like is None else like.results()), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            recording.outcome = mechanism(data)
        except (Exception, SystemExit) as error:
            recording.error = error
    return recording


@contextmanager
def _recorded(recording: Recording, results: dict[Use, NDArray[np.float64]]) -> Iterator[None]:
    """Patch the functions that are recorded."""
    release, spend, stream_of, step_of = noise.add_noise, Ledger.spend, Key.stream, PrivateSum.step
    branches: dict[str, int] = {}
    keys: list[Key] = []

    def releasing(
        total: NDArray[np.float64], stream: Stream, *, sensitivity: float, sigma: float
    ) -> NDArray[np.float64]:
        use = getattr(stream, "use", len(recording.calls))
        before = np.array(total, dtype=np.float64)
        result = release(total, stream, sensitivity=sensitivity, sigma=sigma)  # it may refuse
        result = results.get(use, result)
        recording.calls.append(NoiseCall(use, before, sensitivity, sigma, result.copy(), len(recording.charges)))
        return result

    def spending(self: Ledger, event: Event, **rest: Any) -> Account:
        account = spend(self, event, **rest)
        recording.charges.append(event)
        return account

    def stepping(self: PrivateSum, number: int, units: int, fetch: Fetch, public: Public | None = None) -> torch.Tensor:
        recording.public.append(deepcopy(public))
        return step_of(self, number, units, fetch, public)

    def streaming(self: Key, purpose: str, *, step: int, rank: int = 0, branch: str = "") -> Stream:
        number = branches.setdefault(branch, len(branches))
        stream = stream_of(self, purpose, step=step, rank=rank, branch=str(number))
        stream.use = (purpose, step, rank, number)  # type: ignore[attr-defined]
        recording.streams[purpose, step, rank, number] += 1
        return stream

    def fresh() -> Key:
        keys.append(Key(blake2b(b"replay %d" % len(keys), digest_size=KEY_BYTES).digest(), private=True))
        return keys[-1]

    with ExitStack() as stack:
        for owner, name, value in (
            (noise, "add_noise", releasing),
            (Ledger, "spend", spending),
            (PrivateSum, "step", stepping),
            (Key, "stream", streaming),
            (Key, "fresh", staticmethod(fresh)),
        ):
            stack.enter_context(patched(owner, name, value))
        stack.enter_context(recording.draws.patch_samplers())
        yield
