"""Sheets of small pictures as PNG files: side by side, or a named line for each kind."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dpvision.errors import ConfigError

Bytes = NDArray[np.uint8]


def tiled(images: Bytes, *, columns: int, gap: int) -> Bytes:
    """(N, H, W, C) side by side, row after row, each with a white gap to its right and below; white after the last."""
    count, height, width, channels = images.shape
    rows = -(-count // columns)
    grid = np.full((rows * columns, height + gap, width + gap, channels), 255, np.uint8)
    grid[:count, :height, :width] = images
    grid = grid.reshape(rows, columns, height + gap, width + gap, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(rows * (height + gap), columns * (width + gap), channels)


def png(image: Bytes) -> bytes:
    """A PNG file of one picture (H, W, 1 or 3)."""
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, format="PNG")
    return file.getvalue()


def named_lines(path: str | Path | IO[bytes], lines: Mapping[str, Any]) -> None:
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
