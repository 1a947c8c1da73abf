"""Fit a diffusion model to public images. A fit can be stopped after any step and resumed with the same result.

The output folder holds weights.safetensors (averaged weights, for sampling), card.json (settings, images seen, seconds,
digest of the public data), contact sheets grid-STEP.png of samples during training, and state.safetensors, from which a
later call resumes, even after the end. The learning rate is constant and the weights are averaged, so a fit can end at
any time.

Images may be augmented by rotations, shifts and so on (Karras et al. 2022, appendix F.2). The network receives nine
numbers that describe the augmentation, and sampling sets them to zero: the network learns from rotated images, but its
samples are not rotated.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models import seeded
from dpvision.models.device import find_device
from dpvision.models.inputs import to_tensor
from dpvision.public.diffusion.methods import METHODS, ema_decay
from dpvision.public.diffusion.model import ModelSpec, draw_sheet, to_bytes
from dpvision.public.diffusion.unet import UNet
from dpvision.public.optimisers import Adam
from dpvision.public.provenance import ENTRY, merge_provenance, provenance_of
from dpvision.public.settings import FitSettings
from dpvision.public.trainer import (
    MAX_STEPS,
    Control,
    Progress,
    Task,
    mix_seed,
    require_free,
    save,
    train,
    write_weights,
)

SAVE_EVERY = 120.0  # seconds
FIRST_GRID = 500  # step of the first sheet of samples; each next one comes at twice the step
GRID_COLUMNS, GRID_STEPS = 8, 18


@dataclass(frozen=True)
class Augment:
    """Probabilities and sizes of augmentations. Do not mirror images in which left and right differ, such as digits."""

    probability: float = 0.0  # of each augmentation except the horizontal flip; 0.12 in the paper
    flip: bool = False  # mirror images horizontally with probability 1/2
    scale: float = 0.2  # standard deviation of log2 of the scale
    stretch: float = 0.2  # standard deviation of log2 of the stretch along a random axis
    shift: float = 0.125  # standard deviation, in sides

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1 or min(self.scale, self.stretch, self.shift) < 0:
            raise ConfigError(f"augmentation needs a probability from 0 to 1 and sizes of at least 0, not {self}.")

    def __bool__(self) -> bool:
        return self.flip or self.probability > 0


def fit(
    spec: ModelSpec,
    settings: FitSettings,
    images: np.ndarray,
    labels: np.ndarray,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    provenance: str = "",
    device: torch.device | str = "cpu",
    **control: Unpack[Control],
) -> bool:
    """Fit, or resume, until `steps` steps or `minutes` are reached in total; return False if stopped earlier.

    `images` are public, (N, H, W, C), uint8 or in [0, 1]; `labels` are (N,) indices into the spec's classes.
    `provenance` is the record (provenance.py) of the original image files.
    """
    if steps is None and minutes is None:
        raise ConfigError("a fit needs a limit. Fix: use --steps N or --minutes M.")
    if (steps is not None and steps < 1) or (minutes is not None and not 0 < minutes < math.inf):
        raise ConfigError("a fit needs at least one step and more than 0 minutes. Fix: use --steps or --minutes.")
    require_labelled_images(spec, images, labels)
    require_free(folder, Fit)
    task = Fit(spec, settings, images, labels, provenance=provenance, device=device)

    control.setdefault("save_every", SAVE_EVERY)
    watch = control.get("progress", lambda _: None)

    def after_step(state: Progress) -> None:
        watch(state)
        if state.step % FIRST_GRID == 0 and (state.step // FIRST_GRID).bit_count() == 1:
            save(task, folder)
            task.publish(folder)

    control["progress"] = after_step
    return train(
        task, folder, steps=steps or MAX_STEPS, seconds=math.inf if minutes is None else 60 * minutes, **control
    )


def require_labelled_images(spec: ModelSpec, images: np.ndarray, labels: np.ndarray) -> None:
    """Require images of the spec's shape with labels, at least one of every class."""
    channels, height, width = spec.shape
    if images.ndim != 4 or images.shape[1:] != (height, width, channels) or labels.shape != images.shape[:1]:
        raise DataError(
            f"public images: arrays of shape {images.shape} and {labels.shape} are not labelled {spec.shape} images."
        )
    if len(images) == 0:
        raise DataError("public images: there are none. Fix: use images of every class.")
    if labels.min() < 0 or labels.max() >= len(spec.classes):
        raise DataError(f"public images: some labels are not from 0 to {len(spec.classes) - 1}.")
    counts = np.bincount(labels, minlength=len(spec.classes))
    if 0 in counts:
        name = spec.classes[int(counts.argmin())]
        raise DataError(f"public images: class {name!r} has none. Fix: use images of every class.")


