"""Contrastive pretraining on random images: it can be stopped after any step and goes on as if it had not been.

The folder holds weights.safetensors (the trunk, for `dpvision train --pretrained`), card.json (process, seed, images
seen, settings, losses, digest) and, while it lasts, state.safetensors. No private image is within reach: this
package can not import what reads them.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.memory import keep_freed_memory
from dpvision.public.pretrain.encoder import GROUPS, Encoder
from dpvision.public.pretrain.images import pairs
from dpvision.public.pretrain.losses import LOSSES
from dpvision.storage import checkpoint, sealed

FORMAT = "dpvision-prior-1"


@dataclass(frozen=True)
class Settings:
    """Of one pretraining; the defaults are those of Tang et al. 2023 but for the number of steps, a day's work."""

    process: str = "stylegan-oriented"
    model: str = "wrn-16-4"
    side: int = 32
    finer: int = 2  # images are drawn so many times larger before a part of them is taken
    images: int = 105_000
    batch: int = 256
    steps: int = 82_000  # 200 passes
    lr: float = 0.12  # times batch / 256
    momentum: float = 0.9
    decay: float = 1e-4
    hidden: int = 4096
    loss: str = "align-uniform"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigError(f"there is no loss named {self.loss!r}. There are: {', '.join(LOSSES)}.")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^63.")
        if min(self.images, self.steps, self.finer, self.hidden) < 1 or self.batch < 2:
            raise ConfigError("pretraining needs at least one step, and a batch of 2 images or more.")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"lr is {self.lr}: it must be a number above 0.")
        if self.hidden % GROUPS:
            raise ConfigError(f"hidden is {self.hidden}: it must be a multiple of {GROUPS}, such as 512.")
        if self.batch > self.images:
            raise ConfigError(
                f"a batch of {self.batch:,} needs as many different images, and there are {self.images:,}. Fix: "
                "a smaller --batch, or a larger --count."
            )

    def rate(self, step: int) -> float:
        """A tenth after 155, 170 and 185 of 200 parts."""
        drops = sum(200 * step >= part * self.steps for part in (155, 170, 185))
        return self.lr * self.batch / 256 * 0.1**drops


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float


