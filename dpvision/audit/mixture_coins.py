"""Coins of released mixtures, kept by record: one record more must not move anybody else's in a replay.

A mixture draws the coins of all records and rows from one stream, in one go. With a record more, all others would get
other bits of it: as random as before, but no longer the same ones. So the coins and weights of one recording are kept
by row and record, and handed to those of the next one that were there before; who is new keeps their own. Records that
both have must stand at the same places, so the one more must be the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.audit.replaced import replaced
from dpvision.core.keys import Stream
from dpvision.core.sampling import Chosen, Poisson, Scheduled
from dpvision.private.statistics.mixture_weights import RandomWeights

Block = Any  # the step of the stream that a block of rows gets its coins from
Toss = tuple[int, int]  # row of the block, record


class MixtureCoins:
    """Who was drawn, of how many, and with which weight, in each block of rows; as `like` had it, where it did."""

    def __init__(self, like: MixtureCoins | None = None) -> None:
        self._like = like
        self._drawn: dict[Block, list[Toss]] = {}
        self._records: dict[Block, int] = {}
        self._weights: dict[Block, dict[Toss, float]] = {}

    @contextmanager
    def tossed(self) -> Iterator[None]:
        """Within, samplers and weights of mixtures go by these coins."""
        shares = RandomWeights.shares

        def choosing(choose: Any) -> Any:
            def chosen(sampler: Any, labels: NDArray[np.int64], rows: range, stream: Stream) -> Chosen:
                return self._chosen(choose(sampler, labels, rows, stream), len(labels), _block(stream))

            return chosen

        def weighing(weights: RandomWeights, stream: Stream, count: int, *, degree: float) -> NDArray[np.float64]:
            return self._weighed(shares(weights, stream, count, degree=degree), _block(stream))

        with (
            replaced(Poisson, "choose", choosing(Poisson.choose)),
            replaced(Scheduled, "choose", choosing(Scheduled.choose)),
            replaced(RandomWeights, "shares", weighing),
        ):
            yield

    def _chosen(self, fresh: Chosen, records: int, block: Block) -> Chosen:
        rows = len(fresh.starts) - 1
        row = np.repeat(np.arange(rows), np.diff(fresh.starts)).tolist()
        tosses = list(zip(row, fresh.members.tolist(), strict=True))
        if self._like is not None and block in self._like._drawn:
            known = self._like._records[block]
            tosses = [t for t in self._like._drawn[block] if t[1] < records] + [t for t in tosses if t[1] >= known]
            tosses.sort()
        self._drawn[block], self._records[block] = tosses, records
        members = np.array([member for _, member in tosses], dtype=np.int64)
        return Chosen(members, np.searchsorted([row for row, _ in tosses], np.arange(rows + 1)))

    def _weighed(self, fresh: NDArray[np.float64], block: Block) -> NDArray[np.float64]:
        known = {} if self._like is None else self._like._weights.get(block, {})
        tosses = self._drawn.get(block, [])
        if len(tosses) != len(fresh):
            return fresh  # not one weight for each that was drawn
        self._weights[block] = {t: known.get(t, float(w)) for t, w in zip(tosses, fresh, strict=True)}
        return np.array([self._weights[block][t] for t in tosses])


def _block(stream: Stream) -> Block:
    use = getattr(stream, "use", None)
    return None if use is None else use[1:]
