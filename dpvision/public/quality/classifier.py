"""A small classifier of images, trained in minutes without privacy: for synthetic and public images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.errors import ConfigError, DataError
from dpvision.models import build
from dpvision.public.quality.pictures import Pictures

Progress = Callable[[int, int], None]
AT_A_TIME = 256


@dataclass(frozen=True)
class Training:
    """Momentum 0.9, weight decay 5e-4, and a rate that goes up over the first tenth of the steps and then to zero."""

    model: str = "resnet-9-small"
    steps: int = 400
    batch: int = 64
    lr: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not self.lr > 0:
            raise ConfigError("a classifier needs at least one step, one image in a batch and a rate above 0.")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^63.")

    def rate(self, step: int) -> float:
        warm, done = self.steps / 10, (step + 0.5) / self.steps
        return self.lr * min(1.0, (step + 1) / max(1.0, warm)) * 0.5 * (1 + float(np.cos(np.pi * done)))


def train(
    pictures: Pictures,
    training: Training,
    *,
    classes: int,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> nn.Module:
    """The trained network, for images in [-1, 1]. A step's images depend on the seed and its number alone."""
    labels = torch.from_numpy(pictures.labelled().astype(np.int64)).to(device)
    model = build(training.model, pictures.shape, classes=classes, seed=training.seed).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step in range(training.steps):
        rows = chosen(step, count=len(pictures), batch=training.batch, seed=training.seed)
        loss = F.cross_entropy(model(pictures.tensor(rows).to(device)), labels[torch.from_numpy(rows).to(device)])
        if not bool(loss.isfinite()):
            raise ConfigError(f"step {step} of the classifier: the loss is {loss.item()}. Fix: a smaller rate.")
        for group in optimiser.param_groups:
            group["lr"] = training.rate(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(step + 1, training.steps)
    return model.eval()


def chosen(step: int, *, count: int, batch: int, seed: int) -> NDArray[np.int64]:
    """Pass by pass, each in a random order of its own; a batch may end one pass and begin the next."""
    places = range(step * batch, (step + 1) * batch)
    return np.array([_order(seed, place // count, count)[place % count] for place in places])


@lru_cache(maxsize=4)
def _order(seed: int, number: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, number)).permutation(count)


@torch.no_grad()
def logits(model: nn.Module, pictures: Pictures) -> Tensor:
    """(N, classes)"""
    device = next(model.parameters()).device
    parts = range(0, len(pictures), AT_A_TIME)
    return torch.cat([model(pictures.tensor(slice(start, start + AT_A_TIME)).to(device)).cpu() for start in parts])


def accuracy(model: nn.Module, pictures: Pictures) -> float:
    """Share of the images whose class it names."""
    guesses = logits(model, pictures).argmax(1).numpy()
    return float((guesses == pictures.labelled()).mean())


def classification_accuracy_score(
    synthetic: Pictures,
    real: Pictures,
    *,
    classes: tuple[str, ...],
    training: Training | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> float:
    """CAS (Ravuri and Vinyals 2019): accuracy on real images of a classifier that saw none but synthetic ones."""
    require_classes(synthetic, real, classes)
    model = train(synthetic, training or Training(), classes=len(classes), device=device, progress=progress)
    return accuracy(model, real)


def require_classes(synthetic: Pictures, real: Pictures, classes: tuple[str, ...]) -> None:
    """Every class that is asked for was seen."""
    seen, asked = (set(np.unique(pictures.labelled()).tolist()) for pictures in (synthetic, real))
    unknown = [place for place in seen | asked if not 0 <= place < len(classes)]
    if unknown:
        raise DataError(f"{synthetic.name}, {real.name}: label {unknown[0]} is not one of {len(classes)} classes.")
    missing = [classes[place] for place in sorted(asked - seen)]
    if missing:
        raise DataError(
            f"{synthetic.name}: has no image of class {', '.join(missing)}, which is among the real ones, so no "
            "classifier can learn it. Fix: draw images of every class, or leave CAS out (--no-cas)."
        )
