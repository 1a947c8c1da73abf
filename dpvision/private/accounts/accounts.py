"""Which accounts are charged for a run, a release or a fit: one rule for the command line and the estimators.

A copy with one pixel changed, an extension, or each fold of a cross-validation has a fingerprint of its own. If each
had an account of its own, no total would bound what was revealed about a person. So

    the account of exactly these images is charged, if there is one, and
    every other account that shares enough images with them (overlap.py: CHARGED_SHARE of either) is charged too;
    a new account is opened only if neither exists, or if the owner of the data gives a reason (`new_account`),
    which goes into the ledger and on the card, next to the overlaps.

Formal guarantee: an account that is charged for every run that a person's images are in bounds what was revealed about
that person. Every account must have room before any is charged, and all are charged, on the disk, before the first
result. A crash in between can over-count, never under-count; the same charge is not counted twice when the run goes on.
All of this happens under one lock of the home: of two runs on copies of one data set that start at the same time, the
second finds the account that the first has opened.

`require_not_private` and `require_not_in_provenance` keep private images from being used as public ones by mistake, as
far as accounts and records of provenance show: a few of very many can pass, and so can images that were encoded again.
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

LONGEST_REASON = 300
ANY = 1e-9  # a share of the images that is more than none


@dataclass(frozen=True)
class Accounts:
    """The ledger whose total a card states, others that are charged the same, and all overlaps that were found."""

    first: Ledger
    others: tuple[Ledger, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    new_account: str | None = None
    named: bool = False  # the one account that a fit was asked to use

    def require_room(self, event: Event, config: Any) -> None:
        """Refuse what any of the accounts would refuse, before any of them is charged."""
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
                raise type(exc)(
                    f"account {ledger.account().id} has {describe_shares(near[ledger.fingerprint])}, so it is charged "
                    f"too, and it refuses: {exc} Or, if the owner of the data agrees that these images count apart, "
                    '--new-account "the reason", which goes on the card.'
                ) from exc

    def plan(self, event: Event, config: Any, sketch: Sketch) -> Account:
        """Enter the event in the plan of every account that it would be charged to, and return the first of them."""
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
        """Charge every account, or none: these, and those that share images with the data by now.

        Returns once all charges are on the disk. `budget` is that of a first account that is still to be opened.
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
        """These accounts, and others that share the images by now. What was charged already, by its id, stays."""
        begun = self.first.exists() and any(charge.id == id for charge in self.first.account().charges)
        if begun or self.named or self.new_account is not None:
            return self
        now = choose(fingerprint, sketch)
        if not self.first.exists() and not self.others:
            return now
        known = {ledger.fingerprint for ledger in (self.first, *self.others)}
        new = [other for other in (now.first, *now.others) if other.fingerprint not in known and other.exists()]
        return replace(self, others=(*self.others, *new), overlaps=now.overlaps) if new else self

    def to_facts(self) -> dict[str, Any]:
        """These accounts as plain JSON for operator/run.json; not for release."""
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
    """The accounts of images with this fingerprint and sketch. `named` is the one account to use."""
    if new_account is not None:
        _require_reason(new_account)
    own = ledger_of(named or fingerprint)
    overlaps = tuple(overlap.find(own.fingerprint, sketch, least=overlap.NOTED))
    if named is not None or new_account is not None:
        return Accounts(own, (), overlaps, new_account, named is not None)
    near = [shared.ledger for shared in overlaps if shared.is_charged]
    if not near and not own.exists() and overlap.undecided(own.fingerprint, sketch):
        raise ConfigError(
            "one account has so many images that its sample cannot show whether these few are among them. Fix: "
            'if they are not, --new-account "the reason"; in Python account=, the name of that account or a new one.'
        )
    ledgers = [own, *near] if own.exists() else near or [own]
    return Accounts(ledgers[0], tuple(ledgers[1:]), overlaps)


