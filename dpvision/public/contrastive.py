"""Contrastive pretraining on random images: an encoder is trained without labels, before any private image is used.

Two views of the same image should be close to each other, and far from views of other images. The output folder holds
weights.safetensors (the trunk, for `dpvision train --pretrained`), card.json (process, seed, images seen, settings,
losses, digest) and, during training, state.safetensors. This package cannot import the code that reads private images.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import Shape, build, seeded
from dpvision.models.device import find_device
from dpvision.models.inputs import to_tensor
from dpvision.models.parts import head_name
from dpvision.public import optimisers
from dpvision.public.batches import choose_batch
from dpvision.public.random import draw, stream
from dpvision.public.settings import GROUPS, PretrainSettings
from dpvision.public.trainer import Control, Task, parse_curve, require_free, train, write_weights
from dpvision.storage import safetensors
from dpvision.views import Augment, UnitRandom

FORMAT = "dpvision-prior-1"
OUT = 128  # width of the projection
# Augmentations of Baradad et al. 2021. Crops are taken from the larger images.
CROP, RECOLOUR = ("resized-crop",), ("flip", "jitter", "grayscale")
MAX_CACHE_BYTES = 3 << 29  # if all images fit, each is drawn once and cached for later passes
CURVE_EVERY = 200  # steps between the losses on the card


def align_uniform(x: Tensor, y: Tensor) -> Tensor:
    """Return alignment plus uniformity, each with weight 1 (Wang and Isola 2020).

    In all losses, x and y are (B, D) with unit-norm rows, and row i of both comes from the same image.
    """
    return alignment(x, y) + (uniformity(x) + uniformity(y)) / 2


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Return E |x - y|^2, which is small if views of the same image are close to each other."""
    return (x - y).square().sum(1).mean()


def uniformity(x: Tensor, *, t: float = 2.0) -> Tensor:
    """Return log E exp(-t |x_i - x_j|^2) over pairs i < j, which is small if images are spread evenly on the sphere."""
    i, j = torch.triu_indices(len(x), len(x), offset=1, device=x.device)
    squared = 2 - 2 * (x @ x.T)[i, j]
    return torch.logsumexp(-t * squared, 0) - torch.log(torch.tensor(float(len(squared)), device=x.device))


