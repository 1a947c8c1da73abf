"""Our clipping engine compared with plain training, Opacus and torch.func, each in its own process, taking turns.

With --device NAME, the engine on an accelerator instead: see engine_device.py. On a machine that does other work as
well, use engine_busy.py.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import engine_device
from benchmarks.engine_networks import TIMM
from benchmarks.results import Figure, main

ROOT = Path(__file__).parents[1]
PEERS = ("hooks", "functorch", "ew", "ghost", "vmap")
NAMES = {
    "plain": "plain training",
    "ours": "dpvision",
    "hooks": "Opacus hooks",
    "functorch": "Opacus functorch",
    "ew": "Opacus ExpandedWeights",
    "ghost": "Opacus ghost",
    "vmap": "torch.func vmap",
}
COLUMNS = (
    *("network", "K", "units", "threads", "mode", "layout, cut", "images/s", "CPU ms/image"),
    *("speed / plain", "memory growth MB", "peak MB"),
)
MAIN = "wrn-16-4"
SPEED = {16: 0.93, 4: 0.95, 1: 0.90}  # least speed of ours relative to plain training on MAIN, by views


@dataclass(frozen=True)
class Case:
    """`units` units of `views` images each, on `threads` threads, in some modes."""

    network: str
    views: int
    units: int
    threads: int = 2
    peers: tuple[str, ...] = PEERS
    rounds: int = 3  # of plain and ours, after one to warm up
    peer_rounds: int = 3
    plain_layouts: tuple[str, ...] = ("contiguous", "channels_last")
    plain_cuts: tuple[int, ...] = (8, 16, 32, 64)
    peer_cuts: tuple[int, ...] = (16, 32, 64)
    sample: int = 64  # images in a trial of a cut, or the cut if that is more
    repeats: int = 2  # passes in a trial of a cut of plain; a peer's has one

    @property
    def title(self) -> str:
        return f"{self.network}, K={self.views}, {self.threads} thread{'s' * (self.threads > 1)}"

    @property
    def images(self) -> int:
        return self.units * self.views

    @property
    def modes(self) -> tuple[str, ...]:
        return ("plain", "ours", *self.peers)


@dataclass
class Row:
    """What was measured of one mode in one case."""

    layout: str
    cut: int
    busy: bool = False  # processor time counts, not wall time
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    resident: int = 0
    peak: int = 0
    shown: list[float] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        return self.cpus if self.busy else self.walls

    @property
    def wall(self) -> float:
        return statistics.median(self.times)

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpus)

    @property
    def growth(self) -> int:
        return self.peak - self.resident


def cases(quick: bool) -> list[Case]:
    """The most views first: a cut is chosen once for a network and number of threads, at its first case."""
    if quick:
        few = {"peers": ("hooks", "ew", "vmap"), "rounds": 5, "peer_cuts": (16, 32), "repeats": 1}
        table = [Case(MAIN, views, units, **few) for views, units in ((16, 4), (4, 16), (1, 64))]
        return [*table, probe(peers=(), rounds=9)]
    return [
        *(Case(MAIN, views, units, rounds=5, peer_rounds=2) for views, units in ((16, 16), (4, 48), (1, 192))),
        *(
            Case(MAIN, views, units, 1, ("ew", "vmap"), rounds=5, peer_rounds=2)
            for views, units in ((16, 8), (4, 32), (1, 96))
        ),
        *(Case("wrn-16-4-ws", views, units, 2, (), rounds=5) for views, units in ((16, 8), (4, 32), (1, 128))),
        *(Case("tanh-cnn", views, units) for views, units in ((16, 16), (4, 64), (1, 256))),
        Case("vit-s-16", 1, 8, plain_layouts=("contiguous",), plain_cuts=(1, 2, 4), peer_cuts=(2, 4, 8)),
        probe(peers=PEERS, rounds=9),
        *(_timm(name) for name in TIMM if _has_timm()),
    ]


def _has_timm() -> bool:
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):  # its torchvision may be one for another build of torch
        return False
    return True


def _timm(name: str) -> Case:
    small = TIMM[name] < 200
    return Case(name, 1, 32 if small else 8, 1, (), plain_cuts=(8, 32) if small else (2, 8), sample=8)


def probe(*, peers: tuple[str, ...], rounds: int) -> Case:
    """Full batch; here plain training is the two matrix products alone."""
    return Case(
        *("linear-probe", 1, 50_000),
        peers=peers,
        rounds=rounds,
        plain_layouts=("contiguous",),
        plain_cuts=(256, 1024, 4096),
        peer_cuts=(64, 256, 1024),
        sample=8192,
        repeats=5,
    )


def _without(case: Case, mode: str) -> str:
    """Why this mode is not even tried, or nothing."""
    if mode == "ghost" and case.views > 1:
        return "it has the norm of each image's gradient only, not of the mean over the views of a unit"
    if mode == "vmap" and case.network == "linear-probe":
        return "a pass takes more than a minute"
    return ""


def _trial(case: Case, mode: str) -> dict[str, Any]:
    """What to try in search of the fastest layout and cut; plain training also takes all images at once.

    Peers stay contiguous: on channels_last Opacus' hooks give wrong gradients and ExpandedWeights fails.
    """
    layouts, cuts, repeats = ("contiguous",), set(case.peer_cuts), 1
    if mode == "plain":
        layouts, repeats = case.plain_layouts, case.repeats
        cuts = {min(cut, case.images) for cut in (*case.plain_cuts, case.images)}
    candidates = [(layout, cut) for layout in layouts for cut in sorted(cuts)]
    return {"candidates": candidates, "sample": case.sample, "repeats": repeats}


class Worker:
    """The parent's end of an `engine_worker`; leaving the `with` block ends it."""

    def __init__(self, case: Case, mode: str, **more: Any) -> None:
        spec = {"network": case.network, "views": case.views, "units": case.units, "threads": case.threads}
        quiet = {"OMP_NUM_THREADS": str(case.threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine_worker", json.dumps({**spec, "mode": mode, **more})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **quiet},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"skip": "the process ended (out of memory?)"}

    def go(self) -> dict[str, Any]:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        return self.answer()


class Comparison:
    """All rows by case and mode, and why others are missing."""

    def __init__(self, busy: list[Case] | None = None) -> None:
        """Compare by processor time on the cases `busy`, or by wall time on all."""
        self._busy = busy
        self.rows: dict[Case, dict[str, Row]] = {}
        self.skipped: dict[tuple[str, str], str] = {}  # by network and mode
        self._cuts: dict[tuple[str, int, str], dict[str, Any]] = {}

    def measure(self, quick: bool) -> list[Figure]:
        start = time.monotonic()
        for case in self._busy or cases(quick):
            self.rows[case] = self._run(case, self._choose(case))
            _say(f"{time.monotonic() - start:5.0f} s  {case.title}: {_line(self.rows[case])}")
        for (network, mode), reason in self.skipped.items():
            _say(f"skipped: {NAMES[mode]} on {network}: {reason}")
        return figures(self.rows)

    def _choose(self, case: Case) -> dict[str, dict[str, Any]]:
        """Layout and cut of each mode that can do the case, by trial where this network was not seen before."""
        self.skipped |= {(case.title, m): _without(case, m) for m in case.peers if _without(case, m)}
        possible = [m for m in case.modes if m != "ours" and not _without(case, m)]
        with ExitStack() as stack:
            new = [m for m in possible if (case.network, case.threads, m) not in self._cuts]
            workers = {m: stack.enter_context(Worker(case, m, **_trial(case, m))) for m in new}
            started = {m: worker.answer() for m, worker in workers.items()}
            for mode, worker in workers.items():
                skip = "skip" in started[mode]
                self._cuts[case.network, case.threads, mode] = started[mode] if skip else worker.go()
        chosen = {m: self._cuts[case.network, case.threads, m] for m in possible}
        self.skipped |= {(case.network, m): cut["skip"] for m, cut in chosen.items() if "skip" in cut}
        chosen["ours"] = {"layout": "contiguous", "cut": case.images}
        return {m: chosen[m] for m in case.modes if m in chosen and "skip" not in chosen[m]}

    def _run(self, case: Case, chosen: dict[str, dict[str, Any]]) -> dict[str, Row]:
        """Start one process for each mode, let them take turns, and keep what they say."""
        rows = {mode: Row(**cut, busy=self._busy is not None) for mode, cut in chosen.items()}
        with ExitStack() as stack:
            workers = {mode: stack.enter_context(Worker(case, mode, **cut)) for mode, cut in chosen.items()}
            for mode, worker in workers.items():
                self._keep(case, mode, rows, worker.answer())
            for turn in range(1 + max(case.rounds, case.peer_rounds)):
                for mode, worker in workers.items():
                    rounds = case.peer_rounds if mode in PEERS else case.rounds
                    if mode in rows and turn <= rounds:
                        self._keep(case, mode, rows, worker.go(), warm=turn > 0)
        return rows

    def _keep(self, case: Case, mode: str, rows: dict[str, Row], answer: dict[str, Any], *, warm: bool = False) -> None:
        if "skip" in answer:
            if mode not in PEERS:
                raise RuntimeError(f"{NAMES[mode]} on {case.title}: {answer['skip']}")
            self.skipped[case.network, mode] = answer["skip"]
            del rows[mode]
            return
        row = rows[mode]
        row.resident = answer.get("resident", row.resident)
        row.peak = answer.get("peak", row.peak)
        row.shown = answer.get("shown", row.shown)
        if warm:
            row.walls.append(answer["wall"])
            row.cpus.append(answer["cpu"])

    def markdown(self) -> str:
        """All modes in one table and one picture."""
        from benchmarks.engine_plot import draw

        draw(self.rows, NAMES, Path(__file__).with_suffix(".png"))
        lines = ["![throughput relative to plain training](engine.png)", "", *as_table(self.rows), ""]
        lines += [f"- Left out: {NAMES[m]} on {network}: {reason}" for (network, m), reason in self.skipped.items()]
        return "\n".join(lines).strip()


def speed(rows: dict[str, Row], mode: str = "ours") -> float:
    """Throughput relative to plain training: 1 is the same."""
    return rows["plain"].wall / rows[mode].wall


def lead(rows: dict[str, Row]) -> float:
    """Throughput of ours relative to that of the fastest peer."""
    return min(rows[m].wall for m in PEERS if m in rows) / rows["ours"].wall


def distance(rows: dict[str, Row]) -> float:
    """How far the peers' clipped sums are from ours, relative to its norm.

    A ReLU near zero may round to either side: plain float32 training in two layouts already differs by 0.003 on MAIN.
    """
    ours = rows["ours"].shown
    return max((math.dist(ours, rows[m].shown) / math.hypot(*ours) for m in PEERS if m in rows), default=0.0)


def figures(table: dict[Case, dict[str, Row]]) -> list[Figure]:
    measured: list[Figure] = []
    plain_convs = {(c.views, c.threads): speed(rows) for c, rows in table.items() if c.network == MAIN}
    for case, rows in table.items():
        if case.network == "linear-probe":
            ratio = min(rows["ours"].times) / min(rows["plain"].times)  # the least times of a few vary least
            measured.append(Figure("linear probe, time / plain matrix products", ratio, high=1.3))
            continue
        least = SPEED[case.views] if case.network == MAIN else None
        least = 1 / 1.3 if case.network in TIMM else 0.85 if case.network == "vit-s-16" else least
        measured.append(Figure(f"{case.title}: speed / plain training", speed(rows), low=least))
        if case.network == "wrn-16-4-ws":
            quotient = speed(rows) / plain_convs[case.views, case.threads]
            measured.append(Figure(f"{case.title}: that / the same with plain convolutions", quotient, low=0.95))
        if any(m in rows for m in PEERS):
            least = 1.8 if case.network == MAIN else None
            measured.append(Figure(f"{case.title}: speed / fastest peer", lead(rows), low=least))
        if case.network == MAIN and case.views == 16:
            memory = rows["ours"].growth / rows["plain"].growth
            measured.append(Figure(f"{case.title}: peak memory growth / plain training", memory, high=1.5))
    if not any(m in rows for rows in table.values() for m in PEERS):
        return measured
    worst = max(distance(rows) for rows in table.values())
    return [*measured, Figure("largest distance of a peer's clipped sum from ours", worst, high=0.01)]


def as_table(table: dict[Case, dict[str, Row]]) -> list[str]:
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for case, rows in table.items():
        for mode, row in rows.items():
            cut = "its own" if mode == "ours" else f"{row.layout}, {row.cut}"
            cells = [
                *(case.network, case.views, case.units, case.threads, NAMES[mode], cut),
                f"{case.images / row.wall:.4g}",
                f"{row.cpu / case.images * 1e3:.4g}",
                f"{speed(rows, mode):.3f}",
                f"{row.growth / 1e6:.0f}",
                f"{row.peak / 1e6:.0f}",
            ]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _line(rows: dict[str, Row]) -> str:
    return ", ".join(f"{mode} {row.wall:.2f} s ({row.growth / 1e6:.0f} MB)" for mode, row in rows.items())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    more = engine_device.options()
    if more.parse_known_args()[0].device != "cpu":
        engine_device.run(more)
    comparison = Comparison()
    main(
        "engine",
        comparison.measure,
        about="One clipped sum by our engine and by its peers, compared with plain training on the same images. The K "
        "views of a unit are averaged before clipping. Medians of wall time; every mode in its own process, in turn.",
        below=comparison.markdown,
        more=more,
    )
