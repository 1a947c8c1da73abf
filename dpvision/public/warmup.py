"""Warm-up: training without privacy on public images, so that private training starts from good weights.

The only images read are those of the given sources, which are public or were synthesised from public ones. This package
cannot import the code that reads private images, so the weights cost no epsilon.

A warm-up can be stopped after any step and resumed with the same result. The output folder holds weights.safetensors
(the entire network with its head, for `dpvision train --pretrained`), card.json (settings, sources, losses, accuracies,
digest) and, during the run, state.safetensors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import build, train_only
from dpvision.models.device import find_device
from dpvision.public import optimisers
from dpvision.public.batches import Images, Source, balance, choose_batch, draw_views, steps_per_pass
from dpvision.public.provenance import ENTRY, merge_provenance, provenance_of
from dpvision.public.settings import WarmUpSettings
from dpvision.public.split import hold_out
from dpvision.public.trainer import Control, Task, parse_curve, require_free, train, write_weights
from dpvision.views import UnitRandom

FORMAT = "dpvision-warm-1"
EVALUATION_BATCH = 500
# With at least this many channels, convolutions are faster in channels-last layout: wrn-16-4 by a tenth on one core.
# wrn-10-1, with at most 64, is faster by half in the default layout. The layout affects the last bits, so it is chosen
# by this fixed rule, not by a benchmark.
WIDE = 128


CIFAR_10 = WarmUpSettings()
CIFAR_100 = WarmUpSettings(batch=64, epochs=200, lr=0.1)
NAMED = {"cifar-10": CIFAR_10, "cifar-100": CIFAR_100}


def warm_up(
    settings: WarmUpSettings,
    sources: Sequence[Source],
    folder: Path,
    *,
    classes: Sequence[str],
    device: torch.device | str = "cpu",
    **control: Unpack[Control],
) -> bool:
    """Train, or resume from the folder's state. Return True when weights and card are written, and False if stopped.

    The first source is the public part, of which a share may be held out; the others are added to it.
    """
    require_free(folder, WarmUp)
    task = WarmUp(settings, sources, classes=classes, device=device)
    return train(task, folder, steps=task.steps, **control)


class WarmUp(Task):
    """A warm-up run: the network, its momentum buffers and the losses so far."""

    name = "warm-up"

    def __init__(
        self,
        settings: WarmUpSettings,
        sources: Sequence[Source],
        *,
        classes: Sequence[str],
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings, self.sources, self.classes = settings, sources, tuple(classes)
        if settings.balance and len(sources) < 2:
            raise ConfigError("--balance also needs synthetic images. Fix: use --also SOURCE, or leave --balance out.")
        self.device = find_device(str(device))
        self._images = Images(sources, classes=len(classes))
        first = sources[0]
        held_out = hold_out(first.labels, share=settings.hold_out, seed=settings.seed, persons=first.persons)
        self._held_out = np.flatnonzero(held_out)
        self._rows = np.setdiff1d(np.arange(len(self._images)), self._held_out)  # each image once
        public = self._rows < len(first.labels)
        self._trained_on = balance(self._rows[public], self._rows[~public]) if settings.balance else self._rows
        self.steps = settings.total(len(self._trained_on))
        model = build(settings.model, self._images.shape, classes=len(classes), seed=settings.seed)
        train_only(model, "all", name=settings.model)
        widest = max((m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)), default=0)
        self._layout = torch.channels_last if widest >= WIDE else torch.contiguous_format
        self.model: nn.Module = model.eval().to(self.device, memory_format=self._layout)  # type: ignore[call-overload]
        self._weights = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self._momenta = [torch.zeros_like(p) for p in self._weights.values()]
        self.curve: list[tuple[int, float]] = []  # last step and mean loss of each pass
        self._sum = 0.0

    def train_step(self) -> float:
        settings, count = self.settings, len(self._trained_on)
        positions = choose_batch(np.arange(count), self.step, batch=settings.batch, seed=settings.seed)
        rng = UnitRandom((settings.seed << 40) + self.step, positions)  # a repeated image gets different views
        rows = self._trained_on[positions]
        labels = self._images.labels[torch.from_numpy(rows)]
        views, targets = draw_views(
            self._images(rows), labels, rng, augment=settings.augment, classes=len(self.classes)
        )
        x = self._to_device(views)
        y = targets.to(self.device)
        if settings.optimiser == "pgd":
            start = (2 * rng.uniform(*x.shape[1:]) - 1).to(x)
            x = optimisers.adversarial_images(
                lambda images: F.cross_entropy(self.model(images), y, reduction="sum"),
                x,
                radius=settings.radius,
                steps=settings.ascents,
                start=start,
            )

        def evaluate() -> tuple[Tensor, list[Tensor]]:
            loss = F.cross_entropy(self.model(x), y)
            return loss.detach(), list(torch.autograd.grad(loss, list(self._weights.values())))

        rate = settings.rate(self.step, self.steps)
        optimise: Callable[..., Tensor] = optimisers.sgd
        if settings.optimiser in ("sam", "asam"):
            eta = optimisers.ETA if settings.optimiser == "asam" else None
            optimise = partial(optimisers.sam, rho=settings.rho, eta=eta)
        mu, decay = settings.momentum, settings.decay
        loss = optimise(self._weights, self._momenta, evaluate, rate=rate, mu=mu, decay=decay).item()
        self._record(loss)
        return loss

    def _to_device(self, images: Tensor) -> Tensor:
        """Copy images to the device, in the network's memory layout."""
        # `contiguous` would not change grey images, which count as both layouts; convolutions would then be slow.
        return images.to(self.device).clone(memory_format=self._layout)

    def _record(self, loss: float) -> None:
        self.step += 1
        self._sum += loss
        length = steps_per_pass(len(self._trained_on), self.settings.batch)
        if self.step % length == 0:
            self.curve.append((self.step, self._sum / length))
            self._sum = 0.0

    @torch.no_grad()
    def evaluate(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return loss and accuracy on these images, without augmentation."""
        loss, correct = 0.0, 0
        for start in range(0, len(rows), EVALUATION_BATCH):
            batch = rows[start : start + EVALUATION_BATCH]
            outputs = self.model(self._to_device(self._images(batch))).cpu()
            labels = self._images.labels[torch.from_numpy(batch)]
            loss += F.cross_entropy(outputs, labels, reduction="sum").item()
            correct += int((outputs.argmax(1) == labels).sum())
        if not math.isfinite(loss):
            raise ConfigError(f"the final loss on public images is {loss}. Fix: use a smaller --lr.")
        return {"images": len(rows), "loss": loss / len(rows), "accuracy": correct / len(rows)}

    def started_with(self) -> dict[str, dict[str, str]]:
        return {"other settings or images": self._identity()}

    def position(self) -> dict[str, str]:
        return {**super().position(), "sum": repr(self._sum), "curve": json.dumps(self.curve)}

    def restore_position(self, header: Mapping[str, str]) -> None:
        super().restore_position(header)
        self._sum, self.curve = float(header["sum"]), parse_curve(header["curve"])
        if not math.isfinite(self._sum):
            raise ValueError(f"its sum of losses is {self._sum}")

    def tensors(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{name}": m for name, m in zip(self._weights, self._momenta, strict=True)}
        return {**{f"model.{n}": t for n, t in self.model.state_dict().items()}, **momenta}

    def publish(self, folder: Path) -> None:
        """Write the network and a card that states its origin."""
        card = {**asdict(self.settings), "steps": self.steps}
        card |= {"classes": list(self.classes), "shape": list(self._images.shape), **self.effort()}
        labels = self._images.labels[torch.from_numpy(self._rows)]
        card["of_each_class"] = torch.bincount(labels, minlength=len(self.classes)).tolist()
        card["images_seen"] = self.step * min(self.settings.batch, len(self._trained_on))
        card["sources"] = self._evaluate_sources()
        card["held_out"] = self.evaluate(self._held_out) if len(self._held_out) else None
        card["curve"] = self.curve
        records = [merge_provenance((s.provenance, provenance_of(s.images))) for s in self.sources]
        header = {**self._identity(), ENTRY: merge_provenance(records)}
        write_weights(folder, self.model.state_dict(), header, card)

    def _evaluate_sources(self) -> list[dict[str, Any]]:
        """Return each source with loss and accuracy on those of its images that were used for training."""
        entries, start = [], 0
        for source in self.sources:
            rows = np.arange(start, start + len(source.labels))
            start += len(rows)
            result = self.evaluate(np.setdiff1d(rows, self._held_out))
            entries.append({"name": source.name, "digest": source.digest, **result})
        return entries

    def _identity(self) -> dict[str, str]:
        """Return everything that determines the result: settings, sources, image shape and classes."""
        inputs = [asdict(self.settings), [s.digest for s in self.sources], self._images.shape, self.classes]
        return {"format": FORMAT, "of": json.dumps(inputs)}