def pretrain(
    settings: Settings,
    folder: Path,
    *,
    workers: int = 1,
    every: int = 200,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train, or go on where the folder's state is. True when it is finished; then weights and card are there."""
    require_free(folder)
    keep_freed_memory()
    state = State(settings)
    state.resume(folder)
    state.save(folder)  # from here on the folder is known as one that was begun
    loss_of, began = LOSSES[settings.loss], time.monotonic() - state.seconds
    stream = pairs(
        settings.process,
        side=settings.side,
        finer=settings.finer,
        batch=settings.batch,
        images=settings.images,
        steps=range(state.step, settings.steps),
        seed=settings.seed,
        workers=workers,
    )
    for one, other in stream:
        if stop():
            state.save(folder)
            return False
        x, y = state.encoder(torch.cat([one, other])).chunk(2)
        loss = loss_of(x, y)
        if not torch.isfinite(loss):
            raise ConfigError(f"step {state.step}: the loss is {loss.item()}. Fix: a smaller --lr.")
        state.descend(loss)
        state.seconds = time.monotonic() - began
        if state.step % every == 0:
            state.curve.append((state.step, loss.item()))
            state.save(folder)
        watch(Progress(state.step, settings.steps, loss.item()))
    state.finish(folder)
    return True


def require_free(folder: Path) -> None:
    """A new folder, an empty one, or one of a pretraining that was stopped: nothing is written over."""
    if (folder / "card.json").exists():
        raise ConfigError(f"{folder}: this prior is finished. Fix: another --out.")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder. Fix: another --out.")
    if not folder.exists() or (folder / "state.safetensors").exists():
        return
    if not all(map(files.left_by_a_kill, folder.iterdir())):
        raise ConfigError(f"{folder}: has other files in it. Fix: a new folder for --out.")


def learned(settings: Settings, folder: Path | None = None) -> nn.Module:
    """The trunk as it was before the first step, or as a finished prior's folder has it."""
    encoder = Encoder(settings.model, (3, settings.side, settings.side), hidden=GROUPS, seed=settings.seed)
    if folder is not None:
        tensors, _ = checkpoint.load(folder / "weights.safetensors", encoder.weights())
        encoder.trunk.load_state_dict({n: t for n, t in tensors.items() if n in encoder.trunk.state_dict()})
    return encoder.trunk


class State:
    """What is between two steps."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.step, self.seconds = settings, 0, 0.0
        self.curve: list[tuple[int, float]] = []  # step and loss
        shape = (3, settings.side, settings.side)
        self.encoder = Encoder(settings.model, shape, hidden=settings.hidden, seed=settings.seed)
        self.momentum = [torch.zeros_like(p) for p in self.encoder.parameters()]

    def descend(self, loss: Tensor) -> None:
        """m <- mu m + g + decay w, w <- w - rate m."""
        settings = self.settings
        parameters = list(self.encoder.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for weight, gradient, momentum in zip(parameters, gradients, self.momentum, strict=True):
                momentum.mul_(settings.momentum).add_(gradient).add_(weight, alpha=settings.decay)
                weight.sub_(momentum, alpha=settings.rate(self.step))
        self.step += 1

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        header = {
            "format": FORMAT,
            "settings": json.dumps(asdict(self.settings)),
            "step": str(self.step),
            "seconds": repr(self.seconds),
            "curve": json.dumps(self.curve),
        }
        files.write(folder / "state.safetensors", checkpoint.dump(self._tensors(), header))

    def resume(self, folder: Path) -> None:
        """Go on from the folder's state, if there is one; it must have the same settings."""
        path = folder / "state.safetensors"
        if not path.exists():
            return
        tensors, header = checkpoint.load(path, self._tensors())
        try:
            same = header.get("format") == FORMAT and json.loads(header["settings"]) == asdict(self.settings)
            step, seconds = int(header["step"]), float(header["seconds"])
            curve = [(int(at), float(loss)) for at, loss in json.loads(header["curve"])]
        except sealed.UNSOUND as exc:
            raise DataError(f"{path}: its header is not that of a pretraining ({exc}). Fix: another --out.") from exc
        if not same:
            raise ConfigError(f"{folder}: was begun with other settings. Fix: the same ones, or another --out.")
        numbers = [seconds, *(loss for _, loss in curve)]
        if not (0 <= step <= self.settings.steps and all(map(math.isfinite, numbers))):
            raise DataError(f"{path}: its header is not that of a pretraining. Fix: another --out.")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise DataError(f"{path}: holds weights that are no numbers. Fix: another --out.")
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tensors[name])
        self.step, self.seconds, self.curve = step, seconds, curve

    def finish(self, folder: Path) -> None:
        """The trunk and a card that says where it comes from; the state is not needed any more."""
        folder.mkdir(parents=True, exist_ok=True)
        seen = {"images_seen": self.step * self.settings.batch, "seconds": round(self.seconds, 1)}
        card = {"format": FORMAT, "dpvision": __version__, **asdict(self.settings), **seen, "curve": self.curve}
        header = {"format": FORMAT, "process": self.settings.process, "seed": str(self.settings.seed)}
        data = checkpoint.dump(self.encoder.weights(), header)
        files.write(folder / "weights.safetensors", data, mode=0o644)
        card["digest"] = hashlib.blake2b(data, digest_size=32).hexdigest()  # as `train --pretrained` tells it
        files.write(folder / "card.json", json.dumps(card, indent=1, allow_nan=False) + "\n", mode=0o644)
        (folder / "state.safetensors").unlink(missing_ok=True)

    def _tensors(self) -> dict[str, Tensor]:
        momentum = {f"momentum.{number}": tensor for number, tensor in enumerate(self.momentum)}
        return {**{f"encoder.{n}": t for n, t in self.encoder.state_dict().items()}, **momentum}
