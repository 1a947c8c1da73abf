"""The verbs that take long, each as small as it can be, and what is compared when they come to their end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.system.runs.commands import write_data

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
    """`words` is the command that continues from what exists; `files` must have the same bits each time."""

    name: str
    words: Callable[[World], Words]
    files: Callable[[World], list[Path]]
    private: bool = False  # it charges a ledger

    @property
    def trains(self) -> bool:
        return self.name.startswith("train")

    def result(self, world: World) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.files(world)}


def supplied(server: ForkServer, folder: Path) -> Path:
    """What verbs are given: data, a model to draw from, and a run to attack with its ledger's home."""
    data = write_data(folder / "data.npz", images=80)
    fit = ("synth", "fit", data, "--size", "tiny", "--batch", 2, "--steps", 2, "--out", folder / "edm")
    run = ("train", data, "--epsilon", 3, "--batch", 10, "--steps", 2, "--canaries", 8, "--out", folder / "run")
    for words, home in ((fit, folder / "home"), (run, folder / "home of the run")):
        code, _, err = server.run(*words, home=home)
        assert code == 0, err
    return folder


def _train(world: World) -> Words:
    if world.out.exists():
        return ("resume", world.out)
    settings = ("--epsilon", 3, "--batch", 10, "--steps", 6, "--checkpoint-every", 2)
    return ("train", world.data, *settings, "--out", world.out)


def _carry(world: World) -> Words:
    words = _train(world)
    return words if words[0] == "resume" else (*words, "--canaries", 8)


def _audit(world: World) -> Words:
    if not world.out.exists():
        shutil.copytree(world.supplies / "run", world.out)
        shutil.copytree(world.supplies / "home of the run", world.home, dirs_exist_ok=True)
    return ("audit", world.out, world.data, "--runs", 100, "--confidence", 0.999999)  # never refuted by chance


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


def _attacked(world: World) -> list[Path]:
    """What an audit leaves as it is: its own draws are new each time."""
    top = [world.out / name for name in ("weights.safetensors", "config.toml", "metrics.jsonl", "ledger.jsonl")]
    return [*top, *(world.out / "operator" / name for name in ("run.json", "state.safetensors", "canaries.json"))]


def _rows(world: World) -> list[Path]:
    return [*sorted(world.out.glob("*.safetensors")), world.out / "schema.json"]


VERBS = (
    Verb("train", _train, lambda w: [*_weights(w), w.out / "metrics.jsonl"], private=True),
    Verb("train, with canaries", _carry, lambda w: [*_weights(w), w.out / "audit.json"], private=True),
    Verb("release, moments", _moments, _rows, private=True),
    Verb("release, mixtures", _mixtures, _rows, private=True),
    Verb("pretrain", _pretrain, _weights),
    Verb("synth fit", _fit, _weights),
    Verb("synth guide", _guide, _weights),
    Verb("synth sample", _sample, lambda w: [w.out.with_suffix(".npz")]),
    Verb("warm", _warm, _weights),
    Verb("data pack", _pack, lambda w: sorted(w.out.iterdir())),
    Verb("audit", _audit, _attacked),
)

# In the time that continuous integration has, the slowest are left to `make test-slow`.
LATER = {"release, mixtures", "train, with canaries"}
EACH = [pytest.param(v, marks=[pytest.mark.slow] if v.name in LATER else [], id=v.name) for v in VERBS]
