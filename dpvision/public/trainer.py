"""Runs a public training that can be stopped, or killed, between any two steps and goes on as if it had not been.

While it lasts, its folder holds state.safetensors: every tensor that the next step needs, how far it is, and what it
was begun with, as nothing else may go on in that folder. At its end weights.safetensors and card.json are there.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.device import keep_freed_memory
from dpvision.storage import safetensors

STATE = "state.safetensors"
MOST_STEPS = 1 << 53
READABLE = 0o755  # folders of what is public; the state in them is for their owner alone


class Task(ABC):
    """A training as a sequence of steps, each a function of what it was begun with, its tensors and its position."""

    name: ClassVar[str]  # in messages, after "a"
    goes_on: ClassVar[bool] = False  # after its end too: the state stays, and a later call can ask for more steps
    step, seconds = 0, 0.0  # done so far

    @abstractmethod
    def begun_with(self) -> dict[str, dict[str, str]]:
        """Entries of the state's header that must stay the same, under what a message calls one that differs."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that the next step needs: what is saved, and what a saved state is copied into."""

    @abstractmethod
    def descend(self) -> float:
        """Do one step and count it; the loss before it."""

    @abstractmethod
    def publish(self, folder: Path) -> None:
        """Write what others use, as it is after this step."""

    def position(self) -> dict[str, str]:
        """How far it is, as entries of the state's header."""
        return {"step": str(self.step), "seconds": repr(self.seconds)}

    def go_to(self, header: Mapping[str, str]) -> None:
        """Take the position of a header; one that cannot be raises an error of safetensors.UNSOUND."""
        self.step, self.seconds = int(header["step"]), float(header["seconds"])


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float
    done: float  # of the limit that is nearest, from 0 to 1


def train(
    task: Task,
    folder: Path,
    *,
    steps: int,
    seconds: float = math.inf,
    save_every: float = 60.0,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train until `steps` steps or `seconds` are done in all, then publish; False if stopped before.

    It goes on from the folder's state, if there is one. The state is saved every so many seconds, which changes no bit
    of the result.
    """
    keep_freed_memory()
    resume(task, folder, steps=steps)
    save(task, folder)  # before an hour's work, to see that it can be; and the folder is known as one that was begun
    saved = time.monotonic()
    began = saved - task.seconds

    def done() -> float:
        return max(task.step / steps, task.seconds / seconds)

    while done() < 1:
        if stop():
            save(task, folder)
            return False
        at, loss = task.step, task.descend()
        if not math.isfinite(loss):
            raise ConfigError(f"step {at}: the loss is {loss}. Fix: a smaller --lr, and another --out.")
        now = time.monotonic()
        task.seconds = now - began
        if now - saved >= save_every:
            save(task, folder)
            saved = now
        watch(Progress(task.step, steps, loss, min(done(), 1.0)))
    if task.goes_on:
        save(task, folder)
    task.publish(folder)
    if not task.goes_on:
        (folder / STATE).unlink(missing_ok=True)
    return True


def require_free(folder: Path, kind: type[Task]) -> None:
    """A new folder, an empty one, or one of a training that was stopped: nothing is written over."""
    if not kind.goes_on and (folder / "card.json").exists():
        raise ConfigError(f"{folder}: this {kind.name} is finished. Fix: another --out.")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder. Fix: another --out.")
    if not folder.exists() or (folder / STATE).exists():
        return
    if not all(map(files.is_unfinished, folder.iterdir())):
        raise ConfigError(f"{folder}: has other files in it. Fix: a new folder for --out.")


def save(task: Task, folder: Path) -> None:
    """Write the state, whole or not at all."""
    files.make_folder(folder, mode=READABLE)
    files.write(folder / STATE, safetensors.dump(task.tensors(), _same(task) | task.position()))


def resume(task: Task, folder: Path, *, steps: int) -> None:
    """Go on from the folder's state, if there is one; it must have been begun with the same."""
    path = folder / STATE
    if not path.exists():
        return
    header = safetensors.read(path).header
    no_state = f"{path}: its header is not that of a {task.name}"
    if not _same(task).keys() <= header.keys():
        raise DataError(f"{no_state}. Fix: another --out.")
    for words, entries in task.begun_with().items():
        if any(header[key] != value for key, value in entries.items()):
            raise ConfigError(f"{folder}: was begun with {words}. Fix: the same, or another --out.")
    tensors, _ = safetensors.load(path, task.tensors())
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise DataError(f"{path}: holds weights that are no numbers. Fix: another --out.")
    try:
        task.go_to(header)
    except safetensors.UNSOUND as exc:
        raise DataError(f"{no_state} ({exc}). Fix: another --out.") from exc
    if not 0 <= task.step <= (MOST_STEPS if task.goes_on else steps) or not 0 <= task.seconds < math.inf:
        raise DataError(f"{no_state}: step {task.step} after {task.seconds} s cannot be. Fix: another --out.")
    with torch.no_grad():
        for name, tensor in task.tensors().items():
            tensor.copy_(tensors[name])


def write_weights(
    folder: Path, weights: Mapping[str, Tensor], header: Mapping[str, str], card: Mapping[str, Any]
) -> None:
    """weights.safetensors and card.json, which says where they come from, with the digest of the former."""
    data = safetensors.dump(weights, header)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()  # as the card of `train --pretrained` has it
    whole = {"format": header["format"], "dpvision": __version__, **card, "digest": digest}
    text = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    files.make_folder(folder, mode=READABLE)
    files.write(folder / "weights.safetensors", data, mode=0o644)
    files.write(folder / "card.json", text, mode=0o644)


def finite_curve(text: str) -> list[tuple[int, float]]:
    """Steps and losses as a header has them; one that is no number is a ValueError."""
    curve = [(int(at), float(loss)) for at, loss in json.loads(text)]
    if not all(math.isfinite(loss) for _, loss in curve):
        raise ValueError("its curve has losses that are no numbers")
    return curve


@contextmanager
def seeded(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Within, torch's coins are a function of (seed, step) and the device; outside, nothing has changed."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(mixed(seed, step))
        yield


def mixed(*numbers: int | str) -> int:
    """A seed for each tuple, with no order in them."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=7).digest(), "big")


def _same(task: Task) -> dict[str, str]:
    return {key: value for entries in task.begun_with().values() for key, value in entries.items()}
