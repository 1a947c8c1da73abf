"""The ledger of one data set: an append-only, hash-chained, locked file that is written before any result exists.

Formal guarantees:
  1. `spend` returns only after the line that charges the event is on disk (fsync of file and folder). A crash can
     charge for what was never released; it cannot release what was never charged.
  2. Everything charged on the data set is within the budget (epsilon, delta), even if each run was chosen after seeing
     earlier results; an event that would exceed it is refused, and nothing is written. Epsilons for different units do
     not compose, so an account has one kind of unit, set by its first run.
  3. Reading, deciding and writing happen under one exclusive lock, so two runs cannot both spend the same budget.
  4. Each line carries the hash of the line before it, and a seal next to the file stores the newest hash and the number
     of lines. An edited, cut, removed, swapped or copied-back line is detected and refused.

The chain detects mistakes and careless edits. Anyone who can write both files can forge both: the operator is trusted.

A line is {"n": 3, "time": "...", "kind": KIND, ..., "previous": "...", "hash": "..."}, where KIND is

    open, budget    the privacy budget
    plan, unplan    an event that will be run, written before any result on the data set; or the end of all plans
    charge          an event that is about to happen. The first charge after plans charges all of them; later runs of
                    these plans name their lines and cost nothing more
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpvision.core import accountant, files
from dpvision.core.account import Account, read_line, rounded_up, uses_up_delta
from dpvision.core.events import Budget, Event, fixed_delta, to_json
from dpvision.errors import BudgetSpent, ConfigError, DataError, LedgerMismatch, PrivacyError

FORMAT = 1
MAX_BYTES = 64 << 20  # of a ledger file: a larger one was not written by this module, and is not read into memory
# Exceptions that reading a manually edited line can raise.
UNSOUND = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError)
RESTORE = "Nothing is charged or released on such an account. Fix: restore the ledger and its seal from a backup."
Lines = list[dict[str, Any]]


class Ledger:
    """The ledger of the data set with this fingerprint, in `folder`."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        if not fingerprint or not all(c in "0123456789abcdef" for c in fingerprint):
            raise ConfigError(f"a fingerprint is a lower-case hexadecimal string, not {fingerprint!r}.")
        self.fingerprint, self.path = fingerprint, folder / f"{fingerprint[:32]}.jsonl"
        self._seal, self.images_path = self.path.with_suffix(".seal"), self.path.with_suffix(".images")

    def exists(self) -> bool:
        """Whether the ledger was opened. (A seal with zero lines remains from a crash during opening.)"""
        sealed = self._read_seal()
        return self.path.exists() or (sealed is not None and sealed[0] > 0)

    def open(self, budget: Budget, *, unit: str = "image") -> Account:
        """Open the account with this budget and unit, or return the existing account unchanged."""
        with self.locked():
            lines = self._read()
            if not lines:
                name = {"format": FORMAT, "account": secrets.token_hex(8), "fingerprint": self.fingerprint}
                lines = self._append(lines, "open", name | {"unit": unit} | vars(budget))
            return self._account(lines)

    def account(self) -> Account:
        """Read and verify the whole ledger."""
        with self.locked():
            lines = self._read()
        return self._account(lines)

    def set_budget(self, budget: Budget) -> Account:
        """Change the data set's privacy budget. The change is a line of the ledger like any other."""
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            spent = accountant.epsilon(account.total, budget.delta)
            refused = f"the budget cannot be set to epsilon {budget.epsilon:g} at delta {budget.delta:g}"
            if uses_up_delta(account.total, budget.delta):
                used = f"earlier charges use up a delta of {fixed_delta(account.total):g}"
                raise BudgetSpent(f"{refused}: {used}, so no epsilon can be proved. Fix: use a larger --delta.")
            if spent > budget.epsilon:
                raise BudgetSpent(f"{refused}: {rounded_up(spent)} is spent already, and a release cannot be undone.")
            return self._account(self._append(lines, "budget", vars(budget)))

    def require_room(self, event: Event, budget: Budget, *, unit: str = "image") -> None:
        """Refuse early what `spend` would refuse; `budget` is for a ledger that is not open yet."""
        account = self.account() if self.exists() else Account("", budget, unit, ())
        account.require_unit(unit)
        account.require_within_budget(account.with_event(event).total, event)

    def plan(self, event: Event, *, run: str, unit: str = "image") -> Account:
        """Record that this event will be run: the next charge pays for everything planned."""
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            account.require_unit(unit)
            planned = replace(account, plan=(*account.plan, (len(lines), event)))
            planned.require_within_budget(planned.total_planned, event)
            return self._account(self._append(lines, "plan", {"run": run, "event": to_json(event)}))

    def drop_plan(self) -> Account:
        """Drop all plans that were not charged yet. Charges remain."""
        with self.locked():
            lines = self._read()
            return self._account(self._append(lines, "unplan", {}) if self._account(lines).plan else lines)

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
        """Charge the event before it happens, or refuse. An id is charged once, as it stands for the same noise."""
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            account.require_unit(unit)
            charged = next((charge.event for charge in account.charges if charge.id == id), None)
            if charged not in (None, event):
                raise LedgerMismatch(f"{self.path}: the charge {id} is for {charged}, not for {event}.")
            if charged is not None:
                return account
            after = account.with_event(event)
            account.require_within_budget(after.total, event)
            content = {"id": id, "run": run, "event": to_json(event), "private": private}
            optional = {"new_account": new_account, "plan": account.line_of_plan(event)}
            content |= {name: value for name, value in optional.items() if value is not None}
            if len(after.groups) > len(account.groups) and (later := after.groups[-1].later) is not None:
                content |= {"sigma": later.sigma, "leak": later.leak}
            return self._account(self._append(lines, "charge", content))

    def _account(self, lines: Lines) -> Account:
        if not lines:
            raise LedgerMismatch(f"{self.path}: this data set has no ledger yet; its first run opens one.")
        try:
            first = lines[0]
            account = Account(first["account"], Budget(first["epsilon"], first["delta"]), first["unit"], ())
            for line in lines:
                account = read_line(account, line)
            return replace(account, charges=tuple(replace(charge, ledger=self) for charge in account.charges))
        except (*UNSOUND, ConfigError) as exc:
            raise LedgerMismatch(f"{self.path}: a line has invalid content ({exc}). {RESTORE}") from exc

    def locked(self) -> AbstractContextManager[None]:
        """Hold this ledger's lock: one process or thread at a time."""
        return hold_lock(self.path.with_suffix(".lock"))

    def _read(self) -> Lines:
        """Return the lines of an unbroken chain that ends in the seal, or raise LedgerMismatch."""
        sealed = self._read_seal()
        if not self.path.exists():
            if sealed and sealed[0] > 0:
                raise LedgerMismatch(f"{self.path}: the ledger was deleted, but its seal exists. {RESTORE}")
            return []
        if sealed is None:
            raise LedgerMismatch(f"{self._seal}: the seal of the ledger is missing. {RESTORE}")
        try:
            raw = files.read(self.path, most=MAX_BYTES)
        except (OSError, ValueError) as exc:
            raise LedgerMismatch(f"{self.path}: {exc}, so it is not a ledger. {RESTORE}") from exc
        whole, _, torn = raw.rpartition(b"\n")
        lines, previous = Lines(), ""
        for number, text in enumerate(whole.split(b"\n") if whole else []):
            try:
                line = json.loads(text)
                expected = _hash(previous, {k: v for k, v in line.items() if k != "hash"})
                good = text == json.dumps(line).encode()  # not even a space may differ
                good &= line["hash"] == expected and line["previous"] == previous and line["n"] == number
            except UNSOUND:
                good = False
            if not good:
                raise LedgerMismatch(f"{self.path}: line {number + 1} was changed, or one before is missing. {RESTORE}")
            previous = line["hash"]
            lines.append(line)
        if lines and lines[0].get("fingerprint") != self.fingerprint:
            raise LedgerMismatch(f"{self.path}: this ledger belongs to other data. {RESTORE}")
        # A crash may leave the chain one line ahead of the seal (the line was written, the seal was not), or a partial
        # line at the end (then nothing was released for it). If the chain is behind the seal, lines were removed.
        count, last = sealed
        ahead = len(lines) - count
        if not 0 <= ahead <= 1 or (count > 0 and lines[count - 1]["hash"] != last):
            raise LedgerMismatch(f"{self.path}: lines at the end were removed, or added by other means. {RESTORE}")
        try:
            if torn:
                os.truncate(self.path, len(raw) - len(torn))
            if ahead:
                self._write_seal(lines)
        except OSError as exc:
            raise PrivacyError(f"{self.path}: cannot be repaired after a crash ({exc.strerror}).") from exc
        return lines

    def _append(self, lines: Lines, kind: str, content: dict[str, Any]) -> Lines:
        """Append a line, with its seal, durably, and return all lines."""
        previous = lines[-1]["hash"] if lines else ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"n": len(lines), "time": now, "kind": kind, **content, "previous": previous}
        line["hash"] = _hash(previous, line)
        try:
            if not lines:
                self._write_seal(lines)  # the seal comes first, so a ledger without a seal has lost it
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                data = json.dumps(line).encode() + b"\n"
                while data:
                    data = data[os.write(descriptor, data) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            files.sync_folder(self.path.parent)
            self._write_seal([*lines, line])
        except OSError as exc:
            raise PrivacyError(
                f"{self.path}: the ledger could not be written ({exc.strerror}), so nothing was released. Fix: free "
                "disk space or grant write access, then run the same command again."
            ) from exc
        return [*lines, line]

    def _read_seal(self) -> tuple[int, str] | None:
        """Return the number of lines and the newest hash from the seal; None if there is no seal."""
        if not self._seal.exists():
            return None
        try:
            text = files.read(self._seal, most=200).decode("ascii")
            count, last = text.split()
            if text != f"{int(count)} {last}\n":
                raise ValueError
            return int(count), last
        except (ValueError, OSError):
            raise LedgerMismatch(f"{self._seal}: the seal of the ledger was changed. {RESTORE}") from None

    def _write_seal(self, lines: Lines) -> None:
        files.write(self._seal, f"{len(lines)} {lines[-1]['hash'] if lines else '-'}\n")


@contextmanager
def hold_lock(lock: Path) -> Iterator[None]:
    """Hold a lock for one process or thread at a time; if it cannot be locked, nothing is charged."""
    with ExitStack() as stack:
        try:
            files.make_folder(lock.parent)
            stack.enter_context(files.locked(lock))
        except (OSError, DataError) as exc:
            raise PrivacyError(
                f"{lock}: the ledger cannot be locked ({exc}), so nothing was charged. Fix: grant write access to "
                f"{lock.parent}."
            ) from exc
        yield


def _hash(previous: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b((previous + text).encode(), digest_size=20).hexdigest()
