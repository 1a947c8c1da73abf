"""One way to run a benchmark and to keep its result: figures with their limits, date, machine and command."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


@dataclass(frozen=True)
class Figure:
    """A measured value and what it must reach: at least `low`, at most `high`."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    unit: str = ""

    @property
    def good(self) -> bool:
        return (self.low is None or self.value >= self.low) and (self.high is None or self.value <= self.high)

    @property
    def limit(self) -> str:
        parts = [
            f"at least {self.low:g}" if self.low is not None else "",
            f"at most {self.high:g}" if self.high else "",
        ]
        return " and ".join(p for p in parts if p) or "reported"


def main(
    name: str,
    measure: Callable[[bool], list[Figure]],
    *,
    about: str,
    below: Callable[[], str] = lambda: "",
    more: argparse.ArgumentParser | None = None,
) -> None:
    """`python -m benchmarks.NAME [--quick] [--json]`; the full form also writes RESULTS.md, `below()` at the end.

    `more` has options of this benchmark, which it reads itself.
    """
    parents = [] if more is None else [more]
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about, parents=parents)
    parser.add_argument("--quick", action="store_true", help="at most 5 minutes; writes nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure(options.quick)
    good = all(f.good for f in figures)
    if options.json:
        print(
            json.dumps({"benchmark": name, "good": good, "figures": [{**asdict(f), "good": f.good} for f in figures]})
        )
    else:
        for f in figures:
            print(f"{'ok  ' if f.good else 'FAIL'} {f.name}: {f.value:.5g} {f.unit} ({f.limit})")
    if not options.quick:
        keep(name, figures, about=about, below=below())
    sys.exit(0 if good else 1)


def device_options() -> argparse.ArgumentParser:
    """The option --device, for `more`; without it a benchmark computes on the CPU, as all figures do that are kept."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device", default="cpu", help="where to compute, by name")
    return parser


def chosen_device() -> str:
    """Return the device that the command line names."""
    return str(device_options().parse_known_args()[0].device)


def keep(name: str, figures: list[Figure], *, about: str, below: str = "") -> None:
    """Replace this benchmark's section of RESULTS.md, leaving the others."""
    rows = [f"| {f.name} | {f.value:.5g} {f.unit} | {f.limit} | {'yes' if f.good else '**no**'} |" for f in figures]
    section = [
        f"## {name}",
        "",
        about,
        "",
        f"{date.today()}, {machine()}, `{' '.join([f'python -m benchmarks.{name}', *sys.argv[1:]])}`",
        "",
        "| figure | measured | limit | reached |",
        "|---|---|---|---|",
        *rows,
        "",
        below,
    ]
    parts = RESULTS.read_text().split("\n## ") if RESULTS.exists() else ["# Results\n\nMeasured, not promised.\n"]
    kept = [p for p in parts[1:] if not p.startswith(f"{name}\n")]
    sections = sorted([*(f"## {p.strip()}\n" for p in kept), "\n".join(section).strip() + "\n"])
    RESULTS.write_text("\n".join([parts[0].strip() + "\n", *sections]))


def machine() -> str:
    import numpy
    import torch

    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), ""
    )
    return f"{os.cpu_count()} cores {cpu or platform.processor()}, torch {torch.__version__}, numpy {numpy.__version__}"
