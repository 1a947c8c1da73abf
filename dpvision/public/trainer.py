"""Training on public data that can be stopped or killed between any two steps and resumed with the same result.

During a run, its folder holds state.safetensors: all tensors that the next step needs, the position, the devices used
so far, and the inputs of the run, so that no other run can resume from it. At the end, weights.safetensors and
card.json are written. A run may be resumed on another device; the last bits of its result may then differ, which is
reported.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import Tensor

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.device import fix_arithmetic, keep_freed_memory, name_computation
from dpvision.storage import safetensors

STATE = "state.safetensors"
MAX_STEPS = 1 << 53
READABLE = 0o755  # mode of folders with public results; only the owner can read the state in them


class Task(ABC):
    """A training run: a sequence of steps, each a function of the run's inputs, tensors and position."""

    name: ClassVar[str]  # follows "a" in messages
    extendable: ClassVar[bool] = False  # whether the state is kept at the end, so that a later call can add steps
    device = torch.device("cpu")
    devices: tuple[str, ...] = ()  # used so far, in order
    step, seconds = 0, 0.0  # completed so far

    @abstractmethod
    def started_with(self) -> dict[str, dict[str, str]]:
        """Return the header entries that must not change, keyed by the words for a mismatch in an error message."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that the next step needs. They are saved, and a saved state is copied into them."""

    @abstractmethod
    def train_step(self) -> float:
        """Take one step and count it; return the loss before the step."""

    @abstractmethod
    def publish(self, folder: Path) -> None:
        """Write the results of the current step to the folder."""

    def position(self) -> dict[str, str]:
        """Return the position as entries of the state's header."""
        return {"step": str(self.step), "seconds": repr(self.seconds)}

    def restore_position(self, header: Mapping[str, str]) -> None:
        """Restore the position from a header; an invalid one raises one of safetensors.UNSOUND."""
        self.step, self.seconds = int(header["step"]), float(header["seconds"])

    def effort(self) -> dict[str, Any]:
        """Return the time and devices used so far, for the card."""
        return {"seconds": round(self.seconds, 1), "devices": list(self.devices)}


@dataclass(frozen=True)
class Progress:
    """The progress of a run after one step."""

    step: int
    steps: int
    loss: float
    done: float  # fraction of the nearest limit, from 0 to 1


class Control(TypedDict, total=False):
    """Options for monitoring and stopping a run."""

    progress: Callable[[Progress], None]
    stop: Callable[[], bool]  # called before each step
    report: Callable[[str], None]  # called with a message if an earlier part ran on another device
    save_every: float  # seconds between saved states, 60 by default; does not affect the result


def train(task: Task, folder: Path, *, steps: int, seconds: float = math.inf, **control: Unpack[Control]) -> bool:
    """Train until `steps` steps or `seconds` are reached in total, then publish; return False if stopped earlier.

    Training resumes from the folder's state, if there is one.
    """
    keep_freed_memory()
    fix_arithmetic(task.device)
    resume(task, folder, steps=steps)

    def done() -> float:
        return max(task.step / steps, task.seconds / seconds)

    if done() < 1:
        note_device(task, folder, control.get("report", lambda _: None))
    save(task, folder)  # fails early if the state cannot be saved, and claims the folder
    saved = time.monotonic()
    began = saved - task.seconds
    while done() < 1:
        if control.get("stop", lambda: False)():
            save(task, folder)
            return False
        step, loss = task.step, task.train_step()
        if not math.isfinite(loss):
            raise ConfigError(f"step {step}: the loss is {loss}. Fix: use a smaller --lr, and another --out.")
        now = time.monotonic()
        task.seconds = now - began
        if now - saved >= control.get("save_every", 60.0):
            save(task, folder)
            saved = now
        control.get("progress", lambda _: None)(Progress(task.step, steps, loss, min(done(), 1.0)))
    if task.extendable:
        save(task, folder)
    task.publish(folder)
    if not task.extendable:
        (folder / STATE).unlink(missing_ok=True)
    return True


