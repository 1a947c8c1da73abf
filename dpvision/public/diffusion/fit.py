"""Fits a diffusion model to public images: it can be stopped after any step and goes on as if it had not been.

The folder holds weights.safetensors (mean weights, for samples), card.json (settings, images seen, seconds, digest of
the public data), sheets grid-STEP.png of samples on the way, and state.safetensors, from which a later call goes on,
even after the end. The rate of learning is constant and the weights are averaged, so any moment is a good one to end.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import to_tensor
from dpvision.public import provenance
from dpvision.public.diffusion.augment import Augment, augmented
from dpvision.public.diffusion.edm import mean_decay
from dpvision.public.diffusion.model import METHODS, Kind, sheet, to_bytes
from dpvision.public.diffusion.unet import UNet
from dpvision.public.optimisers import Adam
from dpvision.public.trainer import MOST_STEPS, Progress, Task, require_free, save, seeded, train, write_weights

SAVE_EVERY = 120.0  # seconds
FIRST_GRID = 500  # then after twice as many steps each
GRID_COLUMNS, GRID_STEPS = 8, 18


@dataclass(frozen=True)
class Settings:
    """Of one fit. The paper's are batch 512, lr 0.001, warm 10 million images, of 200 million in all."""

    batch: int = 64
    lr: float = 2e-3
    warm: int = 10_000  # images until the rate of learning is reached
    half_life: float = 500_000  # of the mean of weights, in images; a twentieth of the images seen if that is less
    seed: int = 0
    augment: float = 0.0  # chance of each change of an image; 0.12 in the paper
    flip: bool = False  # every second image is mirrored, as in the paper
    pieces: int = 1  # a batch is computed in so many, where all of it does not fit into memory

    def __post_init__(self) -> None:
        Augment(self.augment, self.flip)
        if (
            not 1 <= self.pieces <= self.batch
            or self.warm < 0
            or not (0 < self.lr < math.inf and 0 < self.half_life < math.inf)
        ):
            raise ConfigError("a fit needs a batch of at least one image, and lr and half-life above 0.")
        if not 0 <= self.seed < 1 << 62:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^62.")


