"""Contrastive pretraining on random images: learning to see without labels, before any private image is touched.

Two views of one image should be near each other, and far from everybody else's. The folder holds weights.safetensors
(the trunk, for `dpvision train --pretrained`), card.json (process, seed, images seen, settings, losses, digest) and,
while it lasts, state.safetensors. No private image is within reach: this package cannot import what reads them.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import Shape, build
from dpvision.models.inputs import to_tensor
from dpvision.models.parts import head_name
from dpvision.public import optimisers
from dpvision.public.batches import chosen
from dpvision.public.random import draw, stream
from dpvision.public.trainer import Progress, Task, finite_curve, require_free, train, write_weights
from dpvision.storage import safetensors
from dpvision.views import Augment, UnitRandom

FORMAT = "dpvision-prior-1"
GROUPS, OUT = 16, 128  # of the projection
# Baradad et al. 2021: a random part, mirrored or not, in other colours, sometimes grey.
PART, CHANGED = ("resized-crop",), ("flip", "jitter", "grayscale")
KEEP = 3 << 29  # bytes: where all images fit into so many, each is drawn once and kept for later passes
CURVE_EVERY = 200  # steps between two losses of the card


def align_uniform(x: Tensor, y: Tensor) -> Tensor:
    """Alignment plus uniformity, each with weight 1 (Wang and Isola 2020).

    As in all of these losses, x and y are (B, D) with rows of length 1; row i of both comes from the same image.
    """
    return alignment(x, y) + (uniformity(x) + uniformity(y)) / 2


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """E |x - y|^2: views of one image lie near each other."""
    return (x - y).square().sum(1).mean()


def uniformity(x: Tensor, *, t: float = 2.0) -> Tensor:
    """log E exp(-t |x_i - x_j|^2) over pairs i < j: images spread evenly over the sphere."""
    i, j = torch.triu_indices(len(x), len(x), offset=1, device=x.device)
    squared = 2 - 2 * (x @ x.T)[i, j]
    return torch.logsumexp(-t * squared, 0) - torch.log(torch.tensor(float(len(squared)), device=x.device))


def info_nce(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Each view must find its partner among all other views of the batch (SimCLR, Chen et al. 2020)."""
    both = torch.cat([x, y])
    alike = both @ both.T / temperature
    alike = alike.masked_fill(torch.eye(len(both), dtype=torch.bool, device=x.device), float("-inf"))
    partner = torch.arange(len(both), device=x.device).roll(len(x))
    return F.cross_entropy(alike, partner)


LOSSES = {"align-uniform": align_uniform, "info-nce": info_nce}


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


