"""How large gradients are before clipping, weight by weight: for the operator's eyes only: nothing is noised.

DP-Mix's appendix B.5 looks at mean_i |g_ij| for each weight j: views that agree make these magnitudes more alike.
Everything goes to the run's operator folder, steers nothing, and uses no coin of the training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.private.engine import ClippedSum
from dpvision.private.training.private_sum import Fetch
from dpvision.storage import run_folder

UNITS, AT_A_TIME = 64, 8
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the training, at which it is looked at
EDGES = np.linspace(-9, 1, 81)  # of the histogram, as powers of ten


def file(run: run_folder.Run) -> Any:
    return run.operator / "gradients.jsonl"


def marks(steps: int) -> dict[int, float]:
    """Step -> share of the training."""
    return {max(1, round(share * steps)): share for share in SHARES}


@torch.no_grad()
def look(clipped_sum: ClippedSum, fetch: Fetch, units: int) -> dict[str, Any]:
    """Histogram, mean and deviation over the weights of mean_i |g_ij| over some units."""
    chosen = np.arange(min(UNITS, units))
    total = torch.zeros(clipped_sum.size, dtype=torch.float64)
    for start in range(0, len(chosen), AT_A_TIME):
        rows = clipped_sum.gradients(*fetch(chosen[start : start + AT_A_TIME], 0))
        total += rows.double().abs().sum(0).cpu()
    mean = (total / max(1, len(chosen))).numpy()
    seen = np.log10(np.maximum(mean, 10.0 ** EDGES[0]))
    counts, _ = np.histogram(np.clip(seen, EDGES[0], EDGES[-1]), EDGES)
    return {"mean": float(mean.mean()), "deviation": float(mean.std()), "counts": counts.tolist()}


def plot(folders: list[run_folder.Run], out: Any) -> dict[str, float]:
    """One panel for each run: the histogram over the whole training and lines for its parts. Returns the deviations."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(folders), 3.4), layout="constrained")
    figure.suptitle(
        "FOR THE OPERATOR'S EYES ONLY: computed from private data, without noise", color="#b00020", fontsize=9
    )
    found = {}
    for axes, run in zip(np.atleast_1d(figure.subplots(1, len(folders), sharey=True)), folders, strict=True):
        lines = run_folder.read_lines(file(run))
        if not lines:
            raise ConfigError(f"{run.folder}: its gradients were not looked at. Fix: train with --study.")
        if not all(map(_sound, lines)):
            raise DataError(f"{file(run)}: is not what a study writes. Fix: train again with --study.")
        name = f"{run.config().recipe} ({run.folder.name})"
        centres = (EDGES[:-1] + EDGES[1:]) / 2
        counts = np.array([line["counts"] for line in lines], dtype=float)
        shares = counts / counts.sum(1, keepdims=True)
        axes.bar(centres, shares.mean(0), width=EDGES[1] - EDGES[0], color="#9ecae1", label="whole training")
        for line, share in zip(lines, shares, strict=True):
            axes.plot(centres, share, linewidth=1, label=f"{line['share']:.0%}")
        found[name] = float(np.mean([line["deviation"] for line in lines]))
        axes.set_title(f"{name}\ndeviation {found[name]:.3g}", fontsize=9)
        axes.set_xlabel("log10 of mean |gradient| of a weight, before clipping")
        axes.legend(fontsize=7)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    files.write(out, buffer.getvalue())
    return found


def _sound(line: dict[str, Any]) -> bool:
    """Whether it is what `look` found, with the share of the training at which it looked."""
    counts, share, deviation = (line.get(name) for name in ("counts", "share", "deviation"))
    if not isinstance(counts, list) or len(counts) != len(EDGES) - 1 or not any(counts):
        return False
    histogram = all(type(n) is int and 0 <= n < 1 << 53 for n in counts)
    return histogram and share in SHARES and type(deviation) is float and 0 <= deviation < np.inf