def fit(
    kind: Kind,
    settings: Settings,
    images: np.ndarray,
    labels: np.ndarray,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    learned_from: str = "",
    device: str | torch.device = "cpu",
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Fit until `steps` steps or `minutes` of fitting are done in all, whichever is first; False if stopped before.

    `images` are (N, H, W, C), uint8 or in [0, 1], and public; `labels` are (N,) indices into the kind's classes.
    `learned_from` is a note (provenance.py) of the files that they were made of.
    """
    if steps is None and minutes is None:
        raise ConfigError("a fit needs an end. Fix: --steps N or --minutes M.")
    if (steps is not None and steps < 1) or (minutes is not None and not 0 < minutes < math.inf):
        raise ConfigError("a fit lasts at least one step and more than 0 minutes. Fix: --steps or --minutes.")
    require_public(kind, images, labels)
    require_free(folder, Fit)
    task = Fit(kind, settings, images, labels, learned_from=learned_from, device=device)

    def seen(at: Progress) -> None:
        watch(at)
        if _is_grid_step(at.step):
            save(task, folder)
            task.publish(folder)

    end = math.inf if minutes is None else 60 * minutes
    return train(task, folder, steps=steps or MOST_STEPS, seconds=end, save_every=SAVE_EVERY, watch=seen, stop=stop)


def require_public(kind: Kind, images: np.ndarray, labels: np.ndarray) -> None:
    channels, height, width = kind.shape
    if images.ndim != 4 or images.shape[1:] != (height, width, channels) or labels.shape != images.shape[:1]:
        raise DataError(
            f"public images: arrays of {images.shape} and {labels.shape} are no {kind.shape} images with labels."
        )
    if len(images) == 0:
        raise DataError("public images: there are none. Fix: some of every class.")
    if labels.min() < 0 or labels.max() >= len(kind.classes):
        raise DataError(f"public images: their labels are not all from 0 to {len(kind.classes) - 1}.")
    counts = np.bincount(labels, minlength=len(kind.classes))
    if 0 in counts:
        name = kind.classes[int(counts.argmin())]
        raise DataError(f"public images: class {name!r} has none, so it cannot be learned. Fix: some of every class.")


def digest(images: np.ndarray, labels: np.ndarray) -> str:
    found = hashlib.blake2b(json.dumps([images.shape, str(images.dtype)]).encode(), digest_size=32)
    found.update(np.ascontiguousarray(images).data)
    found.update(np.asarray(labels, dtype=np.int64).tobytes())
    return found.hexdigest()


def _is_grid_step(step: int) -> bool:
    return step % FIRST_GRID == 0 and (step // FIRST_GRID).bit_count() == 1


class Fit(Task):
    """A network, the mean of its weights, Adam's moments, and the public images that they learn from."""

    name, goes_on = "fit", True

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        learned_from: str = "",
        device: str | torch.device = "cpu",
    ) -> None:
        self.kind, self.settings, self.device = kind, settings, torch.device(device)
        self.public = digest(images, labels)
        self.learned_from = provenance.joined((learned_from, provenance.note(images)))
        self._y = to_tensor(images).to(device)
        self._classes = torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(device)
        self.network = kind.network(seed=settings.seed, device=device)
        self.mean = kind.network(seed=settings.seed, device=device).eval().requires_grad_(False)
        self.adam = Adam(self.network)

    def descend(self) -> float:
        """One step of Adam on a batch drawn with replacement; all coins are a function of (seed, step)."""
        settings, how = self.settings, Augment(self.settings.augment, self.settings.flip)
        with seeded(settings.seed, self.step, self.device):
            chosen = torch.randint(len(self._y), (settings.batch,), device=self.device)
            y = self._y[chosen]
            images, numbers = augmented(y, how) if how else (y, None)
            loss, gradients = self._gradients(images, self._classes[chosen], numbers)
        self.step += 1
        seen = self.step * settings.batch
        self.adam.descend(gradients, step=self.step, rate=settings.lr * min(1.0, seen / max(settings.warm, 1)))
        keep = mean_decay(seen, settings.batch, half_life=settings.half_life)
        with torch.no_grad():
            for mean, weight in zip(self.mean.parameters(), self.adam.weights, strict=True):
                mean.lerp_(weight, 1 - keep)
        return loss

    def _gradients(self, y: Tensor, labels: Tensor, numbers: Tensor | None) -> tuple[float, Sequence[Tensor]]:
        """The mean loss of a batch and its gradients, piece by piece."""
        loss_of, total, sums = METHODS[self.kind.method].loss, 0.0, None
        for piece in torch.arange(len(y), device=y.device).tensor_split(self.settings.pieces):
            told = None if numbers is None else numbers[piece]
            loss = loss_of(self.network, y[piece], labels[piece], told) * (len(piece) / len(y))
            gradients = self.adam.gradients(loss)
            total += loss.item()
            sums = gradients if sums is None else [a.add_(b) for a, b in zip(sums, gradients, strict=True)]
        assert sums is not None
        return total, sums

    def begun_with(self) -> dict[str, dict[str, str]]:
        settings = {**self.kind.header(), "settings": json.dumps(asdict(self.settings))}
        return {"other settings": settings, "other public images": {"public": self.public}}

    def tensors(self) -> dict[str, Tensor]:
        return {**self.adam.tensors(), **{f"mean.{n}": w for n, w in self.mean.named_parameters()}}

    def publish(self, folder: Path) -> None:
        """Mean weights, a sheet of samples and a card: what others use, as it is after this step."""
        kind, settings = self.kind, self.settings
        header = {**kind.header(), "public": self.public, "step": str(self.step), "learned_from": self.learned_from}
        rows = min(len(kind.classes), 20)
        samples = _samples(kind, self.mean, rows, self.device)
        files.write(folder / f"grid-{self.step}.png", sheet(samples, columns=GRID_COLUMNS), mode=0o644)
        card = {
            **json.loads(kind.header()["model"]),
            **asdict(settings),
            "weights": sum(p.numel() for p in self.mean.parameters()),
            "steps": self.step,
            "images_seen": self.step * settings.batch,
            "seconds": round(self.seconds, 1),
            "public": self.public,
        }
        write_weights(folder, self.mean.state_dict(), header, card)


@torch.no_grad()
def _samples(kind: Kind, network: UNet, rows: int, device: torch.device) -> np.ndarray:
    """The same noise for each sheet, so that one sees what the steps between two of them changed."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(rows * GRID_COLUMNS, *kind.shape, dtype=torch.float64, generator=rng).to(device)
    labels = torch.arange(rows, device=device).repeat_interleave(GRID_COLUMNS)
    method = METHODS[kind.method]
    steps = method.sigmas(min(GRID_STEPS, method.steps))
    generator = torch.Generator(device).manual_seed(0)
    return to_bytes(method.sampler(kind.denoiser(network), noise, labels, sigmas=steps, rng=generator))
