"""Every test gets its own ledger home, so that none can touch the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("DPVISION_HOME", str(home))
    monkeypatch.delenv("DPVISION_TEST_KEY", raising=False)
    return home
