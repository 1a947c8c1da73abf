"""The durable account of one data set: an append-only, hash-chained, locked file that is written before any result.

Formal guarantees:
  1. `spend` returns only after the line that charges the event is on the disk (fsync of file and folder). A crash can
     charge for what was never released; it can not release what was never charged.
  2. What is charged composes over all runs on the data set, at the budget's delta, by the upper-bound accountant;
     an event that would take the total over the budget is refused and nothing is written.
  3. Reading, deciding and writing happen under one exclusive lock: of two runs that want the last of the budget, one
     gets it.
  4. An account counts one kind of unit, images or persons, from its first run on: epsilons for different units do not
     compose, since a person may have many images.
  5. Each line carries the hash of the line before it, and the newest hash with the number of lines is kept in a seal
     beside the file. An edited, cut, removed, swapped or copied-back line is found and refused.

The chain finds mistakes and careless edits. Someone who can write both files can forge both: the operator is trusted
(docs/PRIVACY_PROMISE.md).

A line: {"n": 3, "time": "...", "kind": "open" | "budget" | "charge", ..., "previous": "...", "hash": "..."}.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpvision import atomic
from dpvision.errors import BudgetSpent, ConfigError, DataError, LedgerMismatch, PrivacyError
from dpvision.privacy import accountant
from dpvision.privacy.events import Budget, Composed, Event, describe, from_json, given_up, to_json
from dpvision.privacy.rounding import lower, upper

FORMAT = 1
# A line is short; a longer one was not written by this file, and is not read into memory.
MOST_BYTES = 64 << 20
# What reading lines that somebody made by hand can raise.
UNSOUND = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Charge:
    """One event in the ledger. `id` names the branch of a run it pays for: paid once, however often it is resumed."""

    id: str
    run: str
    event: Event
    time: str
    private: bool = True  # False: its noise came from a fixed key, so it hides nothing
    new_account: str | None = None  # why it is not on the accounts that have some of the same images


@dataclass(frozen=True)
class Account:
    """All that the ledger says, after its chain was checked."""

    id: str  # random: tells nothing about the data
    budget: Budget
    unit: str  # "image" or "person": whom every epsilon on this account is about
    charges: tuple[Charge, ...]
    budgets: tuple[tuple[str, Budget], ...] = ()  # the first one and every change, with their times

    @property
    def total(self) -> Composed:
        return Composed(tuple(c.event for c in self.charges))

    @property
    def budget_changes(self) -> list[dict[str, Any]]:
        """What the budget was changed to after it was first set, and when."""
        return [{"time": t, "epsilon": b.epsilon, "delta": b.delta} for t, b in self.budgets[1:]]

    def spent(self) -> float:
        """Epsilon of everything charged so far, at the budget's delta."""
        return accountant.epsilon(self.total, self.budget.delta)


