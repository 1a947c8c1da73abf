"""Real data sets, if they are next to the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dpvision.data import check, fingerprint, load, pack

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def unpack() -> ModuleType:
    place = FOLDER / "unpack.py"
    if not place.exists():
        pytest.skip(f"the real data sets are not at {FOLDER}")
    spec = importlib.util.spec_from_file_location("unpack", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("compressed", [False, True])
def test_dermamnist_loads_and_packs(unpack: ModuleType, tmp_path: Path, compressed: bool) -> None:
    arrays = unpack.load("dermamnist")
    (np.savez_compressed if compressed else np.savez)(tmp_path / "derma.npz", **arrays)
    data = load(tmp_path / "derma.npz", classes=7, size=28, channels=3)
    assert data.inferred == () and data.val is not None and data.test is not None
    assert [len(part) for part in (data.train, data.val, data.test)] == [7007, 1003, 2005]
    assert np.array_equal(data.train.images, arrays["train_images"])
    store = pack(tmp_path / "derma.npz", tmp_path / "store", classes=7, size=28)
    assert fingerprint(load(store).train) == fingerprint(data.train)
    assert check(store).counts["test"]["5"] == int((arrays["test_labels"] == 5).sum())
