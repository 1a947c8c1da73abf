"""The engine benchmark as bars: throughput relative to plain training, by network, views and mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {
    "ours": "#0b6e4f",
    "hooks": "#1f4e79",
    "functorch": "#4f81bd",
    "ew": "#9dc3e6",
    "ghost": "#a5a5a5",
    "vmap": "#e08e45",
}


def draw(table: dict[Any, dict[str, Any]], names: dict[str, str], path: Path) -> None:
    """One panel for each number of threads; a group of bars for each network and K."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    threads = sorted({case.threads for case in table}, reverse=True)
    groups = {t: [case for case in table if case.threads == t] for t in threads}
    figure, axes = plt.subplots(
        len(threads), 1, figsize=(12, 3.4 * len(threads)), squeeze=False, constrained_layout=True
    )
    for axis, (t, cases) in zip(axes[:, 0], groups.items(), strict=True):
        for place, case in enumerate(cases):
            _bars(axis, place, table[case])
        axis.axhline(1, color="black", linewidth=1)
        axis.set_xticks(range(len(cases)), [f"{c.network}\nK={c.views}" for c in cases], fontsize=8)
        axis.set_ylabel("throughput / plain training")
        axis.set_title(f"{t} thread{'s' * (t > 1)}", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[mode]) for mode in COLOURS]
    figure.legend(handles, [names[mode] for mode in COLOURS], loc="outside upper center", ncols=6, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axis: Any, place: int, rows: dict[str, Any]) -> None:
    """Bars side by side around `place`, each with its value on top."""
    shown = [mode for mode in COLOURS if mode in rows]
    width = 0.85 / len(COLOURS)
    for number, mode in enumerate(shown):
        height = rows["plain"].wall / rows[mode].wall
        x = place + (number - (len(shown) - 1) / 2) * width
        axis.bar(x, height, width=0.92 * width, color=COLOURS[mode])
        axis.text(x, height + 0.01, f"{height:.2f}", ha="center", va="bottom", fontsize=6, rotation=90)
