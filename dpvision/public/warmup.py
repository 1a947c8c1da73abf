"""Warm-up: training without privacy on public images, so that private training starts from a network that knows a lot.

Only the images of the given sources are read, which are public, or were synthesised from public ones. No private image
is within reach: this package can not import what reads them. So the weights cost no epsilon.

A warm-up can be stopped after any step and goes on as if it had not been. The folder holds weights.safetensors (all of
the network, its head too, for `dpvision train --pretrained`), card.json (settings, sources, losses, accuracies, digest)
and, while it lasts, state.safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models import build, train_only
from dpvision.models.device import device_named
from dpvision.models.memory import keep_freed_memory
from dpvision.public import provenance, sharpness
from dpvision.public.adversarial import worst_near
from dpvision.public.batches import Images, Source, balanced, chosen, per_pass, views
from dpvision.public.settings import Settings
from dpvision.public.split import aside
from dpvision.storage import checkpoint, sealed
from dpvision.views import Coins

FORMAT = "dpvision-warm-1"
AT_A_TIME = 500
# From so many channels on, convolutions are faster with the channels last: wrn-16-4 by a tenth, on one core; wrn-10-1,
# which has 64 at most, is faster by half without. By a rule and not by trial, as the last bits depend on it.
WIDE = 128


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    loss: float


def warm_up(
    settings: Settings,
    sources: Sequence[Source],
    folder: Path,
    *,
    classes: Sequence[str],
    device: str = "cpu",
    every: float = 60.0,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train, or go on where the folder's state is. True when it is finished; then weights and card are there.

    The first source is the public part, of which a share may be held out; others are trained on with it. The state is
    saved every so many seconds, which changes no bit of the result.
    """
    require_free(folder)
    keep_freed_memory()
    state = State(settings, sources, classes=classes, device=device)
    state.resume(folder)
    state.save(folder)  # from here on the folder is known as one that was begun
    began = saved = time.monotonic()
    before = state.seconds
    while state.step < state.steps:
        if stop():
            state.save(folder)
            return False
        loss = state.descend()
        now = time.monotonic()
        state.seconds = before + now - began
        if now - saved >= every:
            state.save(folder)
            saved = now
        watch(Progress(state.step, state.steps, loss))
    state.finish(folder)
    return True


def require_free(folder: Path) -> None:
    """A new folder, an empty one, or one of a warm-up that was stopped: nothing is written over."""
    if (folder / "card.json").exists():
        raise ConfigError(f"{folder}: this warm-up is finished. Fix: another --out.")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder. Fix: another --out.")
    if not folder.exists() or (folder / "state.safetensors").exists():
        return
    if not all(map(files.left_by_a_kill, folder.iterdir())):
        raise ConfigError(f"{folder}: has other files in it. Fix: a new folder for --out.")


