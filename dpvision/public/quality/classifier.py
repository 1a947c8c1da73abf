"""Labelled images, a small classifier that trains in minutes without privacy, and the accuracy score (CAS)."""

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
from dpvision.models import Shape, build
from dpvision.models.inputs import to_tensor

Progress = Callable[[int, int], None]
BATCH = 256


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images with labels. `name` is the file or folder they came from, for messages."""

    name: str
    images: NDArray[np.uint8] | NDArray[np.float32]  # (N, H, W, 1 or 3); 0 to 255, or 0 to 1
    labels: NDArray[np.int64]  # (N,), indices into the classes

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.shape[3] not in (1, 3) or not len(self.images):
            raise ConfigError(f"{self.name}: images must be (count, height, width, 1 or 3), not {self.images.shape}.")
        if self.images.dtype not in (np.uint8, np.float32):
            raise ConfigError(f"{self.name}: images must be bytes, or float32 from 0 to 1, not {self.images.dtype}.")
        if self.labels.shape != (len(self.images),):
            raise ConfigError(
                f"{self.name}: {len(self.images)} images need one label each, but the labels' shape is "
                f"{self.labels.shape}."
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> Shape:
        """The images' channels, height and width."""
        height, width, channels = self.images.shape[1:]
        return channels, height, width

    def tensor(self, rows: slice | NDArray[np.int64] = slice(None)) -> Tensor:
        """Return the images in these rows as (n, C, H, W) in [-1, 1]."""
        return to_tensor(np.asarray(self.images[rows]))

    def subset(self, count: int | None, *, seed: int) -> LabelledImages:
        """Return at most `count` random images in random order, because files are often sorted by class."""
        order = np.random.default_rng((seed, len(self))).permutation(len(self))[:count]
        return LabelledImages(self.name, self.images[order], self.labels[order])


def require_same_shape(one: LabelledImages, other: LabelledImages) -> None:
    """Require the same size and channels, because a difference in either would dominate every comparison."""
    if one.shape != other.shape:
        (c, h, w), (d, i, j) = one.shape, other.shape
        raise DataError(
            f"{one.name}: its images have {h}x{w} pixels and {c} channels, but those of {other.name} have {i}x{j} and "
            f"{d}. Fix: resize both to the same size."
        )


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of SGD with momentum 0.9, weight decay 5e-4, linear warm-up over a tenth of all steps, cosine decay."""

    model: str = "resnet-9-small"
    steps: int = 400
    batch: int = 64
    lr: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch) < 1 or not self.lr > 0:
            raise ConfigError("a classifier needs at least one step, one image per batch and a learning rate above 0.")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^63.")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        warm, done = self.steps / 10, (step + 0.5) / self.steps
        return self.lr * min(1.0, (step + 1) / max(1.0, warm)) * 0.5 * (1 + float(np.cos(np.pi * done)))


def train_classifier(
    images: LabelledImages,
    settings: ClassifierSettings,
    *,
    classes: int,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> nn.Module:
    """Train a network for images in [-1, 1]. The batch of a step depends only on its number and the seed."""
    labels = torch.from_numpy(images.labels.astype(np.int64)).to(device)
    model = build(settings.model, images.shape, classes=classes, seed=settings.seed).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step in range(settings.steps):
        rows = choose_batch(step, count=len(images), batch=settings.batch, seed=settings.seed)
        loss = F.cross_entropy(model(images.tensor(rows).to(device)), labels[torch.from_numpy(rows).to(device)])
        if not bool(loss.isfinite()):
            raise ConfigError(f"step {step} of the classifier: the loss is {loss.item()}. Fix: use a smaller lr.")
        for group in optimiser.param_groups:
            group["lr"] = settings.rate(step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(step + 1, settings.steps)
    return model.eval()


def choose_batch(step: int, *, count: int, batch: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of a step's batch. Every pass is in a new random order; a batch may span two passes."""
    positions = range(step * batch, (step + 1) * batch)
    return np.array([_order(seed, position // count, count)[position % count] for position in positions])


@lru_cache(maxsize=4)
def _order(seed: int, number: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, number)).permutation(count)


@torch.no_grad()
def compute_logits(model: nn.Module, images: LabelledImages) -> Tensor:
    """Return the logits (N, classes) of all images."""
    device = next(model.parameters()).device
    starts = range(0, len(images), BATCH)
    return torch.cat([model(images.tensor(slice(start, start + BATCH)).to(device)).cpu() for start in starts])


def accuracy(model: nn.Module, images: LabelledImages) -> float:
    """Return the fraction of the images that the model classifies correctly."""
    predictions = compute_logits(model, images).argmax(1).numpy()
    return float((predictions == images.labels).mean())


def classification_accuracy_score(
    synthetic: LabelledImages,
    real: LabelledImages,
    *,
    classes: tuple[str, ...],
    settings: ClassifierSettings | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> float:
    """Return the accuracy on real images of a classifier trained only on synthetic ones (Ravuri and Vinyals 2019)."""
    require_classes(synthetic, real, classes)
    settings = settings or ClassifierSettings()
    model = train_classifier(synthetic, settings, classes=len(classes), device=device, progress=progress)
    return accuracy(model, real)


def require_classes(synthetic: LabelledImages, real: LabelledImages, classes: tuple[str, ...]) -> None:
    """Require that every class of the real images also occurs among the synthetic ones."""
    trained, tested = (set(np.unique(images.labels).tolist()) for images in (synthetic, real))
    unknown = [label for label in trained | tested if not 0 <= label < len(classes)]
    if unknown:
        raise DataError(f"{synthetic.name}, {real.name}: label {unknown[0]} is not one of {len(classes)} classes.")
    missing = [classes[label] for label in sorted(tested - trained)]
    if missing:
        raise DataError(
            f"{synthetic.name}: has no image of class {', '.join(missing)}, unlike the real images, so no classifier "
            "can learn it. Fix: draw images of every class, or leave out CAS (--no-cas)."
        )
