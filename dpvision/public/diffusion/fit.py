"""Fits a diffusion model to public images: it can be stopped after any step and goes on as if it had not been.

The folder holds weights.safetensors (mean weights, for samples), card.json (settings, images seen, seconds, digest of
the public data), sheets grid-STEP.png of samples on the way, and state.safetensors, from which a later call goes on,
even after the end. The rate of learning is constant and the weights are averaged, so any moment is a good one to end.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.memory import keep_freed_memory
from dpvision.public import provenance
from dpvision.public.diffusion.adam import Adam, coins
from dpvision.public.diffusion.augment import Augment, augmented
from dpvision.public.diffusion.edm import mean_decay
from dpvision.public.diffusion.model import FORMAT, METHODS, Kind, to_bytes, to_model
from dpvision.public.diffusion.sheet import save_sheet
from dpvision.public.diffusion.unet import UNet
from dpvision.storage import checkpoint, sealed

MOST_STEPS = 1 << 53
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


@dataclass(frozen=True)
class Progress:
    step: int
    loss: float
    done: float  # of the limit that is nearest, from 0 to 1


def fit(
    kind: Kind,
    settings: Settings,
    images: np.ndarray,
    labels: np.ndarray,
    folder: Path,
    *,
    steps: int | None = None,
    minutes: float | None = None,
    originals: str = "",
    device: str | torch.device = "cpu",
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Fit until `steps` steps or `minutes` of fitting are done in all, whichever is first; False if stopped before.

    `images` are (N, H, W, C), uint8 or in [0, 1], and public; `labels` are (N,) indices into the kind's classes.
    `originals` is a note (provenance.py) of the files that they were made of.
    """
    if steps is None and minutes is None:
        raise ConfigError("a fit needs an end. Fix: --steps N or --minutes M.")
    if (steps is not None and steps < 1) or (minutes is not None and not 0 < minutes < math.inf):
        raise ConfigError("a fit lasts at least one step and more than 0 minutes. Fix: --steps or --minutes.")
    require_public(kind, images, labels)
    require_free(folder)
    keep_freed_memory()
    y, classes = to_model(images).to(device), torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(device)
    state = State(kind, settings, digest(images, labels), device)
    state.learned_from = provenance.both((originals, provenance.note(images)))
    state.resume(folder)
    state.save(folder)  # before an hour's work, to see that it can be
    began, saved = time.monotonic() - state.seconds, time.monotonic()

    def done() -> float:
        return max(state.step / (steps or math.inf), state.seconds / (60 * (minutes or math.inf)))

    while done() < 1:
        if stop():
            state.save(folder)
            return False
        loss = state.descend(y, classes)
        state.seconds = time.monotonic() - began
        watch(Progress(state.step, loss, min(done(), 1.0)))
        if _is_grid_step(state.step):
            state.save(folder)
            state.publish(folder)
            saved = time.monotonic()
        elif time.monotonic() - saved > SAVE_EVERY:
            state.save(folder)
            saved = time.monotonic()
    state.save(folder)
    state.publish(folder)
    return True


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
        raise DataError(f"public images: class {name!r} has none, so it can not be learned. Fix: some of every class.")


