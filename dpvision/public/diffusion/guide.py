"""Fits a discriminator to public images and samples of a fitted model: a folder for `dpvision synth sample --guide`.

First the extractor learns to name the classes of noisy public images, then the discriminator learns to tell them from
samples. The folder holds samples.npz, weights.safetensors, card.json and state.safetensors, from which a stopped fit
goes on exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import to_tensor
from dpvision.public import provenance
from dpvision.public.diffusion import guidance
from dpvision.public.diffusion.edm import c_in, c_noise, over
from dpvision.public.diffusion.fit import digest, require_public
from dpvision.public.diffusion.guidance import Discriminator, Extractor
from dpvision.public.diffusion.model import Kind, kind_in, load
from dpvision.public.diffusion.sample import Draw, sample
from dpvision.public.diffusion.sampler import Guide
from dpvision.public.optimisers import Adam
from dpvision.public.trainer import Progress, Task, require_free, seeded, train, write_weights
from dpvision.storage import safetensors

FORMAT = "dpvision-guide-1"
Labelled = tuple[np.ndarray, np.ndarray]  # images (N, H, W, C) and labels (N,)


@dataclass(frozen=True)
class Settings:
    """Of one discriminator. Kim et al. use a batch of 128, lr 3e-4 and weight decay 1e-7, which is as good as none."""

    samples: int = 2000  # drawn from the model; as many as there are public images is fair
    extractor_steps: int = 1000
    steps: int = 1000
    batch: int = 64  # half of it real
    lr: float = 3e-4
    width: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            min(self.samples, self.extractor_steps, self.steps) < 1
            or self.batch < 2
            or self.width not in range(8, 513, 4)
        ):
            raise ConfigError("a guide needs at least one sample and step, a batch of 2 and a width of 8, 12, ... 512.")
        if not 0 < self.lr < math.inf or not 0 <= self.seed < 1 << 62:
            raise ConfigError("a guide needs lr above 0 and a seed from 0 to 2^62.")


def fit_guide(
    model: Path,
    settings: Settings,
    images: np.ndarray,
    labels: np.ndarray,
    folder: Path,
    *,
    learned_from: str = "",
    device: str | torch.device = "cpu",
    watch: Callable[[str, int, int], None] = lambda _what, _done, _of: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Draw samples, fit extractor and discriminator; or go on where the folder is. False if stopped before the end.

    `learned_from` is a note (provenance.py) of what the images were made of.
    """
    kind, _, model_digest = load(model)
    require_public(kind, images, labels)
    drawn_path = folder / "samples.npz"
    begun = drawn_path.exists() or drawn_path.with_name("samples.npz.parts").exists()
    if not begun:
        require_free(folder, GuideFit)
    if not drawn_path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw = Draw(count=settings.samples, seed=settings.seed)
        done = sample(model, draw, drawn_path, device=device, watch=lambda at, of: watch("drawing", at, of), stop=stop)
        if not done:
            return False
    drawn = _read(drawn_path, kind, settings.samples)
    real = images, labels
    task = GuideFit(kind, settings, real, drawn, made_for=model_digest, learned_from=learned_from, device=device)

    def seen(_: Progress) -> None:
        extractor, discriminator = task.at().values()
        if discriminator:
            watch("discriminator", discriminator, settings.steps)
        else:
            watch("extractor", extractor, settings.extractor_steps)

    return train(task, folder, steps=task.steps, watch=seen, stop=stop)


def load_guide(folder: Path, model: Path, *, weight: float, device: str | torch.device = "cpu") -> tuple[Guide, str]:
    """The guide of a finished folder, for the model that it was fitted to; and a name for what is drawn with it."""
    path = folder / "weights.safetensors"
    if not path.exists():
        raise DataError(f"{folder}: has no weights.safetensors. Fix: the folder of a finished `dpvision synth guide`.")
    if not math.isfinite(weight):
        raise ConfigError(f"the weight of a guide is a number, not {weight}.")
    header = safetensors.read(path).header
    try:
        if header["guide"] != FORMAT:
            raise ValueError(header["guide"])
        settings = Settings(**json.loads(header["settings"]))
        made_for = header["model_digest"]
    except (*safetensors.UNSOUND, ConfigError) as exc:
        raise DataError(f"{path}: its header is not that of a guide ({exc}). Fix: `dpvision synth guide`.") from exc
    kind, _, model_digest = load(model)
    if kind_in(header, path) != kind or made_for != model_digest:
        raise ConfigError(f"{folder}: was made for another model. Fix: `dpvision synth guide` for this one.")
    with torch.device("meta"):
        network = _networks(kind, settings.width)[1]
    tensors, _ = safetensors.load(path, network.state_dict())
    network.load_state_dict(tensors, assign=True)
    network.to(device).eval().requires_grad_(False)
    return guidance.guide_by(network, weight=weight), f"{header['digest']} x {weight!r}"


