"""Sets aside a test split where a source has none.

Whether a record is set aside depends on that record alone: on a hash of its person if persons are known, or else of its
original pixels. Adding or removing one record therefore moves no other record between the splits, and neither do the
names and the order of files. All images of a person are in one split, and so are exact copies of an image. The hash is
public and has no seed. The test split of a smaller share is contained in that of a larger one.
"""

from __future__ import annotations

from hashlib import blake2b

from dpvision.data.files import Refusal

_NAME = b"dpvision test"  # part of the hash, so it must not change


def require_share(share: float | None) -> None:
    """Refuse a share that is not a number from 0 to 0.9."""
    if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 0.9):
        raise Refusal(f"cannot set aside {share!r} as a test split. Fix: use a share from 0 to 0.9.")


def is_test(share: float, *, digest: bytes, person: str | None) -> bool:
    """Return whether a record belongs to the test split, given the digest of its pixels and its person, if known."""
    content = b"image" + digest if person is None else b"person" + person.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(content, digest_size=8, person=_NAME).digest(), "big") < share * 2**64
