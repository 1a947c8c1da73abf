"""Warm-up: training without privacy on public images, so that private training starts from a network that knows a lot.

Only the images of the given sources are read, which are public, or were synthesised from public ones. No private image
is within reach: this package cannot import what reads them. So the weights cost no epsilon.

A warm-up can be stopped after any step and goes on as if it had not been. The folder holds weights.safetensors (all of
the network, its head too, for `dpvision train --pretrained`), card.json (settings, sources, losses, accuracies, digest)
and, while it lasts, state.safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import build, train_only
from dpvision.models.device import find_device
from dpvision.public import optimisers, provenance
from dpvision.public.batches import Images, Source, balanced, chosen, per_pass, require_augment, views
from dpvision.public.split import aside
from dpvision.public.trainer import Progress, Task, finite_curve, require_free, train, write_weights
from dpvision.views import UnitRandom

FORMAT = "dpvision-warm-1"
AT_A_TIME = 500
# From so many channels on, convolutions are faster with the channels last: wrn-16-4 by a tenth, on one core; wrn-10-1,
# which has 64 at most, is faster by half without. By a rule and not by trial, as the last bits depend on it.
WIDE = 128
OPTIMISERS = ("sgd", "sam", "asam", "pgd")


@dataclass(frozen=True)
class Settings:
    """Of one warm-up; the defaults are those for CIFAR-10 of Park et al. 2024 (Table 12, and Table 3 for augment)."""

    model: str = "wrn-16-4"
    optimiser: str = "sam"
    batch: int = 100
    epochs: int = 100
    steps: int | None = None  # instead of epochs
    lr: float = 0.05  # falls to 0 along a half wave of a cosine
    momentum: float = 0.9
    decay: float = 5e-4
    rho: float = 0.1  # radius of sam and asam
    radius: float = 8 / 255  # of pgd, as a share of the range from black to white
    ascents: int = 10  # of pgd
    augment: tuple[str, ...] = ("crop", "flip", "cutout")
    balance: bool = False  # public images are repeated until they are as many as the synthetic ones
    hold_out: float = 0.0  # share of the public images that is only looked at, at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise ConfigError(f"there is no optimiser named {self.optimiser!r}. There are: {', '.join(OPTIMISERS)}.")
        require_augment(self.augment)
        for name in ("batch", "epochs", "steps", "ascents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: it must be 1 or more.")
        for name, least, below in (
            ("lr", 0, math.inf),
            ("rho", 0, math.inf),
            ("radius", 0, 1),
            ("momentum", 0, 1),
            ("decay", 0, 1),
            ("hold_out", 0, 1),
            ("seed", 0, 1 << 63),
        ):
            if not least <= getattr(self, name) < below:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {least} and below {below}.")

    def total(self, images: int) -> int:
        """Steps in all."""
        return self.steps or self.epochs * per_pass(images, self.batch)

    def rate(self, step: int, total: int) -> float:
        """lr (1 + cos(pi step / total)) / 2."""
        return self.lr * (1 + math.cos(math.pi * step / total)) / 2


CIFAR_10 = Settings()
CIFAR_100 = Settings(batch=64, epochs=200, lr=0.1)
NAMED = {"cifar-10": CIFAR_10, "cifar-100": CIFAR_100}


def warm_up(
    settings: Settings,
    sources: Sequence[Source],
    folder: Path,
    *,
    classes: Sequence[str],
    device: str = "cpu",
    save_every: float = 60.0,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train, or go on where the folder's state is. True when it is finished; then weights and card are there.

    The first source is the public part, of which a share may be held out; others are trained on with it. The state is
    saved every so many seconds, which changes no bit of the result.
    """
    require_free(folder, WarmUp)
    task = WarmUp(settings, sources, classes=classes, device=device)
    return train(task, folder, steps=task.steps, save_every=save_every, watch=watch, stop=stop)


