"""The name of a release: a secret function of everything that shapes it, so it tells nothing of what it names.

With a fresh key it is new each time. With a kept one, the same records, settings and software give the same name, the
same noise and one charge; any other input gives other noise and a charge of its own.
"""

from __future__ import annotations

import hashlib

import numpy as np

from dpvision.heads.rows import Rows
from dpvision.mechanism.streams import Key
from dpvision.state import software


def name_of(key: Key, rows: Rows, settings: str) -> str:
    """`settings` is all that shapes the release beside the rows and the software."""
    everything = hashlib.blake2b(f"{settings} {software()}".encode(), digest_size=32)
    for part in (rows.x, rows.labels):
        everything.update(f"{rows.classes} {part.dtype} {part.shape}".encode())
        everything.update(np.ascontiguousarray(part).data)
    return key.stream("name of a release", step=0, branch=everything.hexdigest()).words(2).tobytes().hex()
