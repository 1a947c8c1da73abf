"""Secret random streams: 32 bytes of the operating system's entropy, one AES-256-CTR keystream per use.

Formal guarantee: the stream of (purpose, step, rank, branch) is a pseudo-random function of those under the run's key.
Distinct uses get independent streams, so noise is never drawn twice; the same use gets the same stream, so an unbroken
and a resumed run are equal bit by bit. `branch` is a hash of all that shapes the result: settings, data, software.

Whoever has the key can subtract the noise. It lives in a file of its own, readable by its owner only, outside the run
folder, and is destroyed when the run is complete.
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
    """A run's secret. `private` is False for a key that somebody chose: fit for tests, unfit for release."""

    def __init__(self, secret: bytes, *, private: bool) -> None:
        if len(secret) != KEY_BYTES:
            raise PrivacyError(f"a key has {KEY_BYTES} bytes; this one has {len(secret)}.")
        self._secret, self.private = secret, private

    @staticmethod
    def fresh() -> Key:
        """A secret key, from the operating system's entropy."""
        return Key(os.urandom(KEY_BYTES), private=True)

    @staticmethod
    def for_tests(word: str) -> Key:
        """A fixed key, made from a word. Everything it touches must be marked as not private."""
        if not word:
            raise PrivacyError("a fixed key needs a word.")
        return Key(hashlib.blake2b(word.encode(), digest_size=KEY_BYTES).digest(), private=False)

    def label(self, name: str) -> str:
        """Distinguishes this key in the name of a branch: the name of its file, or a digest of a fixed key."""
        return name if self.private else "fixed " + hashlib.blake2b(self._secret, digest_size=8).hexdigest()

    def __repr__(self) -> str:
        return f"Key(private={self.private})"  # never the secret

    def __reduce__(self) -> str | tuple[object, ...]:
        raise PrivacyError("a key is never serialised; it is written by `write` to its own file.")

    def stream(self, purpose: str, *, step: int, rank: int = 0, branch: str = "") -> Stream:
        """The keystream of one use."""
        use = "\x1f".join((purpose, str(step), str(rank), branch)).encode()
        return Stream(hashlib.blake2b(use, key=self._secret, digest_size=KEY_BYTES, person=b"dpvision").digest())

    def sign(self, text: str) -> str:
        """A code of the text that only a holder of the key can make."""
        return hashlib.blake2b(text.encode(), key=self._secret, digest_size=20, person=b"dpvision sign").hexdigest()

    def write(self, path: Path) -> None:
        """Write the key for a later resume: owner only, on the disk before anything is drawn from it."""
        files.make_folder(path.parent)
        files.write(path, (b"private\n" if self.private else b"fixed..\n") + self._secret)

    @staticmethod
    def read(path: Path) -> Key | None:
        """The key that `write` wrote, or None if it was destroyed or never written."""
        if not path.exists():
            return None
        try:
            data = files.read(path, most=KEY_BYTES + 8)
        except ValueError:
            data = b""
        if data == WIPED:
            return None
        if len(data) != KEY_BYTES + 8 or data[:8] not in (b"private\n", b"fixed..\n"):
            raise PrivacyError(f"{path}: not a key file. Fix: remove it; resuming then draws and charges fresh noise.")
        return Key(data[8:], private=data[:8] == b"private\n")

    @staticmethod
    def destroy(path: Path) -> None:
        """Overwrite and remove a key. A kill in between leaves zeros, which are removed the next time.

        Journals and snapshots of the file system may keep copies: see the promise.
        """
        if Key.read(path) is not None:  # never a file that is not a key
            with open(path, "r+b") as file:
                file.write(WIPED)
                file.flush()
                os.fsync(file.fileno())
        path.unlink(missing_ok=True)


class Stream:
    """An endless sequence of random 64-bit words, each given once."""

    def __init__(self, key: bytes) -> None:
        # The key belongs to this stream alone, so the counter may start at 0.
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(b"\0" * 16)).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words."""
        out = np.zeros(count, dtype="<u8")
        self._cipher.update_into(out.data.cast("B"), out.data.cast("B"))
        return out
