"""The verbs that take long, each as small as it can be, and what is compared when they come to their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.guarantees.commands import write_data

Words = tuple[str | Path | float, ...]
KEY = "faults"


@dataclass(frozen=True)
class World:
    """A folder that a verb works in: what it is given (the same for all), the ledger's home, and what it makes."""

    folder: Path
    supplies: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def out(self) -> Path:
        return self.folder / "made" / "out"

    @property
    def data(self) -> Path:
        return self.supplies / "data.npz"

    @property
    def edm(self) -> Path:
        return self.supplies / "edm"


@dataclass(frozen=True)
class Verb:
    """`words` is the command that goes on from what is there; `files` are those that must be the same bits each time."""

    name: str
    words: Callable[[World], Words]
    files: Callable[[World], list[Path]]
    private: bool = False  # it charges a ledger

    def result(self, world: World) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.files(world)}


def supplied(server: ForkServer, folder: Path) -> Path:
    """What verbs are given: data, and a model to draw from."""
    data = write_data(folder / "data.npz", images=80)
    fit = ("synth", "fit", data, "--size", "tiny", "--batch", 2, "--steps", 2, "--out", folder / "edm")
    code, _, err = server.run(*fit, home=folder / "home")
    assert code == 0, err
    return folder


def _train(world: World) -> Words:
    if world.out.exists():
        return ("resume", world.out)
    settings = ("--epsilon", 3, "--batch", 10, "--steps", 6, "--checkpoint-every", 2)
    return ("train", world.data, *settings, "--out", world.out)


def _pretrain(world: World) -> Words:
    images = ("--process", "dead-leaves-mixed", "--size", 8, "--finer", 1, "--count", 8, "--batch", 2)
    return ("pretrain", "--model", "wrn-10-1", "--hidden", 16, *images, "--steps", 12, "--out", world.out)


def _fit(world: World) -> Words:
    return ("synth", "fit", world.data, "--size", "tiny", "--batch", 2, "--steps", 12, "--out", world.out)


def _guide(world: World) -> Words:
    steps = ("--samples", 8, "--extractor-steps", 4, "--steps", 4, "--batch", 4, "--width", 8)
    return ("synth", "guide", world.edm, world.data, *steps, "--out", world.out)


def _sample(world: World) -> Words:
    out = world.out.with_suffix(".npz")
    return ("synth", "sample", world.edm, "--count", 20, "--batch", 4, "--steps", 2, "--out", out)


def _warm(world: World) -> Words:
    steps = ("--steps", 8, "--save-every", 0, "--batch", 8, "--augment", "none")
    return ("warm", world.data, "--model", "linear", *steps, "--out", world.out)


def _moments(world: World) -> Words:
    features = ("--encoder", "pixels", "--rank", 0, "--rows", 40)
    return ("release", world.data, "--epsilon", 1, *features, "--out", world.out)


def _mixtures(world: World) -> Words:
    features = ("--encoder", "pixels", "--rank", 0, "--rows", 40, "--degree", 4)
    return ("release", world.data, "--recipe", "neuromix", "--epsilon", 1, *features, "--out", world.out)


def _pack(world: World) -> Words:
    return ("data", "pack", world.data, "--out", world.out)


def _weights(world: World) -> list[Path]:
    return [world.out / "weights.safetensors"]


def _rows(world: World) -> list[Path]:
    return [*sorted(world.out.glob("*.safetensors")), world.out / "schema.json"]


VERBS = (
    Verb("train", _train, lambda w: [*_weights(w), w.out / "metrics.jsonl"], private=True),
    Verb("release, moments", _moments, _rows, private=True),
    Verb("release, mixtures", _mixtures, _rows, private=True),
    Verb("pretrain", _pretrain, _weights),
    Verb("synth fit", _fit, _weights),
    Verb("synth guide", _guide, _weights),
    Verb("synth sample", _sample, lambda w: [w.out.with_suffix(".npz")]),
    Verb("warm", _warm, _weights),
    Verb("data pack", _pack, lambda w: sorted(w.out.iterdir())),
)

# In the time that continuous integration has, the slowest is left to `make test-slow`.
EACH = [pytest.param(v, marks=[pytest.mark.slow] if "mixtures" in v.name else [], id=v.name) for v in VERBS]
