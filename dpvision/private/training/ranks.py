"""Ranks, the worker processes of one training run: the number of this process, and the messages between ranks.

Formal guarantee: a rank's clipped sum is sent only to rank 0, and other ranks receive messages only from rank 0.
Neither keys nor images are sent, and every message is encrypted and authenticated (links.py). Clipped sums are added in
the order of the ranks, so the total does not depend on timing. Without torchrun, there is one rank and nothing is sent.

Every message is a plain send and receive with rank 0 at one end: the reduce operation of the backend passes partial
sums from rank to rank, and its collectives run in threads that can abort the interpreter at exit (torch 2.13, gloo).

    edge case                      behaviour
    a rank ends or is unreachable  the next message raises RankLost on every other rank
    a rank hangs                   the same, after TIMEOUT
    a message altered in transit   the same, on the receiving rank
    a rank without the links' key  an error on all ranks, when they meet
    ranks that differ              an error from `require_same` on all ranks, before anything is charged
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from dpvision.errors import ConfigError, RankLost
from dpvision.private.training import links

# How long ranks wait for each other; longer than rank 0 takes to measure accuracy and save.
TIMEOUT = timedelta(minutes=10)
MAX_TEXT = 64
_store: dist.Store | None = None  # where the ranks met; it outlives a failed rank
_link: links.Link | None = None


@dataclass(frozen=True)
class Team:
    """This process as rank `rank` of `ranks`. All ranks must call methods that communicate, in the same order."""

    rank: int = 0
    ranks: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only one that sees sums without noise and writes files."""
        return self.rank == 0

    def total(self, share: Tensor) -> Tensor | None:
        """Return the sum of all shares, in place, on rank 0; None on the others, which see only their own share."""
        with _raising_rank_lost(self):
            if not self.first:
                _require_link().send(share, 0)
                return None
            for rank in range(1, self.ranks):
                other = torch.empty_like(share)
                _require_link().receive(other, rank)
                share += other
            return share

    def from_first(self, value: Tensor) -> Tensor:
        """Return rank 0's value on every rank; on the others, `value` has the same size and is overwritten."""
        with _raising_rank_lost(self):
            if not self.first:
                _require_link().receive(value, 0)
                return value
            for rank in range(1, self.ranks):
                _require_link().send(value, rank)
            return value

    def text(self, text: str = "") -> str:
        """Return rank 0's short text on every rank."""
        letters = torch.tensor(list(text.encode().ljust(MAX_TEXT, b"\0")), dtype=torch.uint8)
        return bytes(self.from_first(letters).tolist()).rstrip(b"\0").decode()

    def any(self, here: bool) -> bool:
        """Return whether `here` is true on any rank; blocks until all ranks have called it."""
        flag = torch.tensor([int(here)])
        self.total(flag)
        return bool(self.from_first(flag).item())

    def wait(self) -> None:
        """Wait until all ranks have reached this call."""
        self.any(False)

    def require_same(self, facts: dict[str, str]) -> None:
        """Raise an error on all ranks if any of these facts differs between them; only digests are sent."""
        for name, fact in facts.items():
            digest = hashlib.blake2b(fact.encode(), digest_size=16).hexdigest()
            if self.any(self.text(digest) != digest):
                raise ConfigError(
                    f"{name}: not the same on all {self.ranks} ranks, so they cannot train together. Nothing was "
                    "charged. Fix: use the same command, data and installation for every rank."
                )


ALONE = Team()


def start() -> None:
    """Connect to the other ranks if torchrun started several; otherwise do nothing."""
    global _store, _link
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
            return
        _store, rank, ranks = next(dist.rendezvous("env://", timeout=TIMEOUT))
        dist.init_process_group("gloo", store=_store, rank=rank, world_size=ranks, timeout=TIMEOUT)
        _link = links.connect(_store, rank, ranks)
    except ValueError as exc:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment requests several ranks, but not where they meet "
            f"({exc}). Fix: start with `torchrun --nproc-per-node 2 -m dpvision -- ...`, or unset WORLD_SIZE."
        ) from exc
    except RuntimeError as exc:
        raise RankLost(
            f"the ranks could not connect ({_reason(exc)}). Nothing was charged. Fix: start them again."
        ) from exc


def team() -> Team:
    """Return the team of ranks that train together, as seen from this process."""
    return Team(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE


def rank() -> int:
    """Return the rank of this process, counted from 0."""
    return team().rank


def ranks() -> int:
    """Return the number of ranks that train together."""
    return team().ranks


def is_first_to_report() -> bool:
    """Return whether this rank should print its error: one that stops all ranks is printed once."""
    if _store is None:
        return os.environ.get("RANK", "0") == "0"
    try:
        return _store.add("dpvision/reported", 1) == 1
    except RuntimeError:
        return True  # the store ended with the rank that hosted it


def _require_link() -> links.Link:
    assert _link is not None  # with several ranks, `start` has set it
    return _link


@contextmanager
def _raising_rank_lost(team: Team) -> Iterator[None]:
    try:
        yield
    except RuntimeError as exc:
        raise RankLost(
            f"rank {team.rank} of {team.ranks} lost contact with another rank, which ended or cannot be reached "
            f"({_reason(exc)})."
        ) from exc


def _reason(exc: RuntimeError) -> str:
    """Return the backend's own message, without its source line and its advice."""
    return str(exc).split("\n")[0].rsplit(".cc:", 1)[-1].split("] ", 1)[-1].split(". ")[0].rstrip(".")