class Ledger:
    """The ledger of the data set with this fingerprint, in `folder`."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        if not fingerprint or not all(c in "0123456789abcdef" for c in fingerprint):
            raise ConfigError(f"a fingerprint is a lower-case hexadecimal string, not {fingerprint!r}.")
        self.path = folder / f"{fingerprint[:32]}.jsonl"
        self._seal = folder / f"{fingerprint[:32]}.seal"
        self.sketch_path = folder / f"{fingerprint[:32]}.sketch"  # of an earlier version
        self.images_path = folder / f"{fingerprint[:32]}.images"
        self.fingerprint = fingerprint

    def exists(self) -> bool:
        """Whether it was opened. (A seal that counts no line is left of a crash while opening.)"""
        sealed = self._sealed()
        return self.path.exists() or (sealed is not None and sealed[0] > 0)

    def open(self, budget: Budget, *, unit: str = "image") -> Account:
        """Start the account with this budget and unit, unless it exists: then its own stay."""
        with self.locked():
            lines = self._read()
            if not lines:
                opening = {
                    "format": FORMAT,
                    "account": secrets.token_hex(8),
                    "fingerprint": self.fingerprint,
                    "unit": unit,
                    "epsilon": budget.epsilon,
                    "delta": budget.delta,
                }
                lines = self._append(lines, "open", opening)
            return self._account(lines)

    def account(self) -> Account:
        """Read and check the whole ledger."""
        with self.locked():
            lines = self._read()
        if not lines:
            raise LedgerMismatch(
                f"{self.path}: there is no ledger for this data set yet; it begins with the first run."
            )
        return self._account(lines)

    def set_budget(self, budget: Budget) -> Account:
        """Change what the data set may spend in all. The change is a line of the ledger like any other."""
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            spent = accountant.epsilon(account.total, budget.delta)
            if _uses_up(account.total, budget.delta):
                raise BudgetSpent(
                    f"the budget can not be set to delta {budget.delta:g}: what was charged gives up a "
                    f"delta of {given_up(account.total):g} for good, so no epsilon is proved at this one. Fix: a "
                    "larger --delta."
                )
            if spent > budget.epsilon:
                raise BudgetSpent(
                    f"the budget can not be set to epsilon {budget.epsilon:g} at delta {budget.delta:g}: "
                    f"{upper(spent, 4)} is spent already, and what was released can not be taken back."
                )
            return self._account(self._append(lines, "budget", {"epsilon": budget.epsilon, "delta": budget.delta}))

    def require_room(self, event: Event, budget: Budget, *, unit: str = "image") -> None:
        """Refuse early what `spend` would refuse, where `budget` is that of a ledger still to be opened."""
        if not self.exists():
            return _require_room(budget, Composed(()), event)
        account = self.account()
        _require_unit(account, unit)
        _require_room(account.budget, account.total, event)

    def spend(
        self,
        event: Event,
        *,
        id: str,
        run: str,
        unit: str = "image",
        private: bool = True,
        new_account: str | None = None,
    ) -> Account:
        """Charge the event before it happens, or refuse. The same id is charged once: it is the same noise again."""
        with self.locked():
            lines = self._read()
            if not lines:
                raise LedgerMismatch(f"{self.path}: nothing can be charged before the ledger is opened with a budget.")
            account = self._account(lines)
            _require_unit(account, unit)
            for charge in account.charges:
                if charge.id == id:
                    if charge.event != event:
                        raise LedgerMismatch(
                            f"{self.path}: the charge {id} is there already for another event "
                            f"({describe(charge.event)}; now: {describe(event)})."
                        )
                    return account
            charged = {"id": id, "run": run, "event": to_json(event), "private": private}
            reason = {} if new_account is None else {"new_account": new_account}
            _require_room(account.budget, account.total, event)
            return self._account(self._append(lines, "charge", {**charged, **reason}))

    def lines(self) -> list[dict[str, Any]]:
        """The checked lines as they stand, for display."""
        with self.locked():
            return self._read()

    def _account(self, lines: list[dict[str, Any]]) -> Account:
        try:
            budgets = [(x["time"], Budget(x["epsilon"], x["delta"])) for x in lines if x["kind"] in ("open", "budget")]
            charges = tuple(
                Charge(x["id"], x["run"], from_json(x["event"]), x["time"], x["private"], x.get("new_account"))
                for x in lines
                if x["kind"] == "charge"
            )
            return Account(lines[0]["account"], budgets[-1][1], lines[0]["unit"], charges, tuple(budgets))
        except (*UNSOUND, ConfigError) as exc:
            raise LedgerMismatch(f"{self.path}: a line does not say what it must ({exc}). {RESTORE}") from exc

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process, or thread, at a time."""
        with ExitStack() as stack:
            try:
                atomic.make_folder(self.path.parent)
                stack.enter_context(atomic.alone(self.path.with_suffix(".lock")))
            except (OSError, DataError) as exc:
                raise PrivacyError(
                    f"{self.path}: the ledger can not be locked ({exc}), so nothing was charged. Fix: give write "
                    f"access to {self.path.parent}."
                ) from exc
            yield

    def _read(self) -> list[dict[str, Any]]:
        """The lines of an unbroken chain that ends in the seal, or LedgerMismatch."""
        sealed = self._sealed()
        if not self.path.exists():
            if sealed and sealed[0] > 0:
                raise LedgerMismatch(f"{self.path}: the ledger was deleted, but its seal is here. {RESTORE}")
            return []
        if sealed is None:
            raise LedgerMismatch(f"{self._seal}: the seal of the ledger is missing. {RESTORE}")
        try:
            raw = atomic.read(self.path, most=MOST_BYTES)
        except (OSError, ValueError) as exc:
            raise LedgerMismatch(f"{self.path}: {exc}; no ledger is so. {RESTORE}") from exc
        whole, _, torn = raw.rpartition(b"\n")
        lines: list[dict[str, Any]] = []
        previous = ""
        for number, text in enumerate(whole.split(b"\n") if whole else []):
            try:
                line = json.loads(text)
                expected = _hash(previous, {k: v for k, v in line.items() if k != "hash"})
                good = text == json.dumps(line).encode()  # not even a space may differ
                good &= line["hash"] == expected and line["previous"] == previous and line["n"] == number
            except UNSOUND:
                good = False
            if not good:
                raise LedgerMismatch(
                    f"{self.path}: line {number + 1} was changed, or one before it is missing. {RESTORE}"
                )
            previous = line["hash"]
            lines.append(line)
        if lines and lines[0].get("fingerprint") != self.fingerprint:
            raise LedgerMismatch(f"{self.path}: this ledger belongs to other data. {RESTORE}")
        # A crash may leave the chain one line ahead of the seal (the line was written, the seal not yet), and half a
        # line after it (then nothing was released on its account). Behind the seal, lines were taken away.
        count, last = sealed
        ahead = len(lines) - count
        if not 0 <= ahead <= 1 or (count > 0 and lines[count - 1]["hash"] != last):
            raise LedgerMismatch(f"{self.path}: lines are missing at the end, or were added by other means. {RESTORE}")
        try:
            if torn:
                os.truncate(self.path, len(raw) - len(torn))
            if ahead:
                self._write_seal(lines)
        except OSError as exc:
            raise PrivacyError(f"{self.path}: what a crash left can not be mended ({exc.strerror}).") from exc
        return lines

    def _append(self, lines: list[dict[str, Any]], kind: str, content: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            return self._append_and_sync(lines, kind, content)
        except OSError as exc:
            raise PrivacyError(
                f"{self.path}: the ledger could not be written ({exc.strerror}), so nothing was released. Fix: make "
                "room or give write access, then run the same command again."
            ) from exc

    def _append_and_sync(self, lines: list[dict[str, Any]], kind: str, content: dict[str, Any]) -> list[dict[str, Any]]:
        if not lines:
            self._write_seal(lines)  # the seal comes first, so that a ledger without one has lost it
        previous = lines[-1]["hash"] if lines else ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"n": len(lines), "time": now, "kind": kind, **content, "previous": previous}
        line["hash"] = _hash(previous, line)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write_all(descriptor, json.dumps(line).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        atomic.sync_folder(self.path.parent)
        lines = [*lines, line]
        self._write_seal(lines)
        return lines

    def _sealed(self) -> tuple[int, str] | None:
        if not self._seal.exists():
            return None
        try:
            text = atomic.read(self._seal, most=200).decode("ascii")
            count, last = text.split()
            if text != f"{int(count)} {last}\n":
                raise ValueError
            return int(count), last
        except (ValueError, OSError):
            raise LedgerMismatch(f"{self._seal}: the seal of the ledger was changed. {RESTORE}") from None

    def _write_seal(self, lines: list[dict[str, Any]]) -> None:
        atomic.write(self._seal, f"{len(lines)} {lines[-1]['hash'] if lines else '-'}\n")


RESTORE = (
    "Nothing is charged or released on an account that can not be trusted. Fix: restore the ledger and its seal from a "
    "backup."
)


# Another home, for what this thread does now and no other: of shadow models, whose ledgers are thrown away.
_elsewhere: ContextVar[Path | None] = ContextVar("home", default=None)


def home() -> Path:
    """Where ledgers and run keys live: $DPVISION_HOME, or ~/.dpvision; a folder that nobody else may write to."""
    place = _elsewhere.get() or Path(os.environ.get("DPVISION_HOME") or Path.home() / ".dpvision")
    if not place.is_absolute():
        raise ConfigError(
            f"DPVISION_HOME is {str(place)!r}, a relative path: the same command would have another ledger, with a "
            f'whole budget, in every working directory. Fix: an absolute path, such as DPVISION_HOME="$PWD/{place}".'
        )
    for folder in (place, place / "ledgers", place / "keys"):
        _require_own(folder)
    return place


def _require_own(folder: Path) -> None:
    """Whoever may write to the folder can replace ledgers, or keys by their own."""
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return  # made later, for the owner only; or a clear error where it is used
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivacyError(
            f"{folder}: its group or all others may write to it, so anybody could replace ledgers or keys. Fix: "
            f"`chmod go-w {folder}`, after a look at who wrote there."
        )


@contextmanager
def home_is(place: Path) -> Iterator[None]:
    """Within this block, in this thread."""
    token = _elsewhere.set(place)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def ledger_of(fingerprint: str) -> Ledger:
    return Ledger(home() / "ledgers", fingerprint)


def _require_unit(account: Account, unit: str) -> None:
    if account.unit != unit:
        raise PrivacyError(
            f"the account of this data set counts {account.unit}s since its first run, and this run would count "
            f"{unit}s: what is told about one {account.unit} and about one {unit} does not add up to one figure. "
            f"Nothing was charged. Fix: --unit {account.unit}."
        )


def _require_room(budget: Budget, before: Composed, event: Event) -> None:
    so_far = accountant.epsilon(before, budget.delta)
    after = accountant.epsilon(Composed((*before.events, event)), budget.delta)
    if _uses_up(Composed((*before.events, event)), budget.delta):
        raise BudgetSpent(
            f"the data set's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}. What was charged gives up "
            f"{given_up(before):g} of delta for good and this {given_up(event):g} ({describe(event)}): together they "
            "use it up, and no epsilon would be proved at all. Nothing was charged. Fix: for this a smaller --delta, "
            "of which a tuning gives up half; or a training, which gives up none; or, if the owner of the data agrees, "
            "`dpvision ledger DATA --set-budget EPSILON --delta DELTA` with a larger delta."
        )
    if after > budget.epsilon:
        raise BudgetSpent(
            f"the data set's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}, "
            f"{upper(so_far, 4)} of it is spent, and this would make it {upper(after, 4)} "
            f"({describe(event)}). Nothing was charged. Fix: {_smaller(budget.epsilon - so_far)}if the owner of "
            "the data agrees that more may be told about each of them, `dpvision ledger DATA --set-budget EPSILON`."
        )


def _smaller(left: float) -> str:
    return f"a smaller --epsilon (about {lower(left)} is left), or, " if left >= 0.01 else ""


def _uses_up(total: Event, delta: float) -> bool:
    """Whether epsilon is infinite for want of delta, not of noise. (Deltas compose to a hair below their sum.)"""
    return math.isinf(accountant.epsilon(total, delta)) and given_up(total) > 0.999 * delta


def _hash(previous: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b((previous + text).encode(), digest_size=20).hexdigest()


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
