"""A sheet of small pictures: a line for each kind, such as originals and what an attack found of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpvision.errors import ConfigError


def contact_sheet(path: str | Path | IO[bytes], lines: Mapping[str, Any]) -> None:
    """Name of a line -> its (count, H, W) or (count, H, W, 3) pictures in [0, 1], as many in each; written as PNG."""
    pictures = {name: np.clip(np.asarray(each, dtype=np.float64), 0, 1) for name, each in lines.items()}
    counts = {len(each) for each in pictures.values()}
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(f"the lines of a sheet must be as long, and not empty: they have {sorted(counts)} pictures.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = counts.pop()
    figure = Figure(figsize=(2.6 + 0.8 * count, 0.85 * len(pictures)))
    FigureCanvasAgg(figure)
    left = 2.6 / (2.6 + 0.8 * count)
    for number, (name, each) in enumerate(pictures.items()):
        bottom = 1 - (number + 1) / len(pictures)
        figure.text(left - 0.01, bottom + 0.5 / len(pictures), name, ha="right", va="center", fontsize=9)
        for column, picture in enumerate(each):
            width = (1 - left) / count
            axes = figure.add_axes((left + column * width, bottom, 0.95 * width, 0.95 / len(pictures)))
            axes.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})
