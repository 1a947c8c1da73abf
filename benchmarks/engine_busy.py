"""Our clipping engine compared with plain training by processor time, for a machine that does other work as well."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.engine import MAIN, Case, Comparison, as_table, probe
from benchmarks.results import main


def cases() -> list[Case]:
    """Return cases with one thread and no peers, of few units, so that modes take turns often."""
    networks = [
        Case(name, views, 32 // views, 1, (), rounds=5, plain_layouts=("channels_last",), plain_cuts=(16, 32))
        for name in (MAIN, f"{MAIN}-ws")
        for views in (4, 1)
    ]
    return [*networks, replace(probe(peers=(), rounds=5), threads=1)]


if __name__ == "__main__":
    comparison = Comparison(cases())
    main(
        "engine_busy",
        comparison.measure,
        about="One clipped sum by our engine, compared with plain training on the same images, on a busy machine: "
        "medians of processor time of one thread; every mode in its own process, in turn. Of the linear probe, the "
        "least times.",
        below=lambda: "\n".join(as_table(comparison.rows)),
    )
