"""The durable account of one data set: an append-only, hash-chained, locked file that is written before any result.

Formal guarantees:
  1. `spend` returns only after the line that charges the event is on the disk (fsync of file and folder). A crash can
     charge for what was never released; it cannot release what was never charged.
  2. All that is charged on the data set is within the budget (epsilon, delta), also where each run was chosen after
     seeing the results of those before it (core/adaptive.py); an event that would take the total over the budget is
     refused and nothing is written. Events that were all in the ledger before the first result, by `plan`, compose by
     their privacy loss distributions.
  3. Reading, deciding and writing happen under one exclusive lock: of two runs that want the last of the budget, one
     gets it.
  4. An account counts one kind of unit, images or persons, from its first run on: epsilons for different units do not
     compose, since a person may have many images.
  5. Each line carries the hash of the line before it, and the newest hash with the number of lines is kept in a seal
     beside the file. An edited, cut, removed, swapped or copied-back line is found and refused.

The chain finds mistakes and careless edits. Someone who can write both files can forge both: the operator is trusted
(docs/PRIVACY_PROMISE.md).

A line: {"n": 3, "time": "...", "kind": KIND, ..., "previous": "...", "hash": "..."}, where KIND is

    open, budget    what may be spent in all
    plan, unplan    an event that is going to be run, written before anything is released on it; or that none is
    charge          an event that is about to happen. The first charge after some plans charges all of them; later runs
                    of the same plan name its line and cost nothing more
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpvision.core import accountant, adaptive, files
from dpvision.core.events import (
    LEAST_SIGMA,
    Adaptive,
    Budget,
    Composed,
    Event,
    Later,
    Tuned,
    describe,
    exposures,
    from_json,
    given_up,
    to_json,
)
from dpvision.core.rounding import lower, upper
from dpvision.errors import BudgetSpent, ConfigError, DataError, LedgerMismatch, PrivacyError

FORMAT = 1
# An account with this share of the new images, or of whose images this share is new data, is charged.
SHARE = 0.02
# A line is short; a longer one was not written by this file, and is not read into memory.
MOST_BYTES = 64 << 20
# What reading lines that somebody made by hand can raise.
UNSOUND = (ValueError, KeyError, IndexError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Charge:
    """One event in the ledger. `id` names the branch of a run it pays for: paid once, however often it is resumed."""

    id: str
    run: str
    event: Event
    time: str
    private: bool = True  # False: its noise came from a fixed key, so it hides nothing
    new_account: str | None = None  # why it is not on the accounts that have some of the same images
    ledger: Ledger | None = field(default=None, compare=False, repr=False)  # that it was read from
    paid_by: Charge | None = field(default=None, compare=False, repr=False)  # of a trial: the charge of its tuning

    def on_disk(self) -> bool:
        """Whether its ledger, read now, has this very charge; of a trial, that of its tuning."""
        charge = self.paid_by or self
        if self.paid_by and not (isinstance(charge.event, Tuned) and self.event in charge.event.trials):
            return False
        return charge.ledger is not None and charge in charge.ledger.account().charges

    def trial(self, event: Event, *, id: str) -> Charge:
        """One of the trials that this charge of a tuning pays for, as a charge of its own noise."""
        if not isinstance(self.event, Tuned) or event not in self.event.trials or not self.on_disk():
            raise LedgerMismatch("the ledger was not charged for a tuning with such a trial.")
        return replace(self, id=id, event=event, paid_by=self)


@dataclass(frozen=True)
class Group:
    """Events that were all in the ledger before the first of them had a result: planned ones, and the one charged."""

    events: tuple[Event, ...]
    later: Later | None  # what dominates them, where they were chosen after seeing results; None for the first group
    planned: tuple[tuple[int, Event], ...] = ()  # those of a plan that no run has taken yet, by the line they are in

    @property
    def event(self) -> Event:
        return self.events[0] if len(self.events) == 1 else Composed(self.events)


@dataclass(frozen=True)
class Account:
    """All that the ledger says, after its chain was checked."""

    id: str  # random: tells nothing about the data
    budget: Budget
    unit: str  # "image" or "person": whom every epsilon on this account is about
    charges: tuple[Charge, ...]
    budgets: tuple[tuple[str, Budget], ...] = ()  # the first one and every change, with their times
    groups: tuple[Group, ...] = ()  # in the order in which they were charged
    plan: tuple[tuple[int, Event], ...] = ()  # events that are planned, of which none was run yet, by their lines
    grouped: tuple[int, ...] = field(default=(), repr=False)  # for each charge, how many groups there were after it

    @property
    def total(self) -> Event:
        """Everything that was charged."""
        return self._of(self.groups)

    def total_after(self, charges: int) -> Event:
        """Everything that had been charged with the first so many charges."""
        return self._of(self.groups[: self.grouped[charges - 1]] if charges else ())

    def total_with(self, event: Event) -> Event:
        """Everything, if this event were charged next."""
        group, _ = self.next_group(event)
        return self.total if group is None else self._of((*self.groups, group))

    @property
    def total_planned(self) -> Event:
        """Everything, with what is planned."""
        return self._of((*self.groups, self._group([e for _, e in self.plan], ()))) if self.plan else self.total

    def next_group(self, event: Event) -> tuple[Group | None, int | None]:
        """The group that this event would be charged with, and its line in a plan; no group if it is paid already."""
        for line, planned in (x for group in self.groups for x in group.planned):
            if planned == event:
                return None, line
        at = next((line for line, planned in self.plan if planned == event), None)
        events = [e for _, e in self.plan] + ([event] if at is None else [])
        return self._group(events, [x for x in self.plan if x != (at, event)]), at

    def _group(self, events: Sequence[Event], planned: Sequence[tuple[int, Event]]) -> Group:
        """The next group, of these events."""
        group = Group(tuple(events), None, tuple(planned))
        if self._chosen_later:
            chosen = adaptive.later(group.event, delta=self.budget.delta, number=self._chosen_later)
            group = replace(group, later=chosen)
        return group

    @property
    def _chosen_later(self) -> int:
        """The next group's number among those that are chosen after seeing results; 0 for the first of all."""
        return sum(any(exposures(group.event)) for group in self.groups)

    def _of(self, groups: tuple[Group, ...]) -> Event:
        real = [group for group in groups if any(exposures(group.event))]
        if not real:
            return Composed(())
        chosen = [group.later for group in real[1:] if group.later is not None]
        return adaptive.together(real[0].event, chosen, delta=self.budget.delta)

    @property
    def composition(self) -> str:
        """Which composition the account's epsilon rests on."""
        return adaptive.CHOSEN_LATER if self._chosen_later > 1 else adaptive.PLANNED

    @property
    def largest_budget(self) -> Budget:
        """The most that was ever granted: one that is lowered after seeing results bounds nothing that they led to."""
        budgets = [budget for _, budget in self.budgets] or [self.budget]
        return Budget(max(b.epsilon for b in budgets), max(b.delta for b in budgets))

    @property
    def budget_changes(self) -> list[dict[str, Any]]:
        """What the budget was changed to after it was first set, and when."""
        return [{"time": t, "epsilon": b.epsilon, "delta": b.delta} for t, b in self.budgets[1:]]

    def spent(self) -> float:
        """Epsilon of everything charged so far, at the budget's delta: a meter of what is used of the budget."""
        return accountant.epsilon(self.total, self.budget.delta)


