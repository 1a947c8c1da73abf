"""The real data sets of the shared folder, unpacked outside of the project."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def at_hand() -> bool:
    return (SHARED / "unpack.py").exists()


def unpacked(name: str, folder: Path) -> str:
    """A data set as .npz in `folder`."""
    path = folder / f"{name}.npz"
    if not path.exists():
        np.savez(path, **_load(name))
    return str(path)


def unpacked_in_two(name: str, folder: Path, *, public: int) -> tuple[str, str]:
    """The data set without its first `public` training images, and these as a public data set of its own."""
    rest, part = folder / f"{name}-without-{public}.npz", folder / f"{name}-first-{public}.npz"
    if not part.exists():
        arrays = _load(name)
        cut = {k: v for k, v in arrays.items() if k.startswith("train_")}
        np.savez(rest, **{**arrays, **{k: v[public:] for k, v in cut.items()}})
        np.savez(part, **{k: v[:public] for k, v in cut.items()})
    return str(rest), str(part)


def _load(name: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("unpack", SHARED / "unpack.py")
    assert spec and spec.loader
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)
    return dict(unpack.load(name))