def digest_images(images: np.ndarray, labels: np.ndarray) -> str:
    """Return a digest of images and labels, which depends on their order."""
    digest = hashlib.blake2b(json.dumps([images.shape, str(images.dtype)]).encode(), digest_size=32)
    digest.update(np.ascontiguousarray(images).data)
    digest.update(np.asarray(labels, dtype=np.int64).tobytes())
    return digest.hexdigest()


class Fit(Task):
    """A network, its averaged weights, Adam's moments, and the public images it is trained on."""

    name, extendable = "fit", True

    def __init__(
        self,
        spec: ModelSpec,
        settings: FitSettings,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        provenance: str = "",
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec, self.settings, self.device = spec, settings, find_device(str(device))
        self.public = digest_images(images, labels)
        self.provenance = merge_provenance((provenance, provenance_of(images)))
        self._y = to_tensor(images).to(self.device)
        self._classes = torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(self.device)
        self.network = spec.build(seed=settings.seed).to(self.device)
        self.mean = spec.build(seed=settings.seed).to(self.device).eval().requires_grad_(False)
        self.adam = Adam(self.network)

    def train_step(self) -> float:
        """Take one step of Adam on a batch drawn with replacement.

        Random numbers depend only on (seed, step), except those of dropout, which also depend on the device.
        """
        settings, augment = self.settings, Augment(self.settings.augment, self.settings.flip)
        with seeded(mix_seed(settings.seed, self.step), self.device):
            rows = torch.randint(len(self._y), (settings.batch,)).to(self.device)
            y, numbers = self._y[rows], None
            if augment:
                y, numbers = augment_images(y, augment)
            loss, gradients = self._gradients(y, self._classes[rows], numbers)
        self.step += 1
        seen = self.step * settings.batch
        self.adam.update(gradients, step=self.step, rate=settings.lr * min(1.0, seen / max(settings.warm, 1)))
        decay = ema_decay(seen, settings.batch, half_life=settings.half_life)
        with torch.no_grad():
            for mean, weight in zip(self.mean.parameters(), self.adam.weights, strict=True):
                mean.lerp_(weight, 1 - decay)
        return loss

    def _gradients(self, y: Tensor, labels: Tensor, numbers: Tensor | None) -> tuple[float, Sequence[Tensor]]:
        """Return the mean loss of a batch and its gradients, accumulated over microbatches."""
        compute_loss, total, sums = METHODS[self.spec.method].loss, 0.0, None
        for piece in torch.arange(len(y), device=y.device).tensor_split(self.settings.pieces):
            part = None if numbers is None else numbers[piece]
            loss = compute_loss(self.network, y[piece], labels[piece], part) * (len(piece) / len(y))
            gradients = self.adam.gradients(loss)
            total += loss.item()
            sums = gradients if sums is None else [a.add_(b) for a, b in zip(sums, gradients, strict=True)]
        assert sums is not None
        return total, sums

    def started_with(self) -> dict[str, dict[str, str]]:
        settings = {**self.spec.header(), "settings": json.dumps(asdict(self.settings))}
        return {"other settings": settings, "other public images": {"public": self.public}}

    def tensors(self) -> dict[str, Tensor]:
        return {**self.adam.tensors(), **{f"mean.{n}": w for n, w in self.mean.named_parameters()}}

    def publish(self, folder: Path) -> None:
        """Write the averaged weights, a contact sheet of samples and a card."""
        spec, settings = self.spec, self.settings
        header = {**spec.header(), "public": self.public, "step": str(self.step), ENTRY: self.provenance}
        rows = min(len(spec.classes), 20)
        samples = _draw_samples(spec, self.mean, rows, self.device)
        files.write(folder / f"grid-{self.step}.png", draw_sheet(samples, columns=GRID_COLUMNS), mode=0o644)
        card = {
            **json.loads(spec.header()["model"]),
            **asdict(settings),
            "weights": sum(p.numel() for p in self.mean.parameters()),
            "steps": self.step,
            "images_seen": self.step * settings.batch,
            **self.effort(),
            "public": self.public,
        }
        write_weights(folder, self.mean.state_dict(), header, card)


@torch.no_grad()
def _draw_samples(spec: ModelSpec, network: UNet, rows: int, device: torch.device) -> np.ndarray:
    """Draw samples, always from the same noise, so that two sheets can be compared."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(rows * GRID_COLUMNS, *spec.shape, dtype=torch.float64, generator=rng).to(device)
    labels = torch.arange(rows, device=device).repeat_interleave(GRID_COLUMNS)
    method = METHODS[spec.method]
    sigmas = method.sigmas(min(GRID_STEPS, method.steps))
    generator = torch.Generator().manual_seed(0)
    return to_bytes(method.sampler(spec.denoiser(network), noise, labels, sigmas=sigmas, rng=generator))


def augment_images(x: Tensor, augment: Augment) -> tuple[Tensor, Tensor]:
    """Augment images (B, C, H, W), and describe each augmentation by nine numbers (B, 9).

    The numbers are: mirroring in x and in y; scale; cos - 1 and sin of the rotation; cos and sin of the axis, times the
    stretch; shift in x and in y. A number is 0 if nothing was changed. Scale, stretch and shift are in standard
    deviations. Random numbers come from torch's default generator.
    """
    count, device = len(x), x.device

    def bernoulli(probability: float) -> Tensor:
        return (torch.rand(count).to(device) < probability).float()

    def normal() -> Tensor:
        return torch.randn(count).to(device)

    def angle() -> Tensor:
        return (2 * torch.rand(count).to(device) - 1) * math.pi

    p = augment.probability
    mirror_x, mirror_y = bernoulli(0.5 * augment.flip), bernoulli(0.5 * augment.flip * p)
    scale, turn = normal() * bernoulli(p), angle() * bernoulli(p)
    axis, stretch = angle(), normal() * bernoulli(p)
    shifted = bernoulli(p)
    shift = torch.stack([normal() * shifted, normal() * shifted], dim=1)
    linear = [mirror_x, mirror_y, scale, turn.cos() - 1, turn.sin(), stretch * axis.cos(), stretch * axis.sin()]
    numbers = torch.cat([torch.stack(linear, dim=1), shift], dim=1)
    zoom, aspect = 2 ** (augment.scale * scale), 2 ** (augment.stretch * stretch)
    matrix = _diagonal(1 - 2 * mirror_x, 1 - 2 * mirror_y) @ _diagonal(zoom, zoom) @ _rotation(turn)
    matrix = matrix @ _rotation(axis) @ _diagonal(aspect, 1 / aspect) @ _rotation(-axis)
    changed = numbers.ne(0).any(1)[:, None, None, None]
    return torch.where(changed, _warp(x, matrix, augment.shift * shift), x), numbers


def _warp(x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """Map each image by u -> matrix u + shift, in units of its side about its centre, reflecting it at its borders."""
    height, width = x.shape[2:]
    sides = torch.tensor([width, height], device=x.device, dtype=x.dtype)
    inverse = torch.linalg.inv(matrix)
    # grid_sample takes the source of each pixel in units of half a side, with -1 and 1 at the borders.
    aspect = sides / sides.max()
    linear = inverse * aspect[None, None, :] / aspect[None, :, None]
    offset = -2 * (linear @ shift[:, :, None])
    grid = F.affine_grid(torch.cat([linear, offset], dim=2), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bicubic", padding_mode="reflection", align_corners=False)


def _diagonal(a: Tensor, b: Tensor) -> Tensor:
    zero = torch.zeros_like(a)
    return torch.stack([a, zero, zero, b], dim=1).reshape(-1, 2, 2)


def _rotation(angle: Tensor) -> Tensor:
    c, s = angle.cos(), angle.sin()
    return torch.stack([c, -s, s, c], dim=1).reshape(-1, 2, 2)