def charge_one(
    ledger: Ledger, budget: Budget, event: Event, key: Key, *, id: str, run: str, sketch: Sketch = overlap.NOTHING
) -> Charge:
    """Charge the one account that was asked for. An account of persons, or one without room, refuses."""
    to = Accounts(ledger, named=True)
    private, fingerprint = key.private, ledger.fingerprint
    return to.charge(event, budget, fingerprint=fingerprint, sketch=sketch, id=id, run=run, private=private)[0]


def read_accounts(facts: Mapping[str, Any]) -> Accounts:
    """The accounts of a run that has begun. Runs of earlier versions have one: that of their images."""
    entry = facts.get("accounts")
    if entry is None:
        entry = {"charged": [facts.get("fingerprint")], "new_account": None}
    elif "fingerprint" in facts:
        read_accounts({"fingerprint": facts["fingerprint"]})  # refuses a fingerprint that no run writes
    charged = entry.get("charged") if isinstance(entry, dict) else None
    if not isinstance(charged, list) or not charged or not all(isinstance(name, str) for name in charged):
        raise DataError("operator/run.json: accounts is missing or is not what a run writes.")
    reason = entry.get("new_account")
    if reason is not None and not isinstance(reason, str):
        raise DataError("operator/run.json: new_account is not what a run writes.")
    ledgers = [ledger_of(name) for name in charged]
    return Accounts(ledgers[0], tuple(ledgers[1:]), (), reason, entry.get("named") is True)


def _charging_lock() -> AbstractContextManager[None]:
    """One run at a time, of all that use this home folder."""
    return hold_lock(home() / "ledgers" / "charging.lock")


def _require_room_on_first(ledger: Ledger, event: Event, config: Any) -> None:
    """The budget is that of the account, and the event fits into it."""
    if config.budget and ledger.exists() and ledger.account().budget != Budget(config.budget, config.delta):
        now = ledger.account().budget
        raise ConfigError(
            f"--budget {config.budget:g} at delta {config.delta:g}: the data set has a budget of epsilon "
            f"{now.epsilon:g} at delta {now.delta:g} since its first run. Fix: leave --budget out, or change it with "
            f"`dpvision ledger DATA --set-budget {config.budget:g}`."
        )
    budget = Budget(config.budget or config.epsilon, config.delta)
    ledger.require_room(event, budget, unit=getattr(config, "unit", "image"))


def describe_shares(shared: Overlap) -> str:
    """The size of an overlap in words, for the operator."""
    return f"about {shared.of_ours:.0%} of these images (which are about {shared.of_theirs:.0%} of a data set on it)"


def _require_reason(reason: str) -> None:
    if not re.fullmatch(r"[^\x00-\x1f\x7f]*\S[^\x00-\x1f\x7f]*", reason) or len(reason) > LONGEST_REASON:
        raise ConfigError(
            "--new-account needs a reason in words, on one line of at most "
            f'{LONGEST_REASON} characters. Fix: --new-account "scans of another hospital, no person is in both".'
        )


def require_not_private(source: str, splits: Iterable[Split], *, fix: str) -> None:
    """Refuse images of which some are on an account: the same files or pixels, or enough that are alike in parts."""
    for split in splits:
        fingerprint, _, digests = identify(split)
        own, sketch = ledger_of(fingerprint), overlap.sketch_images(split.images, digests)
        overlaps = overlap.find(fingerprint, sketch.exact, least=ANY) + overlap.find(fingerprint, sketch)
        ledgers = [*([own] if own.exists() else []), *(shared.ledger for shared in overlaps)]
        if ledgers:
            raise PrivacyError(
                f"{source}: some of its images are on account {ledgers[0].account().id} of the ledger, so they are "
                f"private, and no noise would protect them here. Fix: {fix}."
            )


def require_not_in_provenance(data: Dataset, provenance: str, what: str) -> None:
    """Refuse something public that learned, by its note, from images that are private here or to test with."""
    splits = [split for split in (data.train, data.val, data.test) if split is not None]
    same = sum(count_matches(provenance, split.images, identify(split)[2]) for split in splits)
    if same:
        raise ConfigError(
            f"{what} {same:,} of the images that are private here, or to test with, so it reveals them already. "
            "Fix: learn from the public part alone (`dpvision data split`)."
        )
