"""What is private here must not be taken as public by mistake: neither its images, nor what learned from them.

As far as accounts and notes show: each account keeps digests of some thousands of its images, so a few of very many can
pass, and so can images that were encoded again. A ledger or sketch that cannot be read lets nothing pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpvision.core.ledger import ledger_of
from dpvision.data import Dataset, Split, identify
from dpvision.errors import ConfigError, PrivacyError
from dpvision.private.accounts import overlap
from dpvision.public import provenance

ANY = 1e-9  # a share of the images that is more than none; of those that are alike in parts, overlap.SHARE


def require_not_private(source: str, splits: Iterable[Split], *, fix: str) -> None:
    """None of the images is on an account."""
    for split in splits:
        fingerprint, _, digests = identify(split)
        own = ledger_of(fingerprint)
        known = overlap.sketch(digests, provenance.pixel_digests(split.images), images=split.images)
        found = [own] if own.exists() else []
        found += [each.ledger for each in overlap.find(fingerprint, known.exact, least=ANY)]
        found += [each.ledger for each in overlap.find(fingerprint, known)]
        if found:
            raise PrivacyError(
                f"{source}: some of its images are on account {found[0].account().id} of the ledger, so they are "
                f"private, and no noise would protect them here. Fix: {fix}."
            )


def require_not_learned_from(data: Dataset, note: str, what: str) -> None:
    """No private image, nor one to test with, is among those that something public learned from, by its note."""
    splits = [split for split in (data.train, data.val, data.test) if split is not None]
    same = sum(provenance.count(note, split.images, identify(split)[2]) for split in splits)
    if same:
        raise ConfigError(
            f"{what} {same:,} of the images that are private here, or to test with, so it tells about them already. "
            "Fix: learn from the public part alone (`dpvision data split`)."
        )
