"""Hostile inputs, each in a child of its own, and what must hold for every one of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from random import Random

from tests.data.hostile_case import MARKER, pickle_payload
from tests.fork_server import ESCAPED, ForkServer, said
from tests.fuzz import corpus
from tests.fuzz.command_lines import command_line, cut_short, verbs
from tests.fuzz.mutations import digest_of_folder, hostile_copy

MEMORY = 1 << 30  # more than python, torch and a small model need
SECONDS = 10  # of the processor, for a command line
FILES_AT_ONCE = 10  # that one child reads
LONG = re.compile(r"\d{4,}|patches|--cas")  # a thousand steps, a dictionary, a classifier: work that takes long
OUR_CODES = (0, 2, 3, 4)


class Campaign:
    """A corpus, a folder that nobody may change, and counts of what came of the inputs."""

    def __init__(self, server: ForkServer, root: Path) -> None:
        self.server, self.root = server, root.resolve()
        self.outside, folder = self.root / "outside", self.root / "corpus"
        self.outside.mkdir(parents=True)
        (self.outside / "secret").write_bytes(b"nobody's business")
        folder.mkdir()
        self.corpus = corpus.made(server, folder)
        self.payload = pickle_payload(self.outside)
        self._files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.stat().st_size < 100_000]
        self._before = digest_of_folder(folder), digest_of_folder(self.outside)
        self._verbs = verbs()
        self.counts: Counter[str] = Counter()

    def read(self, rng: Random) -> None:
        """Some hostile files, each before all that reads its kind."""
        arena, places, names = self._arena(), [], []
        for number in range(FILES_AT_ONCE):
            kind = rng.choice(corpus.KINDS)
            folder = arena / str(number)
            folder.mkdir()
            names.append(self._hostile(rng, kind, folder))
            if kind == "run":
                shutil.copytree(self.corpus / "home", folder / "home")
            places += [folder / kind, "heavy" if rng.random() < 0.2 else "light"]
        words = (self.corpus, *places)
        code, out, err = self._child(*words, home=arena / "home", arena=arena, call="tests.fuzz.readers:read_all")
        lines = out.splitlines()
        assert code == 0, f"{names[min(len(lines), FILES_AT_ONCE - 1)]}: ended with {code}: {err}"
        for line in lines:
            refused, taken = map(int, line.split())
            assert refused + taken > 0
            self.counts["refused" if refused else "harmless"] += 1

    def call(self, rng: Random) -> None:
        """One hostile command line, half of them on a hostile file."""
        verb = rng.choice(sorted(self._verbs))
        arena = self._arena()
        name = self._hostile(rng, rng.choice(corpus.KINDS), arena) if rng.random() < 0.6 else "a sound corpus"
        home = arena / "home"
        if not home.exists():
            shutil.copytree(self.corpus / "home", home)
        words = command_line(rng, verb, self._verbs[verb], corpus=self.corpus, arena=arena)
        code, _, err = self._child(*words, home=home, arena=arena, cwd=arena)
        told = f"dpvision {' '.join(words)!r} ({name}) ended with {code}: {err}"
        if code == -signal.SIGXCPU:
            assert cut_short(verb, words) or any(LONG.search(word) for word in words), told
            self.counts["still at work"] += 1
        else:
            assert code in OUR_CODES, told
            assert code == 0 or verb == "check" or err.count("dpvision: ") == 1, told
            assert "Traceback (most recent call last)" not in err, told
            self.counts[f"ended with {code}"] += 1

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

    def _hostile(self, rng: Random, kind: str, folder: Path) -> str:
        other = rng.choice(self._files).read_bytes()
        name = hostile_copy(
            rng, self.corpus / kind, folder / kind, other=other, payload=self.payload, outside=self.outside
        )
        return f"{kind}/{name}"

    def _child(self, *words: str | Path, home: Path, arena: Path, **options: object) -> tuple[int, str, str]:
        limits = {"memory": MEMORY, "seconds": SECONDS if "cwd" in options else SECONDS * FILES_AT_ONCE}
        job = self.server.start(*words, home=home, arena=arena, guard=True, **limits, **options)  # type: ignore[arg-type]
        code = self.server.ended(job, within=1200)  # by the clock: the machine may have much else to do
        if code is None:
            os.kill(job.pid, signal.SIGKILL)
            self.server.ended(job, within=60)
            raise AssertionError(f"{words}: waits for ever")
        out, err = said(job)
        assert code != ESCAPED, f"{words}: {err}"
        shutil.rmtree(job.place)
        return code, out, err