def pretrain(
    settings: Settings,
    folder: Path,
    *,
    workers: int = 1,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Train, or go on where the folder's state is. True when it is finished; then weights and card are there."""
    require_free(folder, Prior)
    return train(Prior(settings, workers=workers), folder, steps=settings.steps, watch=watch, stop=stop)


def learned(settings: Settings, folder: Path | None = None) -> nn.Module:
    """The trunk as it was before the first step, or as a finished prior's folder has it."""
    encoder = Encoder(settings.model, (3, settings.side, settings.side), hidden=GROUPS, seed=settings.seed)
    if folder is not None:
        tensors, _ = safetensors.load(folder / "weights.safetensors", encoder.weights())
        encoder.trunk.load_state_dict({n: t for n, t in tensors.items() if n in encoder.trunk.state_dict()})
    return encoder.trunk


@torch.no_grad()
def recognised(trunk: nn.Module, process: str, *, side: int, first: int, classes: int = 200, seed: int = 0) -> float:
    """Share of views whose nearest neighbour is a view of the same image, among `classes` images from `first` on.

    Each image is a class of its own, and was never trained on: so this tells whether an encoder learned to see. Nothing
    private and nothing real is looked at.
    """
    pixels = draw(process, range(first, first + classes), side=side, seed=seed)
    whole = to_tensor(pixels).unsqueeze(1)
    views = Augment(PART + CHANGED)(whole, UnitRandom(seed, np.arange(classes)), 2)
    known, asked = (F.normalize(_seen(trunk, views[:, k]), dim=1) for k in (0, 1))
    return float(((asked @ known.T).argmax(1) == torch.arange(classes)).double().mean())


def _seen(trunk: nn.Module, images: Tensor) -> Tensor:
    """One row for each image, maps averaged, about the mean of all."""
    features = torch.cat([trunk(part) for part in images.split(100)])
    if features.ndim > 2:
        features = features.flatten(2).mean(2)
    return features - features.mean(0)


class Prior(Task):
    """The encoder, its momenta and the losses so far."""

    name = "prior"

    def __init__(self, settings: Settings, *, workers: int = 1) -> None:
        self.settings, self.workers = settings, workers
        self.curve: list[tuple[int, float]] = []  # step and loss
        shape = (3, settings.side, settings.side)
        self.encoder = Encoder(settings.model, shape, hidden=settings.hidden, seed=settings.seed)
        self.weights = dict(self.encoder.named_parameters())
        self.momenta = [torch.zeros_like(p) for p in self.weights.values()]
        self._pairs: Iterator[tuple[Tensor, Tensor]] | None = None  # from the first step on

    def descend(self) -> float:
        settings = self.settings
        if self._pairs is None:
            self._pairs = pairs(
                settings.process,
                side=settings.side,
                finer=settings.finer,
                batch=settings.batch,
                images=settings.images,
                steps=range(self.step, settings.steps),
                seed=settings.seed,
                workers=self.workers,
            )
        views = torch.cat(next(self._pairs))

        def slope() -> tuple[Tensor, list[Tensor]]:
            loss = LOSSES[settings.loss](*self.encoder(views).chunk(2))
            return loss.detach(), list(torch.autograd.grad(loss, list(self.weights.values())))

        rate, mu, decay = settings.rate(self.step), settings.momentum, settings.decay
        loss = optimisers.sgd(self.weights, self.momenta, slope, rate=rate, mu=mu, decay=decay).item()
        self.step += 1
        if self.step % CURVE_EVERY == 0:
            self.curve.append((self.step, loss))
        return loss

    def begun_with(self) -> dict[str, dict[str, str]]:
        return {"other settings": {"format": FORMAT, "settings": json.dumps(asdict(self.settings))}}

    def position(self) -> dict[str, str]:
        return {**super().position(), "curve": json.dumps(self.curve)}

    def go_to(self, header: Mapping[str, str]) -> None:
        super().go_to(header)
        self.curve = finite_curve(header["curve"])

    def tensors(self) -> dict[str, Tensor]:
        momenta = {f"momentum.{number}": tensor for number, tensor in enumerate(self.momenta)}
        return {**{f"encoder.{n}": t for n, t in self.encoder.state_dict().items()}, **momenta}

    def publish(self, folder: Path) -> None:
        """The trunk, and a card that says where it comes from."""
        seen = {"images_seen": self.step * self.settings.batch, "seconds": round(self.seconds, 1)}
        header = {"format": FORMAT, "process": self.settings.process, "seed": str(self.settings.seed)}
        write_weights(folder, self.encoder.weights(), header, {**asdict(self.settings), **seen, "curve": self.curve})


class Encoder(nn.Module):
    """Images -> rows of length 1: the trunk of a network under a projection, which is thrown away afterwards.

    The trunk is what comes before the head, its last normalisation and its pooling; these two are for private images to
    learn first (Tang et al. 2023).
    """

    def __init__(self, name: str, shape: Shape, *, hidden: int = 4096, seed: int = 0) -> None:
        super().__init__()
        model = build(name, shape, classes=2, seed=seed)
        self.trunk = trunk_of(model, name)
        head = head_name(model) + "."
        self._others = {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(head)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = self.trunk(torch.zeros(1, *shape)).flatten(1).shape[1]
            self.projection = projection(width, hidden)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.projection(self.trunk(images).flatten(1)), dim=1)

    def weights(self) -> dict[str, Tensor]:
        """The trunk's, by the names that they have in the whole network, and what it has besides but the head."""
        return {**self._others, **self.trunk.state_dict()}


def projection(width: int, hidden: int) -> nn.Sequential:
    """Two hidden layers with GroupNorm, then a linear map to 128 numbers."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(width, hidden, bias=False), nn.GroupNorm(GROUPS, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(hidden, OUT))


def trunk_of(model: nn.Module, name: str) -> nn.Sequential:
    """What comes before the head, its pooling and the normalisation before that, if there is one."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear):
        raise ConfigError(f"{name}: only a sequence of layers with a linear head can be pretrained. Fix: wrn-16-4.")
    end = len(model) - 1
    while end and not any(p.requires_grad for p in model[end - 1].parameters()):
        end -= 1
    if end and not any(isinstance(m, nn.Conv2d | nn.Linear) for m in model[end - 1].modules()):
        end -= 1
    if not end:
        raise ConfigError(f"{name}: nothing comes before its head, so there is nothing to pretrain. Fix: wrn-16-4.")
    return nn.Sequential(*list(model)[:end])


def pairs(
    process: str, *, side: int, finer: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each step two views of `batch` images, each (batch, 3, side, side) in [-1, 1].

    Images are drawn `finer` times as large, so that a small part of one still has detail, and there are `images`
    different ones: every pass takes them in another order. A step depends on its number alone, so a run can go on
    anywhere.
    """
    part, changed = Augment(PART), Augment(CHANGED)
    drawn = _drawn(process, side=side * finer, batch=batch, images=images, steps=steps, seed=seed, workers=workers)
    for step, pixels in zip(steps, drawn, strict=True):
        whole = to_tensor(pixels).unsqueeze(1)
        rng = UnitRandom((seed << 40) + step, np.arange(batch))
        small = F.avg_pool2d(part(whole, rng, 2).flatten(0, 1), finer).unflatten(0, (-1, 2))
        views = changed(small, rng, 2)
        yield views[:, 0], views[:, 1]


def _drawn(
    process: str, *, side: int, batch: int, images: int, steps: range, seed: int, workers: int
) -> Iterator[NDArray[np.uint8]]:
    """The images of each step, in the step's order."""
    wanted = (chosen(np.arange(images), step, batch=batch, seed=seed) for step in steps)
    shape = (images, side, side, 3)
    if math.prod(shape) > KEEP:
        yield from stream(process, (rows.tolist() for rows in wanted), side=side, seed=seed, workers=workers)
        return
    kept, asked = np.empty(shape, dtype=np.uint8), np.zeros(images, dtype=np.bool_)
    waiting: deque[tuple[NDArray[np.int64], NDArray[np.int64]]] = deque()

    def missing() -> Iterator[list[int]]:
        for rows in wanted:
            new = rows[~asked[rows]]
            asked[new] = True
            waiting.append((rows, new))
            yield new.tolist()

    for pixels in stream(process, missing(), side=side, seed=seed, workers=workers):
        rows, new = waiting.popleft()
        kept[new] = pixels
        yield kept[rows]
