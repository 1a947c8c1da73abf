"""Fixed keys and draws in place of fresh ones, so that no test of an attack fails by chance."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import pytest

from dpvision.audit import shadow_models
from dpvision.audit.canaries import CanaryRandom
from dpvision.core.keys import KEY_BYTES, Key


@contextmanager
def fixed_randomness(word: str) -> Iterator[None]:
    """Within the block, fresh keys, inserted canaries and halves of shadow models are a function of the word."""
    count = itertools.count()

    def fresh() -> Key:
        seed = f"{word} {next(count)}".encode()
        return Key(blake2b(seed, digest_size=KEY_BYTES).digest(), private=True)

    def public(self: CanaryRandom, run: int) -> np.random.Generator:
        return np.random.default_rng([run, *(self.word or word).encode()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "fresh", staticmethod(fresh))
        patch.setattr(CanaryRandom, "public", public)
        patch.setattr(shadow_models.secrets, "randbits", lambda bits: 7)
        yield
