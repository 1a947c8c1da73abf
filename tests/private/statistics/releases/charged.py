"""Small private rows, and mixtures of them that were charged."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpvision.core.account import Charge
from dpvision.core.events import Budget, Event
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.private.statistics.mixtures import Mixtures
from dpvision.private.statistics.moments import MomentsMechanism

N, WIDTH, CLASSES = 90, 12, 3
KEY = Key.for_tests("mixtures")


def charge(folder: Path, mixtures: Mixtures | MomentsMechanism, event: Event, key: Key = KEY) -> Charge:
    folder.mkdir(exist_ok=True)
    ledger = Ledger(folder, "ab" * 16)
    ledger.open(Budget(1e9, 1e-5))
    account = ledger.spend(event, id=mixtures.name(key, event), run="test", private=key.private)
    return account.charges[-1]


def mixed(folder: Path, mixtures: Mixtures, *, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """All features and labels that come out."""
    blocks = list(mixtures.blocks(charge(folder, mixtures, mixtures.sampler.event(sigma)), KEY))
    features, labels = (np.concatenate(part) for part in zip(*blocks, strict=True))
    return features, labels


def rows_of(x: np.ndarray, labels: np.ndarray) -> Rows:
    return Rows.of(x, labels, Preparation(), classes=CLASSES)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(N, WIDTH)), rng.integers(0, CLASSES, N)
