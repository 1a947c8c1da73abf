"""Contact sheets of small images as PNG files: a grid, or labelled rows."""

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


def tile(images: Bytes, *, columns: int, gap: int) -> Bytes:
    """Arrange images (N, H, W, C) in a grid, each with a white gap to its right and below; unused cells are white."""
    count, height, width, channels = images.shape
    rows = -(-count // columns)
    grid = np.full((rows * columns, height + gap, width + gap, channels), 255, np.uint8)
    grid[:count, :height, :width] = images
    grid = grid.reshape(rows, columns, height + gap, width + gap, channels)
    return grid.transpose(0, 2, 1, 3, 4).reshape(rows * (height + gap), columns * (width + gap), channels)


def encode_png(image: Bytes) -> bytes:
    """Encode an image (H, W, 1 or 3) as PNG."""
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, format="PNG")
    return file.getvalue()


def write_labelled_rows(path: str | Path | IO[bytes], rows: Mapping[str, Any]) -> None:
    """Write a PNG with one labelled row per entry, of (count, H, W) or (count, H, W, 3) images in [0, 1]."""
    images = {label: np.clip(np.asarray(row, dtype=np.float64), 0, 1) for label, row in rows.items()}
    counts = {len(row) for row in images.values()}
    if len(counts) != 1 or 0 in counts:
        raise ConfigError(
            f"all rows of a sheet must have the same number of images, at least 1: they have {sorted(counts)}."
        )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = counts.pop()
    figure = Figure(figsize=(2.6 + 0.8 * count, 0.85 * len(images)))
    FigureCanvasAgg(figure)
    left = 2.6 / (2.6 + 0.8 * count)
    for number, (label, row) in enumerate(images.items()):
        bottom = 1 - (number + 1) / len(images)
        figure.text(left - 0.01, bottom + 0.5 / len(images), label, ha="right", va="center", fontsize=9)
        for column, image in enumerate(row):
            width = (1 - left) / count
            axes = figure.add_axes((left + column * width, bottom, 0.95 * width, 0.95 / len(images)))
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})