class State:
    """What is between two steps."""

    def __init__(
        self, settings: Settings, sources: Sequence[Source], *, classes: Sequence[str], device: str = "cpu"
    ) -> None:
        self.settings, self.sources, self.classes = settings, sources, tuple(classes)
        if settings.balance and len(sources) < 2:
            raise ConfigError("there is nothing to balance public images against. Fix: --also, or leave --balance out.")
        self._device = device_named(device)
        self._images = Images(sources, classes=len(classes))
        first = sources[0]
        held = aside(first.labels, share=settings.hold_out, seed=settings.seed, persons=first.persons)
        self._held = np.flatnonzero(held)
        self._rows = np.setdiff1d(np.arange(len(self._images)), self._held)  # each image once
        public = self._rows < len(first.labels)
        self._seen = balanced(self._rows[public], self._rows[~public]) if settings.balance else self._rows
        self.steps = settings.total(len(self._seen))
        model = build(settings.model, self._images.shape, classes=len(classes), seed=settings.seed)
        train_only(model, "all", name=settings.model)
        widest = max((m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)), default=0)
        self._layout = torch.channels_last if widest >= WIDE else torch.contiguous_format
        self.model: nn.Module = model.eval().to(self._device, memory_format=self._layout)  # type: ignore[call-overload]
        self._weights = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._momenta = [torch.zeros_like(p) for p in self._weights.values()]
        self.step, self.seconds = 0, 0.0
        self.curve: list[tuple[int, float]] = []  # after each pass, the mean loss of its steps
        self._sum = 0.0

    def descend(self) -> float:
        """One step; the loss before it."""
        settings, size = self.settings, len(self.classes)
        places = chosen(np.arange(len(self._seen)), self.step, batch=settings.batch, seed=settings.seed)
        coins = Coins((settings.seed << 40) + self.step, places)  # an image that is there twice gets two views
        rows = self._seen[places]
        labels = self._images.labels[torch.from_numpy(rows)]
        made, targets = views(self._images(rows), labels, coins, augment=settings.augment, classes=size)
        x = self._laid_out(made)
        y = targets.to(self._device)
        if settings.optimiser == "pgd":
            start = (2 * coins.uniform(*x.shape[1:]) - 1).to(x)
            x = worst_near(
                lambda near: F.cross_entropy(self.model(near), y, reduction="sum"),
                x,
                radius=settings.radius,
                steps=settings.ascents,
                start=start,
            )

        def slope() -> tuple[Tensor, list[Tensor]]:
            loss = F.cross_entropy(self.model(x), y)
            return loss.detach(), list(torch.autograd.grad(loss, list(self._weights.values())))

        rate = settings.rate(self.step, self.steps)
        step = {"sam": partial(sharpness.sam, rho=settings.rho), "asam": partial(sharpness.asam, rho=settings.rho)}
        optimise = step.get(settings.optimiser, sharpness.sgd)
        loss = optimise(self._weights, self._momenta, slope, rate=rate, mu=settings.momentum, decay=settings.decay)
        told = loss.item()
        if not math.isfinite(told):
            raise ConfigError(f"step {self.step}: the loss is {told}. Fix: a smaller --lr.")
        self._count(told)
        return told

    def _laid_out(self, images: Tensor) -> Tensor:
        """On the device, as the network wants them."""
        # `contiguous` would leave grey images as they are, which count as both layouts; convolutions take the slow one.
        return images.to(self._device).clone(memory_format=self._layout)

    def _count(self, loss: float) -> None:
        self.step += 1
        self._sum += loss
        length = per_pass(len(self._seen), self.settings.batch)
        if self.step % length == 0:
            self.curve.append((self.step, self._sum / length))
            self._sum = 0.0

    @torch.no_grad()
    def measured(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Loss and accuracy on images as they are."""
        loss, right = 0.0, 0
        for start in range(0, len(rows), AT_A_TIME):
            some = rows[start : start + AT_A_TIME]
            outputs = self.model(self._laid_out(self._images(some))).cpu()
            labels = self._images.labels[torch.from_numpy(some)]
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            right += int((outputs.argmax(1) == labels).sum())
        if not math.isfinite(loss):
            raise ConfigError(f"the network ends with a loss of {loss} on public images. Fix: a smaller --lr.")
        return {"images": len(rows), "loss": loss / len(rows), "accuracy": right / len(rows)}

    def save(self, folder: Path) -> None:
        files.make_folder(folder)
        header = {
            "format": FORMAT,
            "of": self._of,
            "step": str(self.step),
            "seconds": repr(self.seconds),
            "sum": repr(self._sum),
            "curve": json.dumps(self.curve),
        }
        files.write(folder / "state.safetensors", checkpoint.dump(self._tensors(), header))

    def resume(self, folder: Path) -> None:
        """Go on from the folder's state, if there is one; it must be of the same settings and sources."""
        path = folder / "state.safetensors"
        if not path.exists():
            return
        said = sealed.said_by(path)
        if said.get("format") == FORMAT and said.get("of") != self._of:
            raise ConfigError(f"{folder}: was begun with other settings or images. Fix: the same, or another --out.")
        tensors, header = checkpoint.load(path, self._tensors())
        try:
            step, seconds, total = int(header["step"]), float(header["seconds"]), float(header["sum"])
            curve = [(int(at), float(loss)) for at, loss in json.loads(header["curve"])]
            sound = header.get("format") == FORMAT and header["of"] == self._of
        except sealed.UNSOUND as exc:
            raise DataError(f"{path}: its header is not that of a warm-up ({exc}). Fix: another --out.") from exc
        numbers = [seconds, total, *(loss for _, loss in curve)]
        if not (sound and 0 <= step <= self.steps and all(map(math.isfinite, numbers))):
            raise DataError(f"{path}: its header is not that of a warm-up. Fix: another --out.")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values() if tensor.is_floating_point()):
            raise DataError(f"{path}: holds weights that are no numbers. Fix: another --out.")
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tensors[name])
        self.step, self.seconds, self.curve, self._sum = step, seconds, curve, total

    def finish(self, folder: Path) -> None:
        """The network and a card that says where it comes from; the state is not needed any more."""
        files.make_folder(folder)
        said = {"format": FORMAT, "of": self._of, "learned_from": self._learned_from()}
        data = checkpoint.dump(self.model.state_dict(), said)
        card = {"format": FORMAT, "dpvision": __version__, **asdict(self.settings), "steps": self.steps}
        card |= {"classes": list(self.classes), "shape": list(self._images.shape), "seconds": round(self.seconds, 1)}
        labels = self._images.labels[torch.from_numpy(self._rows)]
        card["of_each_class"] = torch.bincount(labels, minlength=len(self.classes)).tolist()
        card["images_seen"] = self.step * min(self.settings.batch, len(self._seen))
        card["sources"] = self._by_source()
        card["held_out"] = self.measured(self._held) if len(self._held) else None
        card["curve"] = self.curve
        card["digest"] = hashlib.blake2b(data, digest_size=32).hexdigest()  # as `train --pretrained` tells it
        files.write(folder / "weights.safetensors", data, mode=0o644)
        files.write(folder / "card.json", json.dumps(card, indent=1, allow_nan=False) + "\n", mode=0o644)
        (folder / "state.safetensors").unlink(missing_ok=True)

    def _learned_from(self) -> str:
        return provenance.both(provenance.both((s.taught_by, provenance.note(s.images))) for s in self.sources)

    def _by_source(self) -> list[dict[str, Any]]:
        """Each source with what the network makes of its images that were trained on."""
        found, start = [], 0
        for source in self.sources:
            own = np.arange(start, start + len(source.labels))
            start += len(own)
            measured = self.measured(np.setdiff1d(own, self._held))
            found.append({"name": source.name, "digest": source.digest, **measured})
        return found

    @property
    def _of(self) -> str:
        """Names all that the result is a function of."""
        of = [asdict(self.settings), [s.digest for s in self.sources], self._images.shape, self.classes]
        return json.dumps(of)

    def _tensors(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{name}": m for name, m in zip(self._weights, self._momenta, strict=True)}
        return {**{f"model.{n}": t for n, t in self.model.state_dict().items()}, **momenta}
