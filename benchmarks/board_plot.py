"""Accuracy against epsilon, one panel for each data set: ours, each run a dot, next to what papers publish."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

from benchmarks.trainings import Case

TITLES = {"cifar10": "CIFAR-10", "dermamnist": "DermaMNIST", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
COLOURS = {False: "#0b6e4f", True: "#b5651d"}
Line = tuple[Case, bool, float | None, list[float]]  # case, whether it is a release, published accuracy, accuracies


def draw(lines: Iterable[Line], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = list(lines)
    names = list(dict.fromkeys(case.data for case, *_ in lines))
    figure, axes = plt.subplots(
        1, max(1, len(names)), figsize=(3.4 * max(1, len(names)), 3.6), constrained_layout=True, squeeze=False
    )
    for axis, name in zip(axes[0], names, strict=False):
        for released, title in ((False, "classifier"), (True, "release of features")):
            colour = COLOURS[released]
            here = [
                (case.epsilon, paper, each)
                for case, kind, paper, each in lines
                if (case.data, kind) == (name, released)
            ]
            if not here:
                continue
            for epsilon, _, each in here:
                axis.plot([epsilon] * len(each), [100 * a for a in each], ".", color=colour, alpha=0.4)
            means = [100 * statistics.mean(each) for *_, each in here]
            axis.plot([epsilon for epsilon, *_ in here], means, "-o", color=colour, label=f"{title} (ours)")
            published = [(epsilon, 100 * paper) for epsilon, paper, _ in here if paper is not None]
            if published:
                what = "release of images" if released else title
                axis.plot(*zip(*published, strict=True), "--s", color=colour, alpha=0.5, label=f"{what} (published)")
        axis.set_xscale("log")
        ticks = sorted({case.epsilon for case, *_ in lines if case.data == name})
        axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
        axis.minorticks_off()
        axis.set_title(TITLES[name])
        axis.set_xlabel("epsilon, at delta 1e-5")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=7)
    axes[0][0].set_ylabel("test accuracy, %")
    figure.savefig(path, dpi=110)
    plt.close(figure)
