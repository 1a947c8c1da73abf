"""Ranks that train together: who this process is, and the few messages that pass between ranks.

Formal guarantee: a rank's clipped sum goes to rank 0 and to nobody else, and only what rank 0 hands out comes back.
Neither keys nor images travel. Shares are added in the order of the ranks, so the total does not depend on timing.
Started without torchrun there is one rank, and every message is its own answer.

Every message has rank 0 at one end, by plain send and receive: the backend's own reduce passes partial sums from rank
to rank, and its collectives run in threads that may abort the interpreter when it ends (torch 2.13, gloo).

    edge case                      behaviour
    a rank ends or is unreachable  the next message raises RankLost on every other rank
    a rank hangs                   the same, after PATIENCE
    ranks that differ              refused by `require_same` on all of them, before anything is charged
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

# How long a rank waits for another: longer than rank 0 needs to measure accuracy and to save.
PATIENCE = timedelta(minutes=10)
LONGEST_TEXT = 64
_store: dist.Store | None = None  # what the ranks met at; it outlives a lost rank


@dataclass(frozen=True)
class Team:
    """This process is rank `rank` of `ranks`. A method that sends is called by all ranks, in the same order."""

    rank: int = 0
    ranks: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only one that sees sums without noise and writes files."""
        return self.rank == 0

    def total(self, share: Tensor) -> Tensor | None:
        """The sum of all shares, in place, on rank 0; None on the others, who see no share but their own."""
        with _noticing(self):
            if not self.first:
                dist.send(share, 0)
                return None
            for rank in range(1, self.ranks):
                other = torch.empty_like(share)
                dist.recv(other, rank)
                share += other
            return share

    def from_first(self, value: Tensor) -> Tensor:
        """Rank 0's value on every rank; elsewhere `value` only says how large it is, and is overwritten."""
        with _noticing(self):
            if not self.first:
                dist.recv(value, 0)
                return value
            for rank in range(1, self.ranks):
                dist.send(value, rank)
            return value

    def text(self, text: str = "") -> str:
        """Rank 0's short text on every rank."""
        letters = torch.tensor(list(text.encode().ljust(LONGEST_TEXT, b"\0")), dtype=torch.uint8)
        return bytes(self.from_first(letters).tolist()).rstrip(b"\0").decode()

    def any(self, here: bool) -> bool:
        """Whether it is so on any rank: the same answer on all of them, once all have asked."""
        flag = torch.tensor([int(here)])
        self.total(flag)
        return bool(self.from_first(flag).item())

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        self.any(False)

    def require_same(self, facts: dict[str, str]) -> None:
        """Refuse, on all ranks, where they differ in one of these. Digests travel, not the facts."""
        for name, fact in facts.items():
            digest = hashlib.blake2b(fact.encode(), digest_size=16).hexdigest()
            if self.any(self.text(digest) != digest):
                raise ConfigError(
                    f"{name}: not the same on all {self.ranks} ranks, so they cannot train together. Nothing was "
                    "charged. Fix: the same command, data and installation for every rank."
                )


ALONE = Team()


def start() -> None:
    """Meet the other ranks where torchrun says so; otherwise nothing happens."""
    global _store
    try:
        if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
            return
        _store, rank, ranks = next(dist.rendezvous("env://", timeout=PATIENCE))
        dist.init_process_group("gloo", store=_store, rank=rank, world_size=ranks, timeout=PATIENCE)
    except ValueError as exc:
        raise ConfigError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment asks for ranks, but does not say how they meet "
            f"({exc}). Fix: start with `torchrun --nproc-per-node 2 -m dpvision ...`, or unset WORLD_SIZE."
        ) from exc
    except RuntimeError as exc:
        raise RankLost(f"the ranks did not meet ({_reason(exc)}). Nothing was charged. Fix: start them again.") from exc


def team() -> Team:
    """Who trains together from here on."""
    return Team(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE


def rank() -> int:
    return team().rank


def ranks() -> int:
    return team().ranks


def first_to_tell() -> bool:
    """Whether this rank should print the error that it stops for: one that strikes all ranks is told once."""
    if _store is None:
        return os.environ.get("RANK", "0") == "0"
    try:
        return _store.add("dpvision/told", 1) == 1
    except RuntimeError:
        return True  # the meeting place is gone with the rank that kept it


@contextmanager
def _noticing(team: Team) -> Iterator[None]:
    try:
        yield
    except RuntimeError as exc:
        raise RankLost(
            f"rank {team.rank} of {team.ranks} lost touch with another rank, which ended or cannot be reached "
            f"({_reason(exc)})."
        ) from exc


def _reason(exc: RuntimeError) -> str:
    """The backend's own words, without the place in its source and its advice."""
    return str(exc).split("\n")[0].rsplit(".cc:", 1)[-1].split("] ", 1)[-1].split(". ")[0].rstrip(".")