def require_free(folder: Path, kind: type[Task]) -> None:
    """Require a new or empty folder, or that of a stopped run, so that nothing is overwritten."""
    if not kind.extendable and (folder / "card.json").exists():
        raise ConfigError(f"{folder}: this {kind.name} is finished. Fix: use another --out.")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder. Fix: use another --out.")
    if not folder.exists() or (folder / STATE).exists():
        return
    if not all(map(files.is_unfinished, folder.iterdir())):
        raise ConfigError(f"{folder}: has other files in it. Fix: use a new folder for --out.")


def save(task: Task, folder: Path) -> None:
    """Write the state atomically."""
    files.make_folder(folder, mode=READABLE)
    header = _fixed_entries(task) | task.position() | {"devices": json.dumps(task.devices)}
    files.write(folder / STATE, safetensors.dump(task.tensors(), header))


def resume(task: Task, folder: Path, *, steps: int) -> None:
    """Load the folder's state, if there is one. Its run must have been started with the same settings and data."""
    path = folder / STATE
    if not path.exists():
        return
    header = safetensors.read(path).header
    bad_header = f"{path}: its header is not that of a {task.name}"
    if not _fixed_entries(task).keys() <= header.keys():
        raise DataError(f"{bad_header}. Fix: use another --out.")
    for difference, entries in task.started_with().items():
        if any(header[key] != value for key, value in entries.items()):
            raise ConfigError(f"{folder}: was started with {difference}. Fix: use the same, or another --out.")
    tensors, _ = safetensors.load(path, task.tensors())
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise DataError(f"{path}: has weights that are not finite. Fix: use another --out.")
    try:
        task.restore_position(header)
        task.devices = tuple(str(name) for name in json.loads(header.get("devices", "[]")))
    except safetensors.UNSOUND as exc:
        raise DataError(f"{bad_header} ({exc}). Fix: use another --out.") from exc
    if not 0 <= task.step <= (MAX_STEPS if task.extendable else steps) or not 0 <= task.seconds < math.inf:
        raise DataError(f"{bad_header}: step {task.step} after {task.seconds} s is impossible. Fix: use another --out.")
    with torch.no_grad():
        for name, tensor in task.tensors().items():
            tensor.copy_(tensors[name])


def note_device(task: Task, folder: Path, report: Callable[[str], None]) -> None:
    """Record the task's device, and report it if the run last used another one."""
    name = name_computation(task.device) or "cpu"
    if name in task.devices[-1:]:
        return
    if task.devices:
        report(
            f"{folder}: ran on {task.devices[-1]} so far and continues on {name}, so the last bits of its result may "
            "differ from those of a run on one device."
        )
    task.devices = (*task.devices, name)


def write_weights(
    folder: Path, weights: Mapping[str, Tensor], header: Mapping[str, str], card: Mapping[str, Any]
) -> None:
    """Write weights.safetensors, and card.json with their origin and digest."""
    data = safetensors.dump(weights, header)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()  # as on the card of `train --pretrained`
    entries = {"format": header["format"], "dpvision": __version__, **card, "digest": digest}
    text = json.dumps(entries, indent=1, allow_nan=False) + "\n"
    files.make_folder(folder, mode=READABLE)
    files.write(folder / "weights.safetensors", data, mode=0o644)
    files.write(folder / "card.json", text, mode=0o644)


def parse_curve(text: str) -> list[tuple[int, float]]:
    """Parse the steps and losses in a header; raise ValueError if a loss is not finite."""
    curve = [(int(step), float(loss)) for step, loss in json.loads(text)]
    if not all(math.isfinite(loss) for _, loss in curve):
        raise ValueError("its curve has losses that are not finite")
    return curve


def mix_seed(*numbers: int | str) -> int:
    """Return a seed that is a hash of these values."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=7).digest(), "big")


def _fixed_entries(task: Task) -> dict[str, str]:
    return {key: value for entries in task.started_with().values() for key, value in entries.items()}
