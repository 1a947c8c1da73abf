"""Every test gets its own ledger home, so that none can touch the user's; and devices to compute on, by name."""

from __future__ import annotations

import importlib
import os

# Before torch is imported. Two workers with two threads each on two cores take twice the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
# Devices of the fixture `device`: where it is, and the options that are switched on (tests/standin/options.py).
DEVICES: dict[str, tuple[str, dict[str, float]]] = {
    "cpu": ("cpu", {}),
    "standin": ("standin:0", {}),
    "standin:1": ("standin:1", {}),
    "standin-tf32": ("standin:0", {"bits": 10}),
    "standin-bf16": ("standin:0", {"bits": 7}),
    "standin-late": ("standin:0", {"late": 1}),
}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("DPVISION_HOME", str(home))
    monkeypatch.delenv("DPVISION_TEST_KEY", raising=False)
    return home


@pytest.fixture(autouse=True)
def arithmetic() -> Iterator[None]:
    """Reset what a verb on a device sets for the whole process (dpvision/models/device.py), a module's fixtures included.

    And the number of threads, which a resumed run takes from its folder.
    """
    yield
    torch.set_num_threads(1)
    if torch.are_deterministic_algorithms_enabled():  # the call imports torch's compiler, for seconds
        torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = "tf32", "tf32"
    torch.backends.cuda.matmul.fp32_precision = "none"
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.fixture
def standin() -> ModuleType:
    """The stand-in accelerator (tests/standin), without which the test is skipped."""
    module: ModuleType = pytest.importorskip("tests.standin")
    module.reset()
    return module


@pytest.fixture(params=["cpu", "standin"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device to compute on: the CPU, and the stand-in accelerator, without which the test is skipped.

    `@pytest.mark.parametrize("device", ["cpu", "standin-tf32"], indirect=True)` chooses others from DEVICES.
    """
    place, options = DEVICES[request.param]
    if place == "cpu":
        yield torch.device("cpu")
        return
    standin = pytest.importorskip("tests.standin")
    standin.reset()
    with standin.asked(**options):
        yield torch.device(place)
        standin.settle()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import the stand-in before the first test, and thus the first backward pass, if one will ask for it."""
    if any(_needs_standin(item) for item in session.items):
        with suppress(ModuleNotFoundError):  # the fixture skips, with the reason
            importlib.import_module("tests.standin")


def _needs_standin(item: pytest.Item) -> bool:
    spec = getattr(item, "callspec", None)
    chosen = "cpu" if spec is None else str(spec.params.get("device", "cpu"))
    return chosen.startswith("standin") or "standin" in getattr(item, "fixturenames", ())
