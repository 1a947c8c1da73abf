"""What one rank does in tests/private/features/test_features.py: features of generated records; prints one JSON line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys

import numpy as np
import torch

from dpvision.data import Split
from dpvision.models import Featured, build, split_head
from dpvision.private.features import cache
from dpvision.private.training import ranks

OF = ("records", "network")
COUNT = 50
cache.AT_A_TIME = 8


def records(count: int = COUNT, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.integers(0, 256, (count, 8, 8, 1), dtype=np.uint8), np.arange(count) % 4, None)


def network(seed: int = 0) -> Featured:
    return split_head(build("small-cnn", (1, 8, 8), classes=4, seed=seed))


class Counting(Featured):
    """Notes how many images it was asked for, one call after the other."""

    def __init__(self, parts: Featured) -> None:
        super().__init__(parts.prefix, parts.rest, piece=parts.piece)
        self.calls: list[int] = []

    def features(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        return super().features(x)

    @property
    def images(self) -> int:
        """Without the blank ones, which only show the shape."""
        return sum(n for n in self.calls if n > 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks.start()
    deadly = int(sys.argv[1])

    def progress(done: int, count: int) -> None:
        if done >= deadly > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    parts = Counting(network())
    results = cache.load_or_compute(parts, records(), key=OF, progress=progress)
    digest = hashlib.blake2b(results.tobytes()).hexdigest()
    print(json.dumps({"images": parts.images, "digest": digest}))
