"""The interface of a release mechanism: the name of its charge, its rows, and its description for card and schema."""

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
# The default number of rows in a block.
AT_A_TIME = 512


@dataclass(frozen=True)
class Description:
    """The description of a mechanism for a card, a schema and learners: public, and the same for every data set.

    name, rows_are, labels   text: the mechanism, what a row is, and what labels mean
    hard                     whether a label is a class number; if not, it has a share of each class
    noise                    the noise of the rows, for learners: noise_x, noise_y and degree, if there are any
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
    """Everything that a mechanism releases, after the gate has added noise: rows, in order, and further files."""

    blocks: Iterable[Block]
    files: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)  # further files, by name
    learners: Mapping[str, Learner] = field(default_factory=dict)  # fitted to those files, by description


class Mechanism(Protocol):
    """The computation of one release. It is built from private rows and complete settings, which it validates."""

    def name(self, key: Key, event: Event) -> str:
        """Name the charge and the noise, by a secret function of records, settings and software."""

    def make(self, charge: Charge, key: Key, config: Release) -> Output:
        """Make everything that is released, through one gate, for the charge of that name and no other."""

    def describe(self, config: Release) -> Description:
        """Describe the mechanism by text and public numbers."""


def release_name(kind: str, settings: str, rows: Rows, key: Key, event: Event) -> str:
    """Name the charge and the noise of a release, from records, settings and software (gate.secret_name)."""
    what = f"{kind} {settings} {rows.classes} {to_json(event)} {computing()}"
    return secret_name(key, "name of a release", what, rows.arrays)
