"""Accuracy against epsilon on CIFAR-10: ours, each training a dot, with the published lines."""

from __future__ import annotations

import statistics
from pathlib import Path


def draw(ours: dict[float, list[float]], probed: dict[float, float], phases: dict[float, float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    for epsilon, each in ours.items():
        axis.plot([epsilon] * len(each), [100 * a for a in each], ".", color="#0b6e4f", alpha=0.4)
    means = {e: 100 * statistics.mean(each) for e, each in ours.items()}
    axis.plot(means.keys(), means.values(), "-o", color="#0b6e4f", label="patches, 2 CPU cores (ours)")
    for line, label, colour in (
        (probed, "private linear probing, 16 A100 hours (Tang et al.)", "#4f81bd"),
        (phases, "all phases of DP-RandP (Tang et al.)", "#a5a5a5"),
    ):
        axis.plot(line.keys(), [100 * a for a in line.values()], "--s", color=colour, label=label, markersize=4)
    axis.set_xscale("log")
    axis.set_xticks(list(ours), [f"{e:g}" for e in ours])
    axis.minorticks_off()
    axis.set_xlabel("epsilon, at delta 1e-5")
    axis.set_ylabel("CIFAR-10 test accuracy, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
