"""A sheet of samples: a row for each class, as one small PNG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from dpvision.core import files


def save_sheet(path: Path, images: np.ndarray, *, columns: int) -> None:
    """(rows * columns, H, W, C) uint8 pictures, row after row, each at least 28 pixels a side."""
    count, height, width, channels = images.shape
    rows = count // columns
    scale = -(-28 // min(height, width))
    grid = images[: rows * columns].reshape(rows, columns, height, width, channels)
    grid = np.pad(grid, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=255)
    sheet = grid.transpose(0, 2, 1, 3, 4).reshape(rows * (height + 1), columns * (width + 1), channels)
    sheet = sheet.repeat(scale, axis=0).repeat(scale, axis=1)
    file = io.BytesIO()
    Image.fromarray(sheet[:, :, 0] if channels == 1 else sheet).save(file, format="PNG")
    files.write(path, file.getvalue(), mode=0o644)
