"""Discriminator guidance (Kim et al. 2023): a network that distinguishes real from sampled images corrects sampling.

Both kinds of images are noised, x = y + sigma n. An ideal discriminator with log-odds d(x; sigma) of being real has
d = log p_real(x; sigma) / p_model(x; sigma), so its gradient is the correction to the model's score (theorem 1). The
real images are public, and the samples come from a model of public images: no private image is involved.

First a feature extractor is trained to classify noised public images. Then a discriminator on top of it is trained to
distinguish them from samples. The output folder, for `dpvision synth sample --guide`, holds samples.npz,
weights.safetensors, card.json and state.safetensors, from which a stopped fit resumes with the same result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models import seeded
from dpvision.models.device import find_device
from dpvision.models.inputs import to_tensor
from dpvision.public.diffusion.fit import digest_images, require_labelled_images
from dpvision.public.diffusion.methods import Guide, Network, c_in, c_noise, expand_to, normal_like
from dpvision.public.diffusion.model import ModelSpec, load_diffusion, parse_spec
from dpvision.public.diffusion.sample import SampleSettings, sample
from dpvision.public.diffusion.unet import Block, Embedding, convolution, linear, normalisation
from dpvision.public.optimisers import Adam
from dpvision.public.provenance import ENTRY, merge_provenance, provenance_of
from dpvision.public.settings import GuideSettings
from dpvision.public.trainer import Progress, Task, mix_seed, require_free, train, write_weights
from dpvision.storage import safetensors

FORMAT = "dpvision-guide-1"
LOW, HIGH = 0.05, 80.0  # range of sigma for training and guidance; a sample hardly changes below it
MAX_LOG_ODDS = math.log((1 - 1e-5) / 1e-5)  # D is clamped to [1e-5, 1 - 1e-5], as in the paper's code

Labelled = tuple[np.ndarray, np.ndarray]  # images (N, H, W, C) and labels (N,)


def fit_guide(
    model: Path,
    settings: GuideSettings,
    images: np.ndarray,
    labels: np.ndarray,
    folder: Path,
    *,
    provenance: str = "",
    device: torch.device | str = "cpu",
    progress: Callable[[str, int, int], None] = lambda _phase, _done, _total: None,
    stop: Callable[[], bool] = lambda: False,
    report: Callable[[str], None] = lambda _: None,
) -> bool:
    """Draw samples and fit the extractor and the discriminator, or resume; return False if stopped before the end.

    `provenance` is the record (provenance.py) of the original image files.
    """
    spec, _, model_digest = load_diffusion(model)
    require_labelled_images(spec, images, labels)
    path = folder / "samples.npz"
    if not path.exists():
        if not path.with_name("samples.npz.parts").exists():
            require_free(folder, GuideFit)
        folder.mkdir(parents=True, exist_ok=True)
        sampling = SampleSettings(count=settings.samples, seed=settings.seed)
        if not sample(
            model, sampling, path, device=device, progress=lambda done, of: progress("drawing", done, of), stop=stop
        ):
            return False
    drawn = _read_samples(path, spec, settings.samples)
    real = images, labels
    task = GuideFit(spec, settings, real, drawn, model_digest=model_digest, provenance=provenance, device=device)

    def after_step(_: Progress) -> None:
        extractor, discriminator = task.steps_done().values()
        if discriminator:
            progress("discriminator", discriminator, settings.steps)
        else:
            progress("extractor", extractor, settings.extractor_steps)

    return train(task, folder, steps=task.steps, progress=after_step, stop=stop, report=report)


def load_guide(folder: Path, model: Path, *, weight: float, device: str | torch.device = "cpu") -> tuple[Guide, str]:
    """Load a guide for the model it was fitted to; return it and a name for this guide and weight."""
    path = folder / "weights.safetensors"
    if not path.exists():
        raise DataError(
            f"{folder}: has no weights.safetensors. Fix: give the folder of a finished `dpvision synth guide`."
        )
    if not math.isfinite(weight):
        raise ConfigError(f"weight is {weight}: a guide's weight must be finite.")
    header = safetensors.read(path).header
    try:
        if header["guide"] != FORMAT:
            raise ValueError(header["guide"])
        settings = GuideSettings(**json.loads(header["settings"]))
        fitted_to = header["model_digest"]
    except (*safetensors.UNSOUND, ConfigError) as exc:
        raise DataError(f"{path}: its header is not that of a guide ({exc}). Fix: run `dpvision synth guide`.") from exc
    spec, _, model_digest = load_diffusion(model)
    if parse_spec(header, path) != spec or fitted_to != model_digest:
        raise ConfigError(f"{folder}: was fitted to another model. Fix: run `dpvision synth guide` for this one.")
    with torch.device("meta"):
        network = _networks(spec, settings.width)[1]
    tensors, _ = safetensors.load(path, network.state_dict())
    network.load_state_dict(tensors, assign=True)
    network.to(device).eval().requires_grad_(False)
    return make_guide(network, weight=weight), f"{header['digest']} x {weight!r}"


def _networks(spec: ModelSpec, width: int) -> tuple[Extractor, Discriminator]:
    extractor = Extractor(spec.shape[0], classes=len(spec.classes), width=width)
    return extractor, Discriminator(extractor, classes=len(spec.classes), width=width)


def _read_samples(path: Path, spec: ModelSpec, count: int) -> Labelled:
    """Read the samples that were drawn for this fit, and check their shape."""
    channels, height, width = spec.shape
    try:
        with files.open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            images, labels = arrays["train_images"], arrays["train_labels"]
    except Exception as exc:  # a zip file can be broken in many ways
        raise DataError(f"{path}: cannot be read ({exc}). Fix: use another --out.") from exc
    if images.shape != (count, height, width, channels) or images.dtype != np.uint8 or labels.shape != (count,):
        raise DataError(f"{path}: its samples do not match these settings. Fix: use another --out.")
    return images, labels.astype(np.int64)


class GuideFit(Task):
    """The extractor and the discriminator, Adam's moments for both, and the images they are trained on.

    The extractor is trained first, then the discriminator.
    """

    name, extendable = "guide", True

    def __init__(
        self,
        spec: ModelSpec,
        settings: GuideSettings,
        real: Labelled,
        drawn: Labelled,
        *,
        model_digest: str,
        provenance: str = "",
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec, self.settings, self.device = spec, settings, find_device(str(device))
        self.sources = {"model_digest": model_digest, "public": digest_images(*real)}
        self.provenance = merge_provenance((provenance, provenance_of(real[0])))
        self.steps = settings.extractor_steps + settings.steps
        with seeded(settings.seed):
            extractor, discriminator = _networks(spec, settings.width)
        self.extractor, self.discriminator = extractor.to(self.device), discriminator.to(self.device)
        trained = nn.ModuleDict({n: m for n, m in discriminator.named_children() if n != "extractor"})
        self.adam = {"extractor": Adam(extractor), "discriminator": Adam(trained)}
        self._real, self._drawn = (
            (to_tensor(images).to(self.device), torch.from_numpy(np.asarray(labels, dtype=np.int64)).to(self.device))
            for images, labels in (real, drawn)
        )

    def train_step(self) -> float:
        """Train one of the networks for one step. Random numbers are a function of (seed, network, step)."""
        settings, first = self.settings, self.settings.extractor_steps
        phase, step = ("extractor", self.step) if self.step < first else ("discriminator", self.step - first)
        with seeded(mix_seed(settings.seed, 2 * step + (phase == "discriminator")), self.device):
            half = settings.batch // 2
            y, labels = _draw_batch(self._real, half)
            if phase == "extractor":
                x, sigma = diffuse(y)
                odds = self.extractor.classify(c_in(expand_to(sigma, x)) * x, c_noise(sigma))
                loss = F.cross_entropy(odds, labels)
            else:
                drawn = _draw_batch(self._drawn, settings.batch - half)
                loss = discriminator_loss(self.discriminator, y, labels, *drawn)
            gradients = self.adam[phase].gradients(loss)
        self.adam[phase].update(gradients, step=step + 1, rate=settings.lr)
        self.step += 1
        return loss.item()

    def steps_done(self) -> dict[str, int]:
        """Return the number of completed steps for each network."""
        first = min(self.step, self.settings.extractor_steps)
        return {"extractor": first, "discriminator": self.step - first}

    def started_with(self) -> dict[str, dict[str, str]]:
        return {"another model, images or settings": self._identity()}

    def position(self) -> dict[str, str]:
        return {"at": json.dumps(self.steps_done())}

    def restore_position(self, header: Mapping[str, str]) -> None:
        steps_done = json.loads(header["at"])
        self.step = sum(int(steps_done[name]) for name in self.adam)
        if not 0 <= self.step <= self.steps or steps_done != self.steps_done():
            raise ValueError(f"impossible position {header['at']}")

    def tensors(self) -> dict[str, Tensor]:
        return {f"{phase}.{name}": t for phase, adam in self.adam.items() for name, t in adam.tensors().items()}

    def publish(self, folder: Path) -> None:
        """Write the discriminator and a card. The state is kept, so that repeating the command returns immediately."""
        header = {**self._identity(), ENTRY: self.provenance}
        card = {"format": FORMAT, **asdict(self.settings), **self.sources, **self.effort()}
        write_weights(folder, self.discriminator.state_dict(), header, card)

    def _identity(self) -> dict[str, str]:
        return {**self.spec.header(), **self.sources, "guide": FORMAT, "settings": json.dumps(asdict(self.settings))}


def _draw_batch(images: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    x, labels = images
    rows = torch.randint(len(x), (count,)).to(x.device)
    return x[rows], labels[rows]


def diffuse(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return x = y + sigma n, and sigma, which is log-uniform so that all noise levels have equal weight."""
    sigma = (math.log(LOW) + math.log(HIGH / LOW) * torch.rand(len(y)).to(y.device)).exp()
    return y + expand_to(sigma, y) * normal_like(y), sigma