def info_nce(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return the cross-entropy of picking each view's partner from all other views (SimCLR, Chen et al. 2020)."""
    both = torch.cat([x, y])
    similarity = both @ both.T / temperature
    similarity = similarity.masked_fill(torch.eye(len(both), dtype=torch.bool, device=x.device), float("-inf"))
    partner = torch.arange(len(both), device=x.device).roll(len(x))
    return F.cross_entropy(similarity, partner)


LOSSES = {"align-uniform": align_uniform, "info-nce": info_nce}


def pretrain(
    settings: PretrainSettings,
    folder: Path,
    *,
    workers: int = 1,
    device: torch.device | str = "cpu",
    **control: Unpack[Control],
) -> bool:
    """Train, or resume from the folder's state. Return True when weights and card are written, and False if stopped."""
    require_free(folder, Pretraining)
    return train(Pretraining(settings, workers=workers, device=device), folder, steps=settings.steps, **control)


def load_trunk(settings: PretrainSettings, folder: Path | None = None) -> nn.Module:
    """Return the trunk from the folder of a finished pretraining run or, without a folder, with initial weights."""
    encoder = Encoder(settings.model, (3, settings.side, settings.side), hidden=GROUPS, seed=settings.seed)
    if folder is not None:
        tensors, _ = safetensors.load(folder / "weights.safetensors", encoder.weights())
        encoder.trunk.load_state_dict({n: t for n, t in tensors.items() if n in encoder.trunk.state_dict()})
    return encoder.trunk


@torch.no_grad()
def retrieval_accuracy(
    trunk: nn.Module,
    process: str,
    *,
    side: int,
    first: int,
    classes: int = 200,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> float:
    """Return the fraction of views whose nearest neighbour is a view of the same image.

    It uses `classes` random images from index `first` on, which were not trained on; no real image is involved.
    """
    pixels = draw(process, range(first, first + classes), side=side, seed=seed)
    images = to_tensor(pixels).unsqueeze(1)
    views = Augment(CROP + RECOLOUR)(images, UnitRandom(seed, np.arange(classes)), 2)
    keys, queries = (F.normalize(_features(trunk, views[:, k].to(device)).cpu(), dim=1) for k in (0, 1))
    return float(((queries @ keys.T).argmax(1) == torch.arange(classes)).double().mean())


def _features(trunk: nn.Module, images: Tensor) -> Tensor:
    """Return one row per image: spatially averaged feature maps, minus the mean of all rows."""
    features = torch.cat([trunk(block) for block in images.split(100)])
    if features.ndim > 2:
        features = features.flatten(2).mean(2)
    return features - features.mean(0)


class Pretraining(Task):
    """A pretraining run: the encoder, its momentum buffers and the losses so far."""

    name = "pretraining"

    def __init__(self, settings: PretrainSettings, *, workers: int = 1, device: torch.device | str = "cpu") -> None:
        self.settings, self.workers, self.device = settings, workers, find_device(str(device))
        self.curve: list[tuple[int, float]] = []  # step and loss
        shape = (3, settings.side, settings.side)
        self.encoder = Encoder(settings.model, shape, hidden=settings.hidden, seed=settings.seed).to(self.device)
        self.weights = dict(self.encoder.named_parameters())
        self.momenta = [torch.zeros_like(p) for p in self.weights.values()]
        self._pairs: Iterator[tuple[Tensor, Tensor]] | None = None  # created at the first step

    def train_step(self) -> float:
        settings = self.settings
        if self._pairs is None:
            self._pairs = draw_pairs(
                settings.process,
                side=settings.side,
                finer=settings.finer,
                batch=settings.batch,
                images=settings.images,
                steps=range(self.step, settings.steps),
                seed=settings.seed,
                workers=self.workers,
            )
        views = torch.cat(next(self._pairs)).to(self.device)

        def evaluate() -> tuple[Tensor, list[Tensor]]:
            loss = LOSSES[settings.loss](*self.encoder(views).chunk(2))
            return loss.detach(), list(torch.autograd.grad(loss, list(self.weights.values())))

        rate, mu, decay = settings.rate(self.step), settings.momentum, settings.decay
        loss = optimisers.sgd(self.weights, self.momenta, evaluate, rate=rate, mu=mu, decay=decay).item()
        self.step += 1
        if self.step % CURVE_EVERY == 0:
            self.curve.append((self.step, loss))
        return loss

    def started_with(self) -> dict[str, dict[str, str]]:
        return {"other settings": {"format": FORMAT, "settings": json.dumps(asdict(self.settings))}}

    def position(self) -> dict[str, str]:
        return {**super().position(), "curve": json.dumps(self.curve)}

    def restore_position(self, header: Mapping[str, str]) -> None:
        super().restore_position(header)
        self.curve = parse_curve(header["curve"])

    def tensors(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{number}": tensor for number, tensor in enumerate(self.momenta)}
        return {**{f"encoder.{n}": t for n, t in self.encoder.state_dict().items()}, **momenta}

    def publish(self, folder: Path) -> None:
        """Write the trunk and a card that states its origin."""
        seen = {"images_seen": self.step * self.settings.batch, **self.effort()}
        header = {"format": FORMAT, "process": self.settings.process, "seed": str(self.settings.seed)}
        write_weights(folder, self.encoder.weights(), header, {**asdict(self.settings), **seen, "curve": self.curve})


class Encoder(nn.Module):
    """The trunk of a network, followed by a projection to unit-norm rows that is discarded after pretraining.

    The trunk is everything before the last normalisation, the pooling and the head, which private training learns first
    (Tang et al. 2023).
    """

    def __init__(self, name: str, shape: Shape, *, hidden: int = 4096, seed: int = 0) -> None:
        super().__init__()
        model = build(name, shape, classes=2, seed=seed)
        self.trunk = trunk_of(model, name)
        head = head_name(model) + "."
        self._others = {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(head)}
        with seeded(seed):
            width = self.trunk(torch.zeros(1, *shape)).flatten(1).shape[1]
            self.projection = projection(width, hidden)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.projection(self.trunk(images).flatten(1)), dim=1)

    def weights(self) -> dict[str, Tensor]:
        """Return the network's tensors by name, with the trained trunk and without the head."""
        return {**self._others, **self.trunk.state_dict()}


def projection(width: int, hidden: int) -> nn.Sequential:
    """Build an MLP with two hidden layers and GroupNorm, followed by a linear map to 128 dimensions."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(width, hidden, bias=False), nn.GroupNorm(GROUPS, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(hidden, OUT))


def trunk_of(model: nn.Module, name: str) -> nn.Sequential:
    """Return the layers before the head, without the pooling and, if there is one, the normalisation before it."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear):
        raise ConfigError(f"{name}: only a layer sequence with a linear head can be pretrained. Fix: use wrn-16-4.")
    end = len(model) - 1
    while end and not any(p.requires_grad for p in model[end - 1].parameters()):
        end -= 1
    if end and not any(isinstance(m, nn.Conv2d | nn.Linear) for m in model[end - 1].modules()):
        end -= 1
    if not end:
        raise ConfigError(f"{name}: it has no layers before its head to pretrain. Fix: use wrn-16-4.")
    return nn.Sequential(*list(model)[:end])


def draw_pairs(
    process: str, *, side: int, finer: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step, yield two views of `batch` images, each (batch, 3, side, side) in [-1, 1].

    Images are drawn `finer` times as large, so that small crops still have detail. There are `images` distinct images,
    visited in a new order in every pass. A step depends only on its number, so training can resume at any step.
    """
    crop, recolour = Augment(CROP), Augment(RECOLOUR)
    batches = _draw_batches(
        process, side=side * finer, batch=batch, images=images, steps=steps, seed=seed, workers=workers
    )
    for step, pixels in zip(steps, batches, strict=True):
        large = to_tensor(pixels).unsqueeze(1)
        rng = UnitRandom((seed << 40) + step, np.arange(batch))
        small = F.avg_pool2d(crop(large, rng, 2).flatten(0, 1), finer).unflatten(0, (-1, 2))
        views = recolour(small, rng, 2)
        yield views[:, 0], views[:, 1]


def _draw_batches(
    process: str, *, side: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield the images of each step."""
    batches = (choose_batch(np.arange(images), step, batch=batch, seed=seed) for step in steps)
    shape = (images, side, side, 3)
    if math.prod(shape) > MAX_CACHE_BYTES:
        yield from stream(process, (rows.tolist() for rows in batches), side=side, seed=seed, workers=workers)
        return
    cache, requested = np.empty(shape, dtype=np.uint8), np.zeros(images, dtype=np.bool_)
    pending: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()

    def missing() -> Iterator[list[int]]:
        for rows in batches:
            new = rows[~requested[rows]]
            requested[new] = True
            pending.append((rows, new))
            yield new.tolist()

    for pixels in stream(process, missing(), side=side, seed=seed, workers=workers):
        rows, new = pending.popleft()
        cache[new] = pixels
        yield cache[rows]
