"""What a release needs of its mechanism: a name for the charge, rows for that charge, and words for card and schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpvision.core.account import Charge
from dpvision.core.events import Event
from dpvision.core.keys import Key
from dpvision.released.folder import Block
from dpvision.released.learners import Learner
from dpvision.settings.release import Release

# Labels that are classes, and how they are counted.
CLASS_NUMBERS = "the number of each row's class, counted from 0"
AT_A_TIME = 512


@dataclass(frozen=True)
class Described:
    """What a card, a schema and learners get to know of a mechanism: public, and the same for every data set.

    name, rows_are, labels   in words: the mechanism, what a row is, and what labels mean
    hard                     whether a label is the number of a class; otherwise it is a share of each class
    noise                    what a learner can use: noise_x, noise_y and degree of the rows, where they have any
    more                     what else the card has
    """

    name: str
    rows_are: str
    labels: str
    hard: bool
    noise: Mapping[str, float] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)

    def on_card(self) -> dict[str, Any]:
        return {"name": self.name, "labels": self.labels, "rows_are": self.rows_are, **self.noise, **self.more}


@dataclass(frozen=True, eq=False)
class Made:
    """What came through the gate, or was made of it: rows, in order, and whatever else is released."""

    blocks: Iterable[Block]
    files: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)  # further files, by name
    learners: Mapping[str, Learner] = field(default_factory=dict)  # fitted to those files, by what they are


class Mechanism(Protocol):
    """What one release does to private rows. It is made of rows and complete settings, which it refuses by name."""

    def name(self, key: Key, event: Event) -> str:
        """Of the charge and the noise: a secret function of records, settings and software (gate.secret_name)."""

    def make(self, charge: Charge, key: Key, config: Release) -> Made:
        """For the charge of that name, and no other: all that is released, through one gate."""

    def describe(self, config: Release) -> Described:
        """In words."""


def in_blocks(features: NDArray[np.float32], labels: NDArray[Any]) -> Iterator[Block]:
    """AT_A_TIME rows each."""
    for start in range(0, len(features), AT_A_TIME):
        yield features[start : start + AT_A_TIME], labels[start : start + AT_A_TIME]