def _networks(kind: Kind, width: int) -> tuple[Extractor, Discriminator]:
    extractor = Extractor(kind.shape[0], classes=len(kind.classes), width=width)
    return extractor, Discriminator(extractor, classes=len(kind.classes), width=width)


def _read(path: Path, kind: Kind, count: int) -> Labelled:
    """Our own samples, as they must be."""
    channels, height, width = kind.shape
    try:
        with files.open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            images, labels = arrays["train_images"], arrays["train_labels"]
    except Exception as exc:  # a zip file can be broken in many ways
        raise DataError(f"{path}: cannot be read ({exc}). Fix: another --out.") from exc
    if images.shape != (count, height, width, channels) or images.dtype != np.uint8 or labels.shape != (count,):
        raise DataError(f"{path}: holds other samples than asked for. Fix: another --out.")
    return images, labels.astype(np.int64)


class GuideFit(Task):
    """Extractor and discriminator, Adam's moments of both, and the images that they learn from.

    All steps of the extractor come first, then those of the discriminator.
    """

    name, goes_on = "guide", True

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        real: Labelled,
        drawn: Labelled,
        *,
        made_for: str,
        learned_from: str = "",
        device: str | torch.device = "cpu",
    ) -> None:
        self.kind, self.settings, self.device = kind, settings, torch.device(device)
        self.sources = {"model_digest": made_for, "public": digest(*real)}
        self.learned_from = provenance.joined((learned_from, provenance.note(real[0])))
        self.steps = settings.extractor_steps + settings.steps
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            extractor, discriminator = _networks(kind, settings.width)
        self.extractor, self.discriminator = extractor.to(device), discriminator.to(device)
        learning = torch.nn.ModuleDict({n: m for n, m in discriminator.named_children() if n != "extractor"})
        self.adam = {"extractor": Adam(extractor), "discriminator": Adam(learning)}
        self._real, self._drawn = (
            (to_tensor(images).to(device), torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(device))
            for images, labels in (real, drawn)
        )

    def descend(self) -> float:
        """One step of one of the two; all coins are a function of (seed, which, step)."""
        settings, first = self.settings, self.settings.extractor_steps
        what, at = ("extractor", self.step) if self.step < first else ("discriminator", self.step - first)
        with seeded(settings.seed, 2 * at + (what == "discriminator"), self.device):
            half = settings.batch // 2
            y, labels = _some(self._real, half)
            if what == "extractor":
                x, sigma = guidance.noisy(y)
                odds = self.extractor.named(c_in(over(sigma, x)) * x, c_noise(sigma))
                loss = F.cross_entropy(odds, labels)
            else:
                loss = guidance.loss(self.discriminator, y, labels, *_some(self._drawn, settings.batch - half))
            gradients = self.adam[what].gradients(loss)
        self.adam[what].descend(gradients, step=at + 1, rate=settings.lr)
        self.step += 1
        return loss.item()

    def at(self) -> dict[str, int]:
        """Steps of each that are done."""
        first = min(self.step, self.settings.extractor_steps)
        return {"extractor": first, "discriminator": self.step - first}

    def begun_with(self) -> dict[str, dict[str, str]]:
        return {"another model, images or settings": self._named()}

    def position(self) -> dict[str, str]:
        return {"at": json.dumps(self.at())}

    def go_to(self, header: Mapping[str, str]) -> None:
        found = json.loads(header["at"])
        self.step = sum(int(found[name]) for name in self.adam)
        if not 0 <= self.step <= self.steps or found != self.at():
            raise ValueError(f"it would be at {header['at']}")

    def tensors(self) -> dict[str, Tensor]:
        return {f"{what}.{name}": t for what, adam in self.adam.items() for name, t in adam.tensors().items()}

    def publish(self, folder: Path) -> None:
        """The discriminator and a card; the state stays, so that the same command says that it is done."""
        header = {**self._named(), "learned_from": self.learned_from}
        card = {"format": FORMAT, **asdict(self.settings), **self.sources}
        write_weights(folder, self.discriminator.state_dict(), header, card)

    def _named(self) -> dict[str, str]:
        return {**self.kind.header(), **self.sources, "guide": FORMAT, "settings": json.dumps(asdict(self.settings))}


def _some(images: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    x, labels = images
    chosen = torch.randint(len(x), (count,), device=x.device)
    return x[chosen], labels[chosen]
