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
from tests.fuzz.command_lines import command_line, verbs
from tests.fuzz.mutations import digest_of_folder, hostile_copy

MEMORY = 1 << 30  # more than python, torch and a small model need
SECONDS = 10  # of the processor
LONG = re.compile(r"\d{4,}")  # who asks for a thousand steps or images gets work that takes long
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
        """One hostile file, before all that reads its kind."""
        kind = rng.choice(corpus.KINDS)
        arena, name = self._arena(rng, kind)
        home = arena / "home"
        if kind == "run":
            shutil.copytree(self.corpus / "home", home)
        words = (kind, arena / kind, self.corpus, "heavy" if rng.random() < 0.2 else "light")
        code, out, err = self._child(*words, home=home, arena=arena, call="tests.fuzz.readers:read")
        assert code == 0, f"{kind}, {name}: ended with {code}: {err}"
        refused, taken = map(int, out.split()[-2:])
        self.counts["refused" if refused else "harmless"] += 1
        self._clean(arena)
        assert refused + taken > 0

    def call(self, rng: Random) -> None:
        """One hostile command line, half of them on a hostile file."""
        verb = rng.choice(sorted(self._verbs))
        arena, name = self._arena(rng, rng.choice(corpus.KINDS) if rng.random() < 0.6 else None)
        home = arena / "home"
        if not home.exists():
            shutil.copytree(self.corpus / "home", home)
        words = command_line(rng, verb, self._verbs[verb], corpus=self.corpus, arena=arena)
        code, _, err = self._child(*words, home=home, arena=arena, cwd=arena)
        told = f"dpvision {' '.join(words)!r} ({name}) ended with {code}: {err}"
        if code == -signal.SIGXCPU:
            assert any(LONG.search(word) for word in words), told
            self.counts["still at work"] += 1
        else:
            assert code in OUR_CODES, told
            assert code == 0 or verb == "check" or err.count("dpvision: ") == 1, told
            assert "Traceback (most recent call last)" not in err, told
            self.counts[f"ended with {code}"] += 1
        self._clean(arena)

    def require_untouched(self) -> None:
        """Nothing was run, and nothing was written where it does not belong."""
        assert (digest_of_folder(self.corpus), digest_of_folder(self.outside)) == self._before
        assert not (self.outside / MARKER).exists()

    def _arena(self, rng: Random, kind: str | None) -> tuple[Path, str]:
        arena = self.root / "arena"
        self._clean(arena)
        arena.mkdir()
        if kind is None:
            return arena, "nothing hostile but the words"
        other = rng.choice(self._files).read_bytes()
        name = hostile_copy(
            rng, self.corpus / kind, arena / kind, other=other, payload=self.payload, outside=self.outside
        )
        return arena, f"{kind}/{name}"

    def _child(self, *words: str | Path, home: Path, arena: Path, **options: object) -> tuple[int, str, str]:
        job = self.server.start(
            *words, home=home, arena=arena, guard=True, memory=MEMORY, seconds=SECONDS, **options  # type: ignore[arg-type]
        )
        code = self.server.ended(job, within=300)
        if code is None:
            os.kill(job.pid, signal.SIGKILL)
            self.server.ended(job, within=60)
            raise AssertionError(f"{words}: waits for ever")
        out, err = said(job)
        assert code != ESCAPED, f"{words}: {err}"
        shutil.rmtree(job.place)
        return code, out, err

    def _clean(self, arena: Path) -> None:
        shutil.rmtree(arena, ignore_errors=True)