class Ledger:
    """The ledger of the data set with this fingerprint, in `folder`."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        if not fingerprint or not all(c in "0123456789abcdef" for c in fingerprint):
            raise ConfigError(f"a fingerprint is a lower-case hexadecimal string, not {fingerprint!r}.")
        self.path = folder / f"{fingerprint[:32]}.jsonl"
        self._seal = folder / f"{fingerprint[:32]}.seal"
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
        return self._account(lines)

    def set_budget(self, budget: Budget) -> Account:
        """Change what the data set may spend in all. The change is a line of the ledger like any other."""
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            spent = accountant.epsilon(account.total, budget.delta)
            if _uses_up(account.total, budget.delta):
                raise BudgetSpent(
                    f"the budget cannot be set to delta {budget.delta:g}: what was charged gives up a "
                    f"delta of {given_up(account.total):g} for good, so no epsilon is proved at this one. Fix: a "
                    "larger --delta."
                )
            if spent > budget.epsilon:
                raise BudgetSpent(
                    f"the budget cannot be set to epsilon {budget.epsilon:g} at delta {budget.delta:g}: "
                    f"{upper(spent, 4)} is spent already, and what was released cannot be taken back."
                )
            return self._account(self._append(lines, "budget", {"epsilon": budget.epsilon, "delta": budget.delta}))

    def require_room(self, event: Event, budget: Budget, *, unit: str = "image") -> None:
        """Refuse early what `spend` would refuse, where `budget` is that of a ledger still to be opened."""
        account = self.account() if self.exists() else Account("", budget, unit, ())
        _require_unit(account, unit)
        _require_within(account, account.total_with(event), event)

    def plan(self, event: Event, *, run: str, unit: str = "image") -> Account:
        """Write that this event is going to be run.

        All that is planned when the next run is charged is charged with it, together and tightly, and may then be run
        in any order at no further cost.
        """
        with self.locked():
            lines = self._read()
            account = self._account(lines)
            _require_unit(account, unit)
            planned = replace(account, plan=(*account.plan, (len(lines), event)))
            _require_within(planned, planned.total_planned, event)
            return self._account(self._append(lines, "plan", {"run": run, "event": to_json(event)}))

    def drop_plan(self) -> Account:
        """Forget what is planned and was not charged yet. What was charged stays."""
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
        """Charge the event before it happens, or refuse. The same id is charged once: it is the same noise again."""
        with self.locked():
            lines = self._read()
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
            _require_within(account, account.total_with(event), event)
            group, planned = account.next_group(event)
            content = {"id": id, "run": run, "event": to_json(event), "private": private}
            if new_account is not None:
                content["new_account"] = new_account
            if planned is not None:
                content["plan"] = planned
            if group is not None and group.later is not None:
                content |= {"sigma": group.later.sigma, "leak": group.later.leak}
            return self._account(self._append(lines, "charge", content))

    def _account(self, lines: list[dict[str, Any]]) -> Account:
        if not lines:
            raise LedgerMismatch(f"{self.path}: there is no ledger for this data set yet: the first run opens it.")
        try:
            first = lines[0]
            account = Account(first["account"], Budget(first["epsilon"], first["delta"]), first["unit"], ())
            for line in lines:
                account = read_line(account, line)
            return replace(account, charges=tuple(replace(charge, ledger=self) for charge in account.charges))
        except (*UNSOUND, ConfigError) as exc:
            raise LedgerMismatch(f"{self.path}: a line does not say what it must ({exc}). {RESTORE}") from exc

    def locked(self) -> AbstractContextManager[None]:
        """One process, or thread, at a time."""
        return hold(self.path.with_suffix(".lock"))

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
            raw = files.read(self.path, most=MOST_BYTES)
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
            raise PrivacyError(f"{self.path}: what a crash left cannot be mended ({exc.strerror}).") from exc
        return lines

    def _append(self, lines: list[dict[str, Any]], kind: str, content: dict[str, Any]) -> list[dict[str, Any]]:
        """The lines with one more, which is on the disk with its seal."""
        previous = lines[-1]["hash"] if lines else ""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        line = {"n": len(lines), "time": now, "kind": kind, **content, "previous": previous}
        line["hash"] = _hash(previous, line)
        try:
            if not lines:
                self._write_seal(lines)  # the seal comes first, so that a ledger without one has lost it
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
                f"{self.path}: the ledger could not be written ({exc.strerror}), so nothing was released. Fix: make "
                "room or give write access, then run the same command again."
            ) from exc
        return [*lines, line]

    def _sealed(self) -> tuple[int, str] | None:
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

    def _write_seal(self, lines: list[dict[str, Any]]) -> None:
        files.write(self._seal, f"{len(lines)} {lines[-1]['hash'] if lines else '-'}\n")


RESTORE = (
    "Nothing is charged or released on an account that cannot be trusted. Fix: restore the ledger and its seal from a "
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
        status = os.stat(folder)
    except OSError:
        return  # made later, for the owner only; or a clear error where it is used
    mode = status.st_mode
    if status.st_uid not in (os.getuid(), 0):
        raise PrivacyError(
            f"{folder}: belongs to another user, who could replace ledgers or keys. Fix: a DPVISION_HOME of your own."
        )
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


@contextmanager
def hold(lock: Path) -> Iterator[None]:
    """One process, or thread, at a time; where that cannot be had, nothing is charged."""
    with ExitStack() as stack:
        try:
            files.make_folder(lock.parent)
            stack.enter_context(files.alone(lock))
        except (OSError, DataError) as exc:
            raise PrivacyError(
                f"{lock}: the ledger cannot be locked ({exc}), so nothing was charged. Fix: give write access to "
                f"{lock.parent}."
            ) from exc
        yield


def ledger_of(fingerprint: str) -> Ledger:
    return Ledger(home() / "ledgers", fingerprint)


def read_line(account: Account, line: dict[str, Any]) -> Account:
    """The account after one more line."""
    match line["kind"]:
        case "open" | "budget":
            budget = Budget(line["epsilon"], line["delta"])
            return replace(account, budget=budget, budgets=(*account.budgets, (line["time"], budget)))
        case "plan":
            return replace(account, plan=(*account.plan, (line["n"], from_json(line["event"]))))
        case "unplan":
            return replace(account, plan=())
        case "charge":
            event, reason = from_json(line["event"]), line.get("new_account")
            charge = Charge(line["id"], line["run"], event, line["time"], line["private"], reason)
            groups, plan = _with_charge(account, charge.event, line)
            return replace(
                account,
                charges=(*account.charges, charge),
                groups=groups,
                grouped=(*account.grouped, len(groups)),
                plan=plan,
            )
        case _:
            return account


def _with_charge(
    account: Account, event: Event, line: dict[str, Any]
) -> tuple[tuple[Group, ...], tuple[tuple[int, Event], ...]]:
    """The groups and the open plan after a charge."""
    at = line.get("plan")
    if at is not None and (at, event) not in account.plan:  # a run of a plan that is charged already
        paid = [i for i, group in enumerate(account.groups) if (at, event) in group.planned]
        if len(paid) != 1:
            raise ValueError(f"it is charged as line {at} of a plan, which has no such event left")
        left = tuple(x for x in account.groups[paid[0]].planned if x != (at, event))
        changed = replace(account.groups[paid[0]], planned=left)
        return (*account.groups[: paid[0]], changed, *account.groups[paid[0] + 1 :]), account.plan
    events = tuple(e for _, e in account.plan) + (() if at is not None else (event,))
    group = Group(events, None, tuple(x for x in account.plan if x != (at, event)))
    if "sigma" in line:
        group = replace(group, later=Later(group.event, line["sigma"], line["leak"]))
    elif account.groups:  # by a version that did not tell later runs from the first
        group = replace(group, later=account.next_group(event)[0].later)  # type: ignore[union-attr]
    return (*account.groups, group), ()


def _require_unit(account: Account, unit: str) -> None:
    if account.unit != unit:
        raise PrivacyError(
            f"the account of this data set counts {account.unit}s since its first run, and this run would count "
            f"{unit}s: what is told about one {account.unit} and about one {unit} does not add up to one figure. "
            f"Nothing was charged. Fix: --unit {account.unit}."
        )


def _require_within(account: Account, after: Event, event: Event) -> None:
    """With this event the total, `after`, of all that was charged and is planned, is within the budget."""
    budget, before = account.budget, account.total
    if after == before:
        return
    so_far, epsilon = accountant.epsilon(before, budget.delta), accountant.epsilon(after, budget.delta)
    reserve = adaptive.reserve(budget.delta)
    if isinstance(after, Adaptive) and after.reserve > reserve:
        raise BudgetSpent(
            f"of the data set's delta, {budget.delta:g}, runs that are chosen after a first result may give up "
            f"{reserve / 2:g} for good in all, and with this it would be more ({describe(event)}). Nothing was "
            "charged. Fix: for this a smaller --delta, of which a tuning gives up half; or a training, which gives up "
            "none; or plan it before the first run."
        )
    if isinstance(after, Adaptive) and after.later[-1].sigma <= LEAST_SIGMA:
        epsilon = math.inf  # no Gaussian that is counted here dominates it
    if _uses_up(after, budget.delta):
        raise BudgetSpent(
            f"the data set's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}. What was charged gives up "
            f"{given_up(before):g} of delta for good and this {given_up(event):g} ({describe(event)}): together they "
            "use it up, and no epsilon would be proved at all. Nothing was charged. Fix: for this a smaller --delta, "
            "of which a tuning gives up half; or a training, which gives up none; or, if the owner of the data agrees, "
            "`dpvision ledger DATA --set-budget EPSILON --delta DELTA` with a larger delta."
        )
    if epsilon > budget.epsilon:
        left = budget.epsilon - so_far
        smaller = f"a smaller --epsilon (about {lower(left)} is left), or, " if left >= 0.01 else ""
        raise BudgetSpent(
            f"the data set's budget is epsilon {budget.epsilon:g} at delta {budget.delta:g}, "
            f"{upper(so_far, 4)} of it is spent, and this would make it {upper(epsilon, 4)} "
            f"({describe(event)}). Nothing was charged. Fix: {smaller}if the owner of "
            "the data agrees that more may be told about each of them, `dpvision ledger DATA --set-budget EPSILON`."
        )


def _uses_up(total: Event, delta: float) -> bool:
    """Whether epsilon is infinite for want of delta, not of noise. (Deltas compose to a hair below their sum.)"""
    return math.isinf(accountant.epsilon(total, delta)) and given_up(total) > 0.999 * delta


def _hash(previous: str, line: dict[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b((previous + text).encode(), digest_size=20).hexdigest()
