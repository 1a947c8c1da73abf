"""What a release needs of its mechanism: a name for the charge, rows for that charge, and words for card and schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray

from dpvision.core.account import Charge
from dpvision.core.events import Event, to_json
from dpvision.core.gate import secret_name
from dpvision.core.keys import Key
from dpvision.core.rows import Rows
from dpvision.released.folder import Block
from dpvision.released.learners import Learner
from dpvision.settings.release import Release
from dpvision.storage.home import computing

CLASS_NUMBERS = "the number of each row's class, counted from 0"
# Rows of a block where the mechanism does not decide it.
AT_A_TIME = 512


@dataclass(frozen=True)
class Description:
    """What a card, a schema and learners are given about a mechanism: public, and the same for every data set.

    name, rows_are, labels   in words: the mechanism, what a row is, and what labels mean
    hard                     whether a label is the number of a class; if not, it is a share of each class
    noise                    what a learner can use: noise_x, noise_y and degree of the rows, if they have any
    more                     further entries of the card
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
class Output:
    """What came through the gate, or was computed from it: rows, in order, and whatever else is released."""

    blocks: Iterable[Block]
    files: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)  # further files, by name
    learners: Mapping[str, Learner] = field(default_factory=dict)  # fitted to those files, by a description


class Mechanism(Protocol):
    """What one release does to private rows. It is made of rows and complete settings, which it refuses by name."""

    def name(self, key: Key, event: Event) -> str:
        """The name of the charge and of the noise: a secret function of records, settings and software."""

    def make(self, charge: Charge, key: Key, config: Release) -> Output:
        """All that is released, through one gate, for the charge of that name and no other."""

    def describe(self, config: Release) -> Description:
        """The mechanism in words and public numbers."""


def release_name(kind: str, settings: str, rows: Rows, key: Key, event: Event) -> str:
    """The name of a release's charge and noise, which records, settings and software all shape (gate.secret_name)."""
    what = f"{kind} {settings} {rows.classes} {to_json(event)} {computing()}"
    return secret_name(key, "name of a release", what, (rows.x, rows.labels))