class WarmUp(Task):
    """The network, its momenta and the losses so far."""

    name = "warm-up"

    def __init__(
        self, settings: Settings, sources: Sequence[Source], *, classes: Sequence[str], device: str = "cpu"
    ) -> None:
        self.settings, self.sources, self.classes = settings, sources, tuple(classes)
        if settings.balance and len(sources) < 2:
            raise ConfigError("there is nothing to balance public images against. Fix: --also, or leave --balance out.")
        self._device = find_device(device)
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
        self.curve: list[tuple[int, float]] = []  # after each pass, the mean loss of its steps
        self._sum = 0.0

    def descend(self) -> float:
        settings, size = self.settings, len(self.classes)
        places = chosen(np.arange(len(self._seen)), self.step, batch=settings.batch, seed=settings.seed)
        rng = UnitRandom((settings.seed << 40) + self.step, places)  # an image that is there twice gets two views
        rows = self._seen[places]
        labels = self._images.labels[torch.from_numpy(rows)]
        made, targets = views(self._images(rows), labels, rng, augment=settings.augment, classes=size)
        x = self._laid_out(made)
        y = targets.to(self._device)
        if settings.optimiser == "pgd":
            start = (2 * rng.uniform(*x.shape[1:]) - 1).to(x)
            x = optimisers.worst_near(
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
        step = {"sam": partial(optimisers.sam, rho=settings.rho), "asam": partial(optimisers.asam, rho=settings.rho)}
        optimise = step.get(settings.optimiser, optimisers.sgd)
        mu, decay = settings.momentum, settings.decay
        loss = optimise(self._weights, self._momenta, slope, rate=rate, mu=mu, decay=decay).item()
        self._count(loss)
        return loss

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

    def begun_with(self) -> dict[str, dict[str, str]]:
        return {"other settings or images": self._named()}

    def position(self) -> dict[str, str]:
        return {**super().position(), "sum": repr(self._sum), "curve": json.dumps(self.curve)}

    def go_to(self, header: Mapping[str, str]) -> None:
        super().go_to(header)
        self._sum, self.curve = float(header["sum"]), finite_curve(header["curve"])
        if not math.isfinite(self._sum):
            raise ValueError(f"its sum of losses is {self._sum}")

    def tensors(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{name}": m for name, m in zip(self._weights, self._momenta, strict=True)}
        return {**{f"model.{n}": t for n, t in self.model.state_dict().items()}, **momenta}

    def publish(self, folder: Path) -> None:
        """The network, and a card that says where it comes from."""
        card = {**asdict(self.settings), "steps": self.steps}
        card |= {"classes": list(self.classes), "shape": list(self._images.shape), "seconds": round(self.seconds, 1)}
        labels = self._images.labels[torch.from_numpy(self._rows)]
        card["of_each_class"] = torch.bincount(labels, minlength=len(self.classes)).tolist()
        card["images_seen"] = self.step * min(self.settings.batch, len(self._seen))
        card["sources"] = self._by_source()
        card["held_out"] = self.measured(self._held) if len(self._held) else None
        card["curve"] = self.curve
        header = {**self._named(), "learned_from": self._learned_from()}
        write_weights(folder, self.model.state_dict(), header, card)

    def _learned_from(self) -> str:
        return provenance.joined(provenance.joined((s.learned_from, provenance.note(s.images))) for s in self.sources)

    def _by_source(self) -> list[dict[str, Any]]:
        """Each source with what the network makes of its images that were trained on."""
        found, start = [], 0
        for source in self.sources:
            own = np.arange(start, start + len(source.labels))
            start += len(own)
            measured = self.measured(np.setdiff1d(own, self._held))
            found.append({"name": source.name, "digest": source.digest, **measured})
        return found

    def _named(self) -> dict[str, str]:
        """All that the result is a function of."""
        of = [asdict(self.settings), [s.digest for s in self.sources], self._images.shape, self.classes]
        return {"format": FORMAT, "of": json.dumps(of)}
