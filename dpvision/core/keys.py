"""Secret random streams: 32 bytes of the operating system's entropy, one AES-256-CTR keystream per use.

Formal guarantee: the stream of (purpose, step, rank, branch) is a pseudo-random function of these under the run's key.
Distinct uses get independent streams, so noise is never drawn twice; the same use gets the same stream, so a resumed
run is bitwise equal to an uninterrupted one. `branch` is a hash of all settings, data and software that shape a result.

Anyone who has the key can subtract the noise. The key is stored in a separate file outside the run folder, readable
only by its owner, and is destroyed when the run is complete.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.errors import PrivacyError

KEY_BYTES = 32
WIPED = b"\0" * (KEY_BYTES + 8)  # the content of a destroyed key file


class Key:
    """A run's secret key. `private` is False for a key that somebody chose, for tests and never for release."""

    def __init__(self, secret: bytes, *, private: bool) -> None:
        if len(secret) != KEY_BYTES:
            raise PrivacyError(f"a key must have {KEY_BYTES} bytes; this one has {len(secret)}.")
        self._secret, self.private = secret, private

    @staticmethod
    def fresh() -> Key:
        """Return a new secret key from the operating system's entropy."""
        return Key(os.urandom(KEY_BYTES), private=True)

    @staticmethod
    def for_tests(word: str) -> Key:
        """Return a fixed key derived from a word; results made with it must be marked as not private."""
        if not word:
            raise PrivacyError("a fixed key needs a word.")
        return Key(hashlib.blake2b(word.encode(), digest_size=KEY_BYTES).digest(), private=False)

    def label(self, name: str) -> str:
        """Return what identifies this key in the name of a branch: its file's name, or a digest of a fixed key."""
        return name if self.private else "fixed " + hashlib.blake2b(self._secret, digest_size=8).hexdigest()

    def __repr__(self) -> str:
        return f"Key(private={self.private})"  # never the secret

    def __reduce__(self) -> str | tuple[object, ...]:
        raise PrivacyError("a key is never serialised; only `write` stores it, in its own file.")

    def stream(self, purpose: str, *, step: int, rank: int = 0, branch: str = "") -> Stream:
        """Return the keystream for one use."""
        use = "\x1f".join((purpose, str(step), str(rank), branch)).encode()
        return Stream(hashlib.blake2b(use, key=self._secret, digest_size=KEY_BYTES, person=b"dpvision").digest())

    def sign(self, text: str) -> str:
        """Return a message authentication code of the text."""
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=20, person=b"dpvision sign").hexdigest()

    def write(self, path: Path) -> None:
        """Write the key for a later resume, owner-only; it is on disk before anything is drawn from it."""
        files.make_folder(path.parent)
        files.write(path, (b"private\n" if self.private else b"fixed..\n") + self._secret)

    @staticmethod
    def read(path: Path) -> Key | None:
        """Return the key that `write` wrote, or None if it was destroyed or never written."""
        if not path.exists():
            return None
        try:
            data = files.read(path, most=KEY_BYTES + 8)
        except ValueError:
            data = b""
        if data == WIPED:
            return None
        if len(data) != KEY_BYTES + 8 or data[:8] not in (b"private\n", b"fixed..\n"):
            raise PrivacyError(f"{path}: not a key file. Fix: remove it; resuming then draws and charges new noise.")
        return Key(data[8:], private=data[:8] == b"private\n")

    @staticmethod
    def destroy(path: Path) -> None:
        """Overwrite a key with zeros and remove it; if killed in between, the zeros are removed the next time.

        Journals and snapshots of the file system may retain copies (docs/PRIVACY_PROMISE.md).
        """
        if Key.read(path) is not None:  # never overwrite a file that is not a key
            with open(path, "r+b") as file:
                file.write(WIPED)
                file.flush()
                os.fsync(file.fileno())
        path.unlink(missing_ok=True)


class Stream:
    """An endless sequence of random 64-bit words, each returned once."""

    def __init__(self, key: bytes) -> None:
        # No other stream has this key, so the counter may start at 0.
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(b"\0" * 16)).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` words."""
        out = np.zeros(count, dtype="<u8")
        self._cipher.update_into(out.data.cast("B"), out.data.cast("B"))
        return out
