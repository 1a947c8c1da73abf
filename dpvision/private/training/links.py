"""Encrypted links between ranks: whatever passes over the network is sealed under a key that does not.

Formal guarantee: every message is encrypted and authenticated by AES-256-GCM, under a key from the operating system's
entropy that is made when the ranks meet. They get it from a file in DPVISION_HOME, which all of them share and only its
owner can read; it is destroyed when all have read it. A nonce consists of the sender, the receiver and the number of
the message between them, so none is used twice, and a message that was altered, repeated, left out or sent by anybody
else is refused.

The file system is trusted: where it sends files over a network in clear, as NFS without encryption does, this key and
the run's own can be read on the wire. Use an encrypted file system, or a storage network that is trusted.

The name of that file passes through the store where the ranks meet, which is neither secret nor authenticated: whoever
alters what is there can keep the ranks from meeting, and learns nothing.
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
# Seconds for which a rank looks for the key: file systems may show another machine's new file late.
PATIENCE = 10.0
# Names in the store: of the key, of each rank's answer, and of the verdict.
NAME, ANSWER, VERDICT = "dpvision/key", "dpvision/key/{}", "dpvision/key/missed by"


class Link:
    """One rank's end of the links to all others. Both ends send and receive the same messages in the same order."""

    def __init__(self, key: Key, rank: int) -> None:
        self._cipher = AESGCM(key.stream("link", step=0).words(4).tobytes())
        self._rank, self._messages = rank, Counter[tuple[int, int]]()

    def send(self, value: Tensor, receiver: int) -> None:
        """Send the values of a tensor to another rank."""
        for piece in _bytes_of(value.contiguous()).split(MAX_PIECE):
            sealed = self._cipher.encrypt(self._next_nonce(self._rank, receiver), piece.numpy().data, None)
            dist.send(torch.frombuffer(bytearray(sealed), dtype=torch.uint8), receiver)

    def receive(self, value: Tensor, sender: int) -> None:
        """Overwrite a contiguous tensor with the values that another rank sent; a RuntimeError if they are not its."""
        for piece in _bytes_of(value).split(MAX_PIECE):
            sealed = torch.empty(len(piece) + TAG_BYTES, dtype=torch.uint8)
            dist.recv(sealed, sender)
            try:
                opened = self._cipher.decrypt(self._next_nonce(sender, self._rank), sealed.numpy().data, None)
            except InvalidTag:
                raise RuntimeError(f"a message from rank {sender} was altered on its way") from None
            piece.numpy()[:] = np.frombuffer(opened, dtype=np.uint8)

    def _next_nonce(self, sender: int, receiver: int) -> bytes:
        number = self._messages[sender, receiver]
        self._messages[sender, receiver] += 1
        return sender.to_bytes(2, "big") + receiver.to_bytes(2, "big") + number.to_bytes(8, "big")


def connect(store: dist.Store, rank: int, ranks: int) -> Link:
    """Share a key by a file that rank 0 writes and all others read; if one does not see it, a PrivacyError on all."""
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
        store.set(VERDICT, ", ".join(missing))
    else:
        path = key_path(store.get(NAME).decode())
        found = _look_for(path)
        store.set(ANSWER.format(rank), "missing" if found is None else "found")
        key = found or Key.fresh()
    if missed := store.get(VERDICT).decode():
        raise PrivacyError(
            f"{path}: rank {missed} of {ranks} does not see this key, by which ranks encrypt what they send. Nothing "
            "was charged. Fix: a DPVISION_HOME on a file system that all ranks share, the same for every rank."
        )
    return Link(key, rank)


def _look_for(path: Path) -> Key | None:
    """Read a key as soon as it can be seen."""
    end = time.monotonic() + PATIENCE
    while (key := Key.read(path)) is None and time.monotonic() < end:
        time.sleep(0.05)
    return key


def _bytes_of(value: Tensor) -> Tensor:
    """View the values of a contiguous tensor on the host as bytes."""
    return value.detach().view(-1).view(torch.uint8)
