"""Measures the magnitudes of gradients before clipping, for each weight. Private, without noise, not for release.

Appendix B.5 of DP-Mix studies mean_i |g_ij| for each weight j: consistent views make these magnitudes more alike. All
results go to the run's operator folder and steer nothing, and no random number of the training run is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import ClippedSum
from dpvision.private.training.private_sum import Fetch
from dpvision.storage import run_folder

UNITS, AT_A_TIME = 64, 8
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the steps, after which gradients are measured
EDGES = np.linspace(-9, 1, 81)  # edges of the histogram, as powers of ten


def file(run: run_folder.Run) -> Path:
    """Return the file of a run's gradient study."""
    return run.operator / "gradients.jsonl"


def studied_steps(steps: int) -> dict[int, float]:
    """Return the steps after which gradients are measured, each with its share of all steps."""
    return {max(1, round(share * steps)): share for share in SHARES}


@torch.no_grad()
def measure(clipped_sum: ClippedSum, fetch: Fetch, units: int) -> dict[str, Any]:
    """Compute mean_i |g_ij| over the first units; return its histogram, mean and deviation over the weights."""
    chosen = np.arange(min(UNITS, units))
    total = torch.zeros(clipped_sum.size, dtype=torch.float64)
    for start in range(0, len(chosen), AT_A_TIME):
        rows = clipped_sum.gradients(*fetch(chosen[start : start + AT_A_TIME], 0))
        total += rows.double().abs().sum(0).cpu()
    mean = (total / max(1, len(chosen))).numpy()
    logarithms = np.log10(np.maximum(mean, 10.0 ** EDGES[0]))
    counts, _ = np.histogram(np.clip(logarithms, EDGES[0], EDGES[-1]), EDGES)
    return {"mean": float(mean.mean()), "deviation": float(mean.std()), "counts": counts.tolist()}


def plot(folders: list[run_folder.Run], out: Any) -> dict[str, float]:
    """Plot the histogram of each run, for all steps and for each measured step; return the deviations."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(folders), 3.4), layout="constrained")
    figure.suptitle("NOT FOR RELEASE: computed from private data, without noise", color="#b00020", fontsize=9)
    deviations = {}
    for axes, run in zip(np.atleast_1d(figure.subplots(1, len(folders), sharey=True)), folders, strict=True):
        lines = run_folder.read_lines(file(run))
        if not lines:
            raise ConfigError(f"{run.folder}: has no gradient study. Fix: train with --study.")
        if not all(map(_is_valid, lines)):
            raise DataError(f"{file(run)}: is not a valid gradient study. Fix: train again with --study.")
        name = f"{run.config().recipe} ({run.folder.name})"
        centres = (EDGES[:-1] + EDGES[1:]) / 2
        counts = np.array([line["counts"] for line in lines], dtype=float)
        shares = counts / counts.sum(1, keepdims=True)
        axes.bar(centres, shares.mean(0), width=EDGES[1] - EDGES[0], color="#9ecae1", label="whole training")
        for line, share in zip(lines, shares, strict=True):
            axes.plot(centres, share, linewidth=1, label=f"{line['share']:.0%}")
        deviations[name] = float(np.mean([line["deviation"] for line in lines]))
        axes.set_title(f"{name}\ndeviation {deviations[name]:.3g}", fontsize=9)
        axes.set_xlabel("log10 of mean |gradient| of a weight, before clipping")
        axes.legend(fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    files.write(out, buffer.getvalue())
    return deviations


def _is_valid(line: dict[str, Any]) -> bool:
    """Return whether a line is a valid result of `measure`, with its share of the steps."""
    counts, share, deviation = (line.get(name) for name in ("counts", "share", "deviation"))
    if not isinstance(counts, list) or len(counts) != len(EDGES) - 1 or not any(counts):
        return False
    histogram = all(type(n) is int and 0 <= n < 1 << 53 for n in counts)
    return histogram and share in SHARES and type(deviation) is float and 0 <= deviation < np.inf
