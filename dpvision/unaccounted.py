"""Images that are on no account of the ledger: what is private here must not be taken as public by mistake.

As far as the accounts show: each keeps digests of some thousands of its images, so a few of very many can pass, and so
can images that were encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpvision.data import Split, identify
from dpvision.errors import PrivacyError
from dpvision.privacy import overlap
from dpvision.privacy.ledger import ledger_of
from dpvision.public.taught_by import pixel_digests

ANY = 1e-9  # a share of the images that is more than none


def require_unaccounted(source: str, splits: Iterable[Split], *, fix: str) -> None:
    for split in splits:
        fingerprint, _, digests = identify(split)
        own, known = ledger_of(fingerprint), overlap.sketch(digests, pixel_digests(split.images))
        accounts = [own.account()] if own.exists() else []
        accounts += [account for account, _ in overlap.others(fingerprint, known, least=ANY)]
        if accounts:
            raise PrivacyError(
                f"{source}: some of its images are on account {accounts[0].id} of the ledger, so they are private, and "
                f"no noise would protect them here. Fix: {fix}."
            )