def require_free(folder: Path) -> None:
    """A new folder, an empty one, or one of a fit: nothing is written over."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is not a folder. Fix: another --out.")
    if not folder.exists() or (folder / "state.safetensors").exists():
        return
    if not all(map(files.left_by_a_kill, folder.iterdir())):
        raise ConfigError(f"{folder}: has other files in it. Fix: a new folder for --out.")


def digest(images: np.ndarray, labels: np.ndarray) -> str:
    found = hashlib.blake2b(json.dumps([images.shape, str(images.dtype)]).encode(), digest_size=32)
    found.update(np.ascontiguousarray(images).data)
    found.update(np.asarray(labels, dtype=np.int64).tobytes())
    return found.hexdigest()


def _is_grid_step(step: int) -> bool:
    return step % FIRST_GRID == 0 and (step // FIRST_GRID).bit_count() == 1


class State:
    """What is between two steps."""

    def __init__(self, kind: Kind, settings: Settings, public: str, device: str | torch.device) -> None:
        self.kind, self.settings, self.public, self.device = kind, settings, public, torch.device(device)
        self.step, self.seconds = 0, 0.0
        self.learned_from = ""
        self.network = kind.network(seed=settings.seed, device=device)
        self.mean = kind.network(seed=settings.seed, device=device).eval().requires_grad_(False)
        self.adam = Adam(self.network)

    def descend(self, y: Tensor, classes: Tensor) -> float:
        """One step of Adam on a batch drawn with replacement; all coins are a function of (seed, step)."""
        settings, how = self.settings, Augment(self.settings.augment, self.settings.flip)
        with coins(settings.seed, self.step, self.device):
            chosen = torch.randint(len(y), (settings.batch,), device=self.device)
            images, numbers = augmented(y[chosen], how) if how else (y[chosen], None)
            told, gradients = self._gradients(images, classes[chosen], numbers)
        if not math.isfinite(told):
            raise ConfigError(f"step {self.step}: the loss is {told}. Fix: a smaller --lr, and a new --out.")
        self.step += 1
        seen = self.step * settings.batch
        self.adam.descend(gradients, step=self.step, rate=settings.lr * min(1.0, seen / max(settings.warm, 1)))
        keep = mean_decay(seen, settings.batch, half_life=settings.half_life)
        with torch.no_grad():
            for mean, weight in zip(self.mean.parameters(), self.adam.weights, strict=True):
                mean.lerp_(weight, 1 - keep)
        return told

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

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        header = {
            **self.kind.header(),
            "settings": json.dumps(asdict(self.settings)),
            "public": self.public,
            "step": str(self.step),
            "seconds": repr(self.seconds),
        }
        files.write(folder / "state.safetensors", checkpoint.dump(self._tensors(), header))

    def resume(self, folder: Path) -> None:
        """Go on from the folder's state, if there is one; model, settings and public images must be the same."""
        path = folder / "state.safetensors"
        if not path.exists():
            return
        header = sealed.read(path).header
        try:
            same = header["model"] == self.kind.header()["model"] and header["format"] == FORMAT
            same = same and Settings(**json.loads(header["settings"])) == self.settings
            public, step, seconds = header["public"], int(header["step"]), float(header["seconds"])
        except sealed.UNSOUND as exc:
            raise DataError(f"{path}: its header is not that of a fit ({exc}). Fix: another --out.") from exc
        if not same:
            raise ConfigError(f"{folder}: was begun with other settings. Fix: the same ones, or another --out.")
        if public != self.public:
            raise ConfigError(f"{folder}: was begun with other public images. Fix: the same ones, or another --out.")
        if not 0 <= step < MOST_STEPS or not 0 <= seconds < math.inf:
            raise DataError(f"{path}: its header is not that of a fit. Fix: another --out.")
        tensors, _ = checkpoint.load(path, self._tensors())
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise DataError(f"{path}: holds weights that are no numbers. Fix: another --out.")
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(tensors[name])
        self.step, self.seconds = step, seconds

    def publish(self, folder: Path) -> None:
        """Mean weights, a sheet of samples and a card: what others use, as it is after this step."""
        kind, settings = self.kind, self.settings
        header = {**kind.header(), "public": self.public, "step": str(self.step), "learned_from": self.learned_from}
        data = checkpoint.dump(self.mean.state_dict(), header)
        files.write(folder / "weights.safetensors", data, mode=0o644)
        rows = min(len(kind.classes), 20)
        save_sheet(folder / f"grid-{self.step}.png", _samples(kind, self.mean, rows, self.device), columns=GRID_COLUMNS)
        card = {
            "format": FORMAT,
            "dpvision": __version__,
            **json.loads(kind.header()["model"]),
            **asdict(settings),
            "weights": sum(p.numel() for p in self.mean.parameters()),
            "steps": self.step,
            "images_seen": self.step * settings.batch,
            "seconds": round(self.seconds, 1),
            "public": self.public,
            "digest": hashlib.blake2b(data, digest_size=32).hexdigest(),
        }
        files.write(folder / "card.json", json.dumps(card, indent=1, allow_nan=False) + "\n", mode=0o644)

    def _tensors(self) -> dict[str, Tensor]:
        return {**self.adam.tensors(), **{f"mean.{n}": w for n, w in self.mean.named_parameters()}}


@torch.no_grad()
def _samples(kind: Kind, network: UNet, rows: int, device: torch.device) -> np.ndarray:
    """The same noise for each sheet, so that one sees what the steps between two of them changed."""
    coins = torch.Generator().manual_seed(0)
    noise = torch.randn(rows * GRID_COLUMNS, *kind.shape, dtype=torch.float64, generator=coins).to(device)
    labels = torch.arange(rows, device=device).repeat_interleave(GRID_COLUMNS)
    method = METHODS[kind.method]
    steps = method.sigmas(min(GRID_STEPS, method.steps))
    generator = torch.Generator(device).manual_seed(0)
    return to_bytes(method.sampler(kind.denoiser(network), noise, labels, sigmas=steps, coins=generator))
