"""The real data sets of the shared folder, unpacked outside of the project."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def unpacked(name: str, folder: Path) -> str | None:
    """A data set as .npz in `folder`, or None where the shared folder is not at hand."""
    if not (SHARED / "unpack.py").exists():
        return None
    path = folder / f"{name}.npz"
    if not path.exists():
        spec = importlib.util.spec_from_file_location("unpack", SHARED / "unpack.py")
        assert spec and spec.loader
        unpack = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(unpack)
        np.savez(path, **unpack.load(name))
    return str(path)
