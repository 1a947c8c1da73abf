"""Hostile inputs, each in a separate child process, and what must hold for all of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from random import Random

from tests.data.hostile_case import MARKER, pickle_payload
from tests.fork_server import ESCAPED, ForkServer, opened, read_output
from tests.system.fuzz import corpus
from tests.system.fuzz.command_lines import command_line, cut_short, verbs
from tests.system.fuzz.mutations import digest_of_folder, hostile_copy

MEMORY = 1 << 30  # more than python, torch and a small model need
SECONDS = 10  # of the processor, for a command line
FILES_AT_ONCE = 50  # that one child reads
LONG = re.compile(r"\d{4,}|patches|--cas")  # a thousand steps, a dictionary, a classifier: work that takes long
OUR_CODES = (0, 2, 3, 4)
UNSEEN, ON_A_FILE = "never looked at (not counted)", "that opened a hostile file (counted already)"


class Campaign:
    """A corpus, a folder that nobody may change, and counts of what came of the inputs.

    An input is a function of the corpus and of a seed. Those that failed are in faults.jsonl of the root, which
    `python -m tests.system.fuzz ROOT` runs again.
    """

    def __init__(self, server: ForkServer, root: Path) -> None:
        self.server, self.root = server, root.resolve()
        self.outside, self.corpus = self.root / "outside", self.root / "corpus"
        if not self.corpus.exists():
            self.outside.mkdir(parents=True)
            (self.outside / "secret").write_bytes(b"nobody's business")
            self.corpus.mkdir()
            corpus.made(server, self.corpus)
        self.payload = pickle_payload(self.outside)
        self._files = [p for p in sorted(self.corpus.rglob("*")) if p.is_file() and p.stat().st_size < 100_000]
        self._before = digest_of_folder(self.corpus), digest_of_folder(self.outside)
        self._verbs = verbs()
        self.counts: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # command lines that did what they say, by their verbs

    @property
    def faults(self) -> Path:
        return self.root / "faults.jsonl"

    def attempt(self, what: str, seed: int) -> None:
        """`what` is "read" or "call". A failure is stored with its place."""
        try:
            getattr(self, what)(Random(seed))
        except AssertionError as exc:
            with self.faults.open("a") as file:
                file.write(json.dumps({"what": what, "seed": seed, "message": str(exc)}) + "\n")
            raise AssertionError(f"{exc}\nTo see it again: python -m tests.system.fuzz {self.root}") from exc

    def read(self, rng: Random) -> None:
        """Some hostile files, each before all that reads its kind."""
        arena, inputs = self._arena(), []
        for number in range(FILES_AT_ONCE):
            own = Random(rng.getrandbits(64))  # what one is does not depend on the lengths of others
            place = arena / str(number) / own.choice(corpus.KINDS)
            place.parent.mkdir()
            inputs.append((place, "heavy" if own.random() < 0.2 else "light", self._hostile(own, place)))
        self.read_all(arena, inputs)

    def read_all(self, arena: Path, inputs: list[tuple[Path, str, Path]]) -> None:
        """Places with what they are to be read by, and which file of each was changed.

        An input counts if a reader refused it or opened what was changed in it.
        """
        for place, _, _ in inputs:
            if place.name in ("run", "stopped"):
                shutil.copytree(self.corpus / "home", place.parent / "home")
        words = [word for place, how, _ in inputs for word in (place, how)]
        call = "tests.system.fuzz.readers:read_all"
        code, out, err, opened = self._child(self.corpus, *words, home=arena / "home", arena=arena, call=call)
        lines = out.splitlines()
        assert code == 0, f"{inputs[min(len(lines), len(inputs) - 1)][2]}: ended with {code}: {err}"
        for line, (_, _, path) in zip(lines, inputs, strict=True):
            refused, taken = map(int, line.split())
            assert refused + taken > 0
            self.counts["refused" if refused else "harmless" if str(path) in opened else UNSEEN] += 1

    def call(self, rng: Random) -> None:
        """One hostile command line, more than half of them on a hostile file."""
        verb = rng.choice(sorted(self._verbs))
        arena, changed = self._arena(), None
        if rng.random() < 0.6:
            changed = self._hostile(rng, arena / rng.choice(corpus.KINDS))
        home = arena / "home"
        if not home.exists():
            shutil.copytree(self.corpus / "home", home)
        words = command_line(rng, verb, self._verbs[verb], corpus=self.corpus, arena=arena)
        code, _, err, opened = self._child(*words, home=home, arena=arena, cwd=arena)
        result = f"dpvision {' '.join(words)!r} ({changed or 'a sound corpus'}) ended with {code}: {err}"
        if code == -signal.SIGXCPU:
            assert cut_short(verb, words) or any(LONG.search(word) for word in words), result
            self.counts["still at work"] += 1
        elif code == -signal.SIGABRT and changed is None and "memory allocation of" in err:
            # A sound command within the campaign's memory: safetensors ends the process where it gets none (KNOWN_LIMITS).
            self.counts["out of memory"] += 1
        else:
            assert code in OUR_CODES, result
            assert code == 0 or verb == "check" or err.count("dpvision: ") == 1, result
            assert "Traceback (most recent call last)" not in err, result
            self.counts[f"ended with {code}"] += 1
            self.counts[ON_A_FILE] += str(changed) in opened
            self.finished[verb] += code == 0

    def never_finished(self) -> list[str]:
        """Verbs of which no command line came to its end: what is behind their first line was not tried."""
        return [verb for verb in self._verbs if not self.finished[verb]]

    def require_untouched(self) -> None:
        """Nothing was run, and nothing was written where it does not belong."""
        assert (digest_of_folder(self.corpus), digest_of_folder(self.outside)) == self._before
        assert not (self.outside / MARKER).exists()

    def _arena(self) -> Path:
        """An empty folder."""
        arena = self.root / "arena"
        shutil.rmtree(arena, ignore_errors=True)
        arena.mkdir()
        return arena

    def _hostile(self, rng: Random, place: Path) -> Path:
        """Makes the place, from the corpus; which file of it was changed."""
        other = rng.choice(self._files).read_bytes()
        source = self.corpus / place.name
        return hostile_copy(rng, source, place, other=other, payload=self.payload, outside=self.outside)

    def _child(self, *words: str | Path, home: Path, arena: Path, **options: object) -> tuple[int, str, str, set[str]]:
        limits = {"memory": MEMORY, "seconds": SECONDS if "cwd" in options else 3 * FILES_AT_ONCE}
        job = self.server.start(*words, home=home, arena=arena, guard=True, **limits, **options)  # type: ignore[arg-type]
        code = self.server.ended(job, within=1200)  # by the clock: the machine may have much else to do
        if code is None:
            os.kill(job.pid, signal.SIGKILL)
            self.server.ended(job, within=60)
            raise AssertionError(f"{words}: waits for ever")
        out, err = read_output(job)
        assert code != ESCAPED, f"{words}: {err}"
        seen = opened(job) if code >= 0 else set()
        shutil.rmtree(job.place)
        return code, out, err, seen
