"""Which account a fit is charged to: that of its images, or one by name; never a new one that hides what was told.

Two data sets with other rows have other fingerprints, so the folds of a cross-validation would each have an account of
its own, though most people are in all of them. What was told about a person is then on many accounts, and no total
bounds it. So

    account=None     the account of these very images; where the ledger has others with some of the same images (by
                     the sketch that lies beside each), all of those are charged instead of opening a new one
    account="name"   that one account, for whatever data: every fit of a search, and whatever follows it
    account_of(X)    gives the name of the account that X itself has, also in `dpvision train`

Formal reading: an account that is charged for every fit that a person's images are in bounds what was told of that
person. Sketches find a share of 2% of a fit's images or more, also in another type, shape or by other bounds; where
there are too few images to tell, the fit is refused until an account is named. With a smaller share, images that were
computed anew, or fits that run at the same time (n_jobs), name the account.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvision.data import Split, identify
from dpvision.errors import ConfigError, PrivacyWarning
from dpvision.privacy import overlap
from dpvision.privacy.events import Budget, Event
from dpvision.privacy.ledger import Ledger, ledger_of
from dpvision.privacy.rounding import upper


def account_of(X: Any) -> str:
    """The name of the account of these images, uint8 or float32 in [0, 1], (n, H, W[, C]) or (n, features)."""
    x = np.asarray(X)
    if x.dtype not in (np.uint8, np.float32) or not 2 <= x.ndim <= 4:
        raise ConfigError(f"an account is of images in uint8 or float32, not of {x.dtype} {x.shape}.")
    x = x[:, None, :, None] if x.ndim == 2 else x[..., None] if x.ndim == 3 else x
    return identify(Split(x, np.zeros(len(x), np.int64), None))[0]


def ledger(account: str) -> Ledger:
    """The ledger of an account by its name: `.account()` reads it, `.set_budget(...)` is a decision of the owner."""
    return ledger_of(_named(account))


@dataclass(frozen=True)
class Charged:
    """The ledger that a fit is charged to, and others that have some of the same images."""

    ledger: Ledger
    others: tuple[Ledger, ...]
    sketch: tuple[str, ...]

    def require_room(self, event: Event, budget: Budget) -> None:
        """On the others; the first is asked by the run itself."""
        for other in self.others:
            other.require_room(event, budget)

    def charge_others(self, event: Event, *, run: str) -> None:
        """Before the run is charged and begins."""
        for other in self.others:
            other.spend(event, id=secrets.token_hex(16), run=run)
            overlap.keep(other, self.sketch)


def charged_to(account: str | None, fingerprint: str, sketch: Sequence[str]) -> Charged:
    """Where a fit on images with this fingerprint and sketch is charged; a warning tells what one may not expect."""
    own = ledger_of(fingerprint) if account is None else ledger(account)
    near = overlap.ledgers(own.fingerprint, sketch)
    if account is not None:
        for other, share in near:
            _warn(
                f"about {share:.0%} of these images are on account {other.account().id} too, which is not charged, as "
                f"the account {account!r} was named. What is told about those images is both."
            )
        near = []
    others = [other for other, _ in near]
    if account is None and not others and not own.exists() and overlap.untold(own.fingerprint, sketch):
        raise ConfigError(
            "there is an account of so many images that nobody can tell whether these few are among them. Fix: "
            "account=, the name of that account, or a new one if they are not."
        )
    ledgers = [own, *others] if own.exists() else others or [own]
    for each in ledgers:
        if each.exists():
            found = each.account()
            _warn(
                f"this fit is charged to account {found.id}, which has {len(found.charges)} charges and has spent "
                f"epsilon {upper(found.spent(), 4)} of {found.budget.epsilon:g}: every fit on the same images counts, "
                "also those of a search or a cross-validation."
            )
    return Charged(ledgers[0], tuple(ledgers[1:]), tuple(sketch))


def _named(account: Any) -> str:
    if not isinstance(account, str) or not account.strip():
        raise ConfigError(f"account is {account!r}: it must be a name, or what account_of(X) gives.")
    if re.fullmatch(r"[0-9a-f]{64}", account):
        return account
    return hashlib.blake2b(account.encode(), digest_size=32, person=b"account by name").hexdigest()


def _warn(text: str) -> None:
    warnings.warn(text, PrivacyWarning, stacklevel=4)
