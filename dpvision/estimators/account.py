"""Which account a fit is charged to: that of its images, or one by name; never a new one that hides earlier charges.

    account=None     the account of these very images, and every other account that shares some of them: the rule of
                     dpvision/private/accounts/accounts.py, which the command line follows too
    account="name"   that one account, for whatever data: every fit of a search, and whatever follows it
    account_of(X)    gives the name of the account that X itself has, also in `dpvision train`

Overlaps below 2% of the images, images that were resized or encoded again, and fits that run at the same time (n_jobs)
are not found: name the account.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from typing import Any

import numpy as np

from dpvision.core.ledger import Ledger, ledger_of
from dpvision.core.rounding import upper
from dpvision.data import Split, identify
from dpvision.errors import ConfigError, PrivacyWarning
from dpvision.private.accounts.accounts import Accounts, choose, describe_shares
from dpvision.private.accounts.overlap import Sketch


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


def find_accounts(account: str | None, fingerprint: str, sketch: Sketch) -> Accounts:
    """The accounts that a fit on images with this fingerprint and sketch is charged to, with a warning for each."""
    accounts = choose(fingerprint, sketch, named=None if account is None else _named(account))
    if account is not None:
        for each in accounts.overlaps:
            _warn(
                f"account {each.ledger.account().id} has {describe_shares(each)} too and is not charged, as the "
                f"account {account!r} was named. Both together bound what is revealed about those images."
            )
    for charged in (accounts.first, *accounts.others):
        if charged.exists():
            found = charged.account()
            _warn(
                f"this fit is charged to account {found.id}, which has {len(found.charges)} charges and has spent "
                f"epsilon {upper(found.spent(), 4)} of {found.budget.epsilon:g}: every fit on the same images counts, "
                "also those of a search or a cross-validation."
            )
    return accounts


def _named(account: Any) -> str:
    if not isinstance(account, str) or not account.strip():
        raise ConfigError(f"account is {account!r}: it must be a name, or what account_of(X) gives.")
    if re.fullmatch(r"[0-9a-f]{64}", account):
        return account
    return hashlib.blake2b(account.encode(), digest_size=32, person=b"account by name").hexdigest()


def _warn(text: str) -> None:
    warnings.warn(text, PrivacyWarning, stacklevel=4)