def log_odds(discriminator: Network, x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
    """Return d(x; sigma) for each x, as (B,). The network's input is scaled to variance 1 at every noise level."""
    return discriminator((c_in(expand_to(sigma, x)) * x).float(), c_noise(sigma).float(), labels, None).flatten()


def discriminator_loss(
    discriminator: Network, real: Tensor, real_labels: Tensor, drawn: Tensor, drawn_labels: Tensor
) -> Tensor:
    """Return the binary cross-entropy with real images labelled 1 (eq. 6). Noise is from torch's default generator."""
    x, sigma = diffuse(torch.cat([real, drawn]))
    odds = log_odds(discriminator, x, sigma, torch.cat([real_labels, drawn_labels]))
    targets = torch.cat([odds.new_ones(len(real)), odds.new_zeros(len(drawn))])
    return F.binary_cross_entropy_with_logits(odds, targets)


def make_guide(discriminator: Network, *, weight: float) -> Guide:
    """Return the function w grad_x log(D / (1 - D)), which a sampler adds to the score (eq. 8)."""

    def guide(x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        if not LOW <= float(sigma[0]) <= HIGH:
            return torch.zeros_like(x)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            odds = log_odds(discriminator, x, sigma, labels).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
            (gradient,) = torch.autograd.grad(odds.sum(), x)
        return weight * gradient

    return guide


class Extractor(nn.Module):
    """A feature extractor for noised images, at a quarter of their resolution, trained to classify public images."""

    def __init__(self, channels: int, *, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = Embedding(width, 4 * width, classes=1)  # depends on the noise level only
        self.enter = nn.Conv2d(channels, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            [
                _block(width, width, 4 * width),
                _block(width, 2 * width, 4 * width, resample=-1),
                _block(2 * width, 2 * width, 4 * width),
            ]
        )
        self.norm, self.name = normalisation(2 * width), linear(2 * width, classes)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        vector = self.embedding(noise, torch.zeros_like(noise, dtype=torch.long), None)
        x = self.enter(x).contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x, vector)
        return x

    def classify(self, x: Tensor, noise: Tensor) -> Tensor:
        """Return class logits (B, classes)."""
        odds: Tensor = self.name(F.silu(self.norm(self(x, noise))).mean((2, 3)))
        return odds


class Discriminator(nn.Module):
    """A discriminator that maps a frozen extractor's features, noise and class to (B, 1) log-odds of being real."""

    def __init__(self, extractor: Extractor, *, classes: int, width: int) -> None:
        super().__init__()
        self.extractor = extractor
        self.embedding = Embedding(width, 4 * width, classes=classes)
        self.enter = convolution(2 * width, width, kernel=1)
        self.blocks = nn.ModuleList([_block(width, width, 4 * width) for _ in range(2)])
        self.norm, self.leave = normalisation(width), nn.Linear(width, 1)
        nn.init.zeros_(self.leave.weight)
        nn.init.zeros_(self.leave.bias)

    def forward(self, x: Tensor, noise: Tensor, labels: Tensor, augment: Tensor | None = None) -> Tensor:
        vector = self.embedding(noise, labels, augment)
        x = self.enter(self.extractor(x, noise))
        for block in self.blocks:
            x = block(x, vector)
        odds: Tensor = self.leave(F.silu(self.norm(x)).mean((2, 3)))
        return odds


def _block(cin: int, cout: int, condition: int, *, resample: int = 0) -> Block:
    return Block(cin, cout, condition, resample=resample, attention=False, dropout=0.0)
