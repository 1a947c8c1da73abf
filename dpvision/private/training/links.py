"""Encrypted links between ranks. All messages are encrypted under a key that is never sent over these links.

Formal guarantee: every message is encrypted and authenticated by AES-256-GCM, under a key from the operating system's
entropy that is created when the ranks meet. The ranks read it from a file in DPVISION_HOME, which they share and which
only its owner can read; the file is destroyed once all have read it. A nonce consists of the sender, the receiver and
the number of the message between them, so no nonce is used twice, and messages that were altered, repeated, dropped or
sent by anyone else are refused.

The file system is trusted: if it sends files over a network in plain text, as NFS without encryption does, this key and
the run's own key can be intercepted. Use an encrypted file system or a trusted storage network.

The name of the file passes through the store where the ranks meet, which is neither secret nor authenticated: anyone
who alters its contents can keep the ranks from meeting, but learns nothing.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from dpvision.core.keys import Key
from dpvision.errors import PrivacyError
from dpvision.storage.run_folder import key_path

TAG_BYTES = 16
MAX_PIECE = 1 << 28  # bytes sealed at a time; one call may seal 2^31
# Seconds for which a rank looks for the key: file systems may show new files of another machine with a delay.
PATIENCE = 10.0
# Entries in the store: the name of the key, the answer of each rank, and the ranks that did not find the key.
NAME, ANSWER, MISSING = "dpvision/key", "dpvision/key/{}", "dpvision/key/missing"


class Link:
    """One rank's end of the links to all others. Both ends must handle the same messages in the same order."""

    def __init__(self, key: Key, rank: int) -> None:
        self._cipher = AESGCM(key.stream("link", step=0).words(4).tobytes())
        self._rank, self._messages = rank, Counter[tuple[int, int]]()

    def send(self, value: Tensor, receiver: int) -> None:
        """Send the values of a tensor to another rank."""
        for piece in _bytes_of(value.contiguous()).split(MAX_PIECE):
            sealed = self._cipher.encrypt(self._next_nonce(self._rank, receiver), piece.numpy().data, None)
            dist.send(torch.frombuffer(bytearray(sealed), dtype=torch.uint8), receiver)

    def receive(self, value: Tensor, sender: int) -> None:
        """Overwrite a contiguous tensor with the values that another rank sent; RuntimeError if they were altered."""
        for piece in _bytes_of(value).split(MAX_PIECE):
            sealed = torch.empty(len(piece) + TAG_BYTES, dtype=torch.uint8)
            dist.recv(sealed, sender)
            try:
                opened = self._cipher.decrypt(self._next_nonce(sender, self._rank), sealed.numpy().data, None)
            except InvalidTag:
                raise RuntimeError(f"a message from rank {sender} was altered in transit") from None
            piece.numpy()[:] = np.frombuffer(opened, dtype=np.uint8)

    def _next_nonce(self, sender: int, receiver: int) -> bytes:
        number = self._messages[sender, receiver]
        self._messages[sender, receiver] += 1
        return sender.to_bytes(2, "big") + receiver.to_bytes(2, "big") + number.to_bytes(8, "big")


def connect(store: dist.Store, rank: int, ranks: int) -> Link:
    """Share a key through a file that rank 0 writes; PrivacyError on all ranks if any of them does not find it."""
    if rank == 0:
        name, key = secrets.token_hex(8), Key.fresh()
        path = key_path(name)
        key.write(path)
        try:
            store.set(NAME, name)
            answers = {other: store.get(ANSWER.format(other)) for other in range(1, ranks)}
        finally:
            Key.destroy(path)
        missing = [str(other) for other, answer in answers.items() if answer != b"found"]
        store.set(MISSING, ", ".join(missing))
    else:
        path = key_path(store.get(NAME).decode())
        shared = _wait_for_key(path)
        store.set(ANSWER.format(rank), "missing" if shared is None else "found")
        key = shared or Key.fresh()
    if blind := store.get(MISSING).decode():
        raise PrivacyError(
            f"{path}: rank {blind} of {ranks} does not see this key, which encrypts their messages. Nothing was "
            "charged. Fix: use the same DPVISION_HOME for every rank, on a file system that all ranks share."
        )
    return Link(key, rank)


def _wait_for_key(path: Path) -> Key | None:
    """Read a key as soon as its file is visible; None if it does not appear in time."""
    end = time.monotonic() + PATIENCE
    while (key := Key.read(path)) is None and time.monotonic() < end:
        time.sleep(0.05)
    return key


def _bytes_of(value: Tensor) -> Tensor:
    """Return a view of a contiguous CPU tensor as bytes."""
    return value.detach().view(-1).view(torch.uint8)
