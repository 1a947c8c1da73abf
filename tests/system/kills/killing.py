"""kill -9 at random instants, then the same command again, until it completes: what must hold after each kill.

nothing lost             the result has the same bits as that of an undisturbed run, after repeating the same command
nothing under-counted    noise is on disk only where its charge is in the ledger, and it is charged once, in full
nothing half written     a file under its final name is complete: tables and headers can be read after every kill
nothing left over        at the end, no copy of a key that noise was drawn from is left
a clear message          a command that refuses to continue states that its work is done, and it is
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import load

from dpvision.core.account import Account
from dpvision.core.ledger import Ledger
from dpvision.storage import safetensors
from tests.fork_server import ForkServer, Job, changes, read_output
from tests.system.kills.verbs import KEY, Verb, World

DONE = ("already exists. Fix", "is finished. Fix")
SECONDS = 300.0  # for one child process, on a busy machine


@dataclass
class Tally:
    """The results of killing a verb."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: int = 0


@dataclass
class Unbroken:
    """An undisturbed run of a verb: its result, the number of changes to the disk, and its duration."""

    result: dict[str, bytes]
    changes: int
    seconds: float


Undisturbed = Callable[[Verb], Unbroken]


def unbroken(server: ForkServer, verb: Verb, world: World) -> Unbroken:
    world.out.parent.mkdir(parents=True)
    began = time.monotonic()
    job = server.start(*verb.words(world), home=world.home, key=KEY, arena=world.folder)
    code, _, err = server.wait(job, seconds=SECONDS)
    assert code == 0, err
    return Unbroken(verb.result(world), changes(job), time.monotonic() - began)


def kill_until_done(
    server: ForkServer, verb: Verb, supplies: Path, whole: Unbroken, *, kills: int, rng: random.Random
) -> Tally:
    """Kill repeatedly, each time before a random change to the disk or at a random time."""
    tally = Tally()
    while sum(tally.kills.values()) < kills:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder).resolve(), supplies)
            _one_life(server, verb, world, whole, tally, rng=rng, key=rng.choice([KEY, None]))
            tally.ends += 1
    return tally


def _one_life(
    server: ForkServer, verb: Verb, world: World, whole: Unbroken, tally: Tally, *, rng: random.Random, key: str | None
) -> None:
    """Run a verb from the start to the end, with kills in between."""
    world.out.parent.mkdir(parents=True)
    keys: dict[str, set[bytes]] = {}
    rows: set[bytes] = set()
    left = rng.randint(1, 4)
    while True:
        words = verb.words(world)
        die_at = rng.randint(1, whole.changes) if left and rng.random() < 0.6 else None
        job = server.start(*words, home=world.home, key=key, arena=world.folder, die_at=die_at)
        if left and die_at is None:
            code = _disturbed(server, job, after=rng.uniform(0, whole.seconds), hard=rng.random() < 0.7)
        else:
            code = server.ended(job, within=SECONDS)
        left = max(0, left - 1)
        if code == -signal.SIGKILL:
            tally.kills[verb.name if words[0] != "resume" else "resume"] += 1
        _nothing_half_written(verb, world)
        if verb.private:
            _nothing_under_counted(verb, world)
            _remember(world, keys, rows)
        if code == 0:
            break
        out, err = read_output(job)
        if code in (2, 3) and verb.files(world) and all(path.exists() for path in verb.files(world)):
            assert any(words in err for words in DONE), err
            break
        assert code in (-signal.SIGKILL, -signal.SIGTERM, 130), f"{verb.name} ended with {code}: {err}"
        assert code != 130 or "continue" in out.lower() or "interrupted" in err, (out, err)
    result = verb.result(world)
    assert (key is None and verb.private) or result == whole.result, f"{verb.name}: the result has other bits"
    if verb.private:
        actual = account(world.home)
        (charge,) = actual.charges
        assert charge.private == (key is None)
        card = json.loads((world.out / "card.json").read_text())["guarantee"]["epsilon"]
        assert card is None if key else 0 < card <= actual.spent(), f"{verb.name}: states {card}, more than was charged"
        _no_copy_of_the_key(verb, world, keys)
        assert verb.trains or not rows - {result["rows-00000.safetensors"]}, "two different noises were drawn"


def _disturbed(server: ForkServer, job: Job, *, after: float, hard: bool) -> int | None:
    """Kill it, or ask it to stop, after some seconds; return its exit code and output."""
    code = server.ended(job, within=after)
    if code is None:
        os.kill(job.pid, signal.SIGKILL if hard else signal.SIGTERM)
        code = server.ended(job, within=SECONDS)
    return code


def account(home: Path) -> Account:
    """Return the only account of this home, read from a copy: reading repairs what a crash left."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "ledgers"
        shutil.copytree(home / "ledgers", copy)
        (path,) = copy.glob("*.jsonl")
        first = json.loads(path.read_text().split("\n")[0])
        return Ledger(copy, first["fingerprint"]).account()


def _noise_drawn(world: World) -> bool:
    """Return whether anything on disk depends on noise."""
    made = world.out.parent
    if any(made.rglob("rows-*.safetensors")) or any(made.rglob("moments.safetensors")) or any(made.rglob("card.json")):
        return True
    states = list(made.rglob("state.safetensors"))
    return any(int(safetensors.read(path).header["step"]) > 0 for path in states) or any(made.rglob("metrics.jsonl"))


def _nothing_half_written(verb: Verb, world: World) -> None:
    named = [p for p in world.folder.rglob("*") if not any(part.startswith(".") for part in p.parts)]
    for path in named:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            assert load(path.read_bytes()) is not None, f"{verb.name}: {path} is not whole"


def _nothing_under_counted(verb: Verb, world: World) -> None:
    ledgers = world.home / "ledgers"
    opened = any(path.stat().st_size and b"\n" in path.read_bytes() for path in ledgers.glob("*.jsonl"))
    charges = account(world.home).charges if opened else ()
    assert len(charges) <= 1, f"{verb.name}: continuing was charged again"
    assert charges or not _noise_drawn(world), f"{verb.name}: noise before its charge"


def _remember(world: World, keys: dict[str, set[bytes]], rows: set[bytes]) -> None:
    """Check the keys that exist, and the rows that a kill left."""
    for path in (world.home / "keys").glob("*.key"):
        if len(data := path.read_bytes()) == 40 and any(data[8:]):
            keys.setdefault(path.stem, set()).add(data[8:])
    rows |= {p.read_bytes() for p in world.out.parent.rglob("rows-00000.safetensors")}


def _no_copy_of_the_key(verb: Verb, world: World, keys: dict[str, set[bytes]]) -> None:
    used = set(keys)
    if verb.trains:  # a key that no run folder names was never used
        used = {safetensors.read(world.out / "operator" / "state.safetensors").header["key"]}
    secrets = {secret for name in used for secret in keys.get(name, ())}
    for path in world.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret in data for secret in secrets), f"{path} still has the key of a finished {verb.name}"
