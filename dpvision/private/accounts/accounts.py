"""Decides which accounts a run, a release or a fit is charged to; the command line and the estimators share the rule.

A copy with one pixel changed, an extended data set and each fold of a cross-validation all have different fingerprints.
If each were charged to a separate account, no total would bound what was revealed about a person. Therefore:

    the account of exactly these images is charged, if there is one, and
    every other account that shares enough images with them (overlap.py: CHARGED_SHARE of either) is charged too;
    a new account is opened only if neither exists, or if the owner of the data gives a reason (`new_account`),
    which is recorded in the ledger and on the card, together with the overlaps.

Formal guarantee: an account that is charged for every run on a person's images bounds what was revealed about that
person. Every account must have enough budget left before any is charged, and all charges are on disk before the first
result exists. A crash in between can over-count, never under-count; resuming the run does not charge it twice.
All of this happens under a single lock for the home folder: if two runs on copies of one data set start at the same
time, the second finds the account that the first has opened.

`require_not_private` and `require_not_in_provenance` keep private images from being used as public ones by mistake, as
far as accounts and provenance records can show: a few images among very many can pass, and so can re-encoded images.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from dpvision.core.account import Account, Charge
from dpvision.core.events import Budget, Event
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger, hold_lock
from dpvision.data import Dataset, Split, identify
from dpvision.errors import BudgetSpent, ConfigError, DataError, PrivacyError
from dpvision.private.accounts import overlap
from dpvision.private.accounts.overlap import Overlap, Sketch
from dpvision.public.provenance import count_matches
from dpvision.storage.home import home, ledger_of

MAX_REASON = 300  # characters
ANY = 1e-9  # a share of the images that even a single image exceeds


@dataclass(frozen=True)
class Accounts:
    """The ledger whose total a card states, others that get the same charge, and all overlaps that were found."""

    first: Ledger
    others: tuple[Ledger, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    new_account: str | None = None
    named: bool = False  # whether the caller named the one account to use

    def require_room(self, event: Event, config: Any) -> None:
        """Raise an error, before anything is charged, if any of the accounts would refuse the event."""
        near = {shared.ledger.fingerprint: shared for shared in self.overlaps}
        for ledger in (self.first, *self.others):
            try:
                if ledger is self.first:
                    _require_room_on_first(ledger, event, config)
                else:
                    ledger.require_room(event, ledger.account().budget, unit=getattr(config, "unit", "image"))
            except (BudgetSpent, PrivacyError) as exc:
                if ledger.fingerprint not in near:
                    raise
                of_other = "with the data set of that account, `dpvision ledger ITS_DATA "
                refusal = str(exc).replace("`dpvision ledger DATA ", of_other)
                raise type(exc)(
                    f"account {ledger.account().id} has {describe_shares(near[ledger.fingerprint])}, so it must be "
                    f"charged too, and it refuses: {refusal} Or, if the owner of the data agrees to count these images "
                    'separately, --new-account "the reason", which is stated on the card.'
                ) from exc

    def plan(self, event: Event, config: Any, sketch: Sketch) -> Account:
        """Add the event to the plan of every account that it would be charged to, and return the first account."""
        unit = getattr(config, "unit", "image")
        with _charging_lock():
            self.require_room(event, config)
            self.first.open(Budget(config.budget or config.epsilon, config.delta), unit=unit)
            overlap.remember(self.first, sketch)
            for ledger in self.others:
                ledger.plan(event, run="planned", unit=unit)
            return self.first.plan(event, run="planned", unit=unit)

    def charge(
        self,
        event: Event,
        budget: Budget,
        *,
        fingerprint: str,
        sketch: Sketch,
        id: str,
        run: str,
        unit: str = "image",
        private: bool = True,
    ) -> tuple[Charge, Accounts]:
        """Charge these accounts and any others that now share images with the data; charge all of them or none.

        Returns once all charges are on disk. `budget` is the budget of the first account if it has to be opened.
        """
        with _charging_lock():
            accounts = self.refresh(fingerprint, sketch, id=id)
            for ledger in (accounts.first, *accounts.others):
                known = ledger.account() if ledger.exists() else None
                if known is None or all(charge.id != id for charge in known.charges):
                    ledger.require_room(event, budget if known is None else known.budget, unit=unit)
            accounts.first.open(budget, unit=unit)
            for ledger in accounts.others:
                ledger.spend(event, id=id, run=run, unit=unit, private=private)
                overlap.remember(ledger, sketch)
            overlap.remember(accounts.first, sketch)
            spent = accounts.first.spend(
                event, id=id, run=run, unit=unit, private=private, new_account=accounts.new_account
            )
        return next(charge for charge in spent.charges if charge.id == id), accounts

    def refresh(self, fingerprint: str, sketch: Sketch, *, id: str) -> Accounts:
        """Add other accounts that now share the images, unless the charge with this id has already been made."""
        charged = self.first.exists() and any(charge.id == id for charge in self.first.account().charges)
        if charged or self.named or self.new_account is not None:
            return self
        current = choose(fingerprint, sketch)
        if not self.first.exists() and not self.others:
            return current
        known = {ledger.fingerprint for ledger in (self.first, *self.others)}
        new = [other for other in (current.first, *current.others) if other.fingerprint not in known and other.exists()]
        return replace(self, others=(*self.others, *new), overlaps=current.overlaps) if new else self

    def to_facts(self) -> dict[str, Any]:
        """Return these accounts as plain JSON for operator/run.json; not for release."""
        charged = [ledger.fingerprint for ledger in (self.first, *self.others)]
        overlaps = [
            {
                "account": shared.ledger.account().id,
                "share": round(shared.of_ours, 4),
                "share_of_account": round(shared.of_theirs, 4),
                "charged": shared.ledger.fingerprint in charged,
            }
            for shared in self.overlaps
        ]
        return {"charged": charged, "overlaps": overlaps, "new_account": self.new_account, "named": self.named}


def choose(fingerprint: str, sketch: Sketch, *, named: str | None = None, new_account: str | None = None) -> Accounts:
    """Choose the accounts of images with this fingerprint and sketch; `named` overrides the choice with one account."""
    if new_account is not None:
        _require_reason(new_account)
    own = ledger_of(named or fingerprint)
    overlaps = tuple(overlap.find(own.fingerprint, sketch, min_share=overlap.MIN_NOTED_SHARE))
    if named is not None or new_account is not None:
        return Accounts(own, (), overlaps, new_account, named is not None)
    near = [shared.ledger for shared in overlaps if shared.is_charged]
    if not near and not own.exists() and overlap.find_undecided(own.fingerprint, sketch):
        raise ConfigError(
            "one account has too many images for its stored sample to show whether these few are among them. Fix: "
            'if they are not, use --new-account "the reason"; in Python, set account= to the name of that account or '
            "of a new one."
        )
    ledgers = [own, *near] if own.exists() else near or [own]
    return Accounts(ledgers[0], tuple(ledgers[1:]), overlaps)


def charge_one(
    ledger: Ledger,
    budget: Budget,
    event: Event,
    key: Key,
    *,
    id: str,
    run: str,
    unit: str = "image",
    sketch: Sketch = overlap.NOTHING,
) -> Charge:
    """Use the one account that the caller named; raise an error if it has another unit or its budget is too small."""
    accounts = Accounts(ledger, named=True)
    charge, _ = accounts.charge(
        event, budget, fingerprint=ledger.fingerprint, sketch=sketch, id=id, run=run, unit=unit, private=key.private
    )
    return charge


def read_accounts(facts: Mapping[str, Any]) -> Accounts:
    """Read the accounts of a run from operator/run.json. Runs of earlier versions have only that of their images."""
    entry = facts.get("accounts")
    if entry is None:
        entry = {"charged": [facts.get("fingerprint")], "new_account": None}
    elif "fingerprint" in facts:
        read_accounts({"fingerprint": facts["fingerprint"]})  # refuses a malformed fingerprint
    charged = entry.get("charged") if isinstance(entry, dict) else None
    if not isinstance(charged, list) or not charged or not all(isinstance(name, str) for name in charged):
        raise DataError("operator/run.json: accounts is missing or malformed.")
    reason = entry.get("new_account")
    if reason is not None and not isinstance(reason, str):
        raise DataError("operator/run.json: new_account is malformed.")
    ledgers = [ledger_of(name) for name in charged]
    return Accounts(ledgers[0], tuple(ledgers[1:]), (), reason, entry.get("named") is True)


def _charging_lock() -> AbstractContextManager[None]:
    """Let only one of the runs that use this home folder charge accounts at a time."""
    return hold_lock(home() / "ledgers" / "charging.lock")


def _require_room_on_first(ledger: Ledger, event: Event, config: Any) -> None:
    """Require that the budget agrees with that of the account, and that the event fits into it."""
    if config.budget and ledger.exists() and ledger.account().budget != Budget(config.budget, config.delta):
        current = ledger.account().budget
        raise ConfigError(
            f"--budget {config.budget:g} at delta {config.delta:g}: the data set has a budget of epsilon "
            f"{current.epsilon:g} at delta {current.delta:g}. Fix: leave --budget out, or change it with "
            f"`dpvision ledger DATA --set-budget {config.budget:g}`."
        )
    budget = Budget(config.budget or config.epsilon, config.delta)
    ledger.require_room(event, budget, unit=getattr(config, "unit", "image"))


def describe_shares(shared: Overlap) -> str:
    """Describe the size of an overlap in words, for the operator."""
    ours, theirs = f"{shared.of_ours:.0%}", f"{shared.of_theirs:.0%}"
    return f"about {ours} of these images (which are about {theirs} of a data set charged to it)"


def _require_reason(reason: str) -> None:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*", reason) or len(reason) > MAX_REASON:
        raise ConfigError(
            f"--new-account needs a reason, on one line of at most {MAX_REASON} characters. Fix: "
            'use --new-account "scans of another hospital, no person is in both".'
        )


def require_not_private(source: str, splits: Iterable[Split], *, fix: str, rows: bool = False) -> None:
    """Refuse images if some are on an account: the same files or pixels, or enough images that match in parts.

    With `rows`, they are rows of features: the same numbers, or enough rows that match when rounded or scaled.
    """
    sketch_of, what = (overlap.sketch_rows, "rows") if rows else (overlap.sketch_images, "images")
    for split in splits:
        fingerprint, _, digests = identify(split)
        own, sketch = ledger_of(fingerprint), sketch_of(split.images, digests)
        overlaps = overlap.find(fingerprint, sketch.exact, min_share=ANY) + overlap.find(fingerprint, sketch)
        ledgers = [*([own] if own.exists() else []), *(shared.ledger for shared in overlaps)]
        if ledgers:
            raise PrivacyError(
                f"{source}: some of its {what} are on account {ledgers[0].account().id}, so they are private, and no "
                f"noise would protect them here. Fix: {fix}."
            )


def require_not_in_provenance(data: Dataset, provenance: str, what: str) -> None:
    """Refuse a public input whose provenance states that it learned from the private images or the test images."""
    splits = [split for split in (data.train, data.val, data.test) if split is not None]
    same = sum(count_matches(provenance, split.images, identify(split)[2]) for split in splits)
    if same:
        raise ConfigError(
            f"{what} {same:,} of the private images or test images, so it reveals them already. "
            "Fix: learn from the public part alone (`dpvision data split`)."
        )
