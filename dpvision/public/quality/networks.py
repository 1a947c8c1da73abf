"""Feature networks of the quality measures, by name.

    name         features    weights                                     name of the Fréchet distance
    inception    2,048       a file (benchmarks/inception_weights.py)    FID, if the weights are the standard ones
    dinov2       384         a file of DINOv2's ViT-S/14                 FID (dinov2)
    scattering   324, 972    none: it is not trained                     FID (scattering)
    classifier   256         none: it is trained on the real images      FID (classifier)

Distances for different networks cannot be compared. Only those for the standard Inception network can be compared with
a published FID.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import Featured, build, load_public, split_head
from dpvision.models.scattering import NormaliseChannels, Scattering
from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages, train_classifier
from dpvision.public.quality.inception import Inception

Progress = Callable[[int, int], None]

NETWORKS = ("inception", "dinov2", "scattering", "classifier")
BATCH, PIECE_ON_CPU, PIECE_ELSEWHERE = 256, 8, 64
# Digest of the standard weights for FID, without the head and with folded batch normalisation.
STANDARD_INCEPTION = "c9754e76551bf83b62ddec4bd42717fe3db91402fdd4f960365b5445ba177364"
WEB = "which may contain images of benchmarks"


@dataclass(frozen=True, eq=False)
class Network:
    """A network that computes features of each image independently, and class probabilities if it has classes."""

    name: str  # states it if the weights are not the standard ones
    parts: Featured
    origin: str  # for the report
    standard: bool = False  # whether its Fréchet distance is the standard FID
    weights: str | None = None  # digest of the weight file
    has_classes: bool = False

    def features(self, images: LabelledImages, progress: Progress = lambda *_: None) -> Tensor:
        """Return features (N, width) in float32 on the network's device; the bits of a row depend only on its image."""
        device = next(iter((*self.parts.parameters(), *self.parts.buffers()))).device
        rows = []
        for start in range(0, len(images), BATCH):
            batch = images.tensor(slice(start, start + BATCH)).to(device)
            rows.append(self.parts.features(batch).flatten(1).float())
            progress(min(start + BATCH, len(images)), len(images))
        return torch.cat(rows)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Return class probabilities (N, classes) for rows of features."""
        if not self.has_classes:
            raise ConfigError(f"the network {self.name!r} has no classes. Fix: use the network 'classifier'.")
        return torch.cat([self.parts.rest(batch).softmax(1) for batch in features.split(BATCH)])


def build_network(
    name: str,
    real: LabelledImages,
    *,
    weights: Path | None = None,
    classes: int | None = None,
    settings: ClassifierSettings | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Network:
    """Build a network for images of the shape of `real`. Only "classifier" is trained on them, with `settings`."""
    if name not in NETWORKS:
        raise ConfigError(f"there is no network named {name!r}. There are: {', '.join(NETWORKS)}.")
    if name in ("inception", "dinov2"):
        if weights is None:
            where = {
                "inception": "`python -m benchmarks.inception_weights inception.safetensors` writes them",
                "dinov2": "those of DINOv2's ViT-S/14 as safetensors, with the tensor names of the original model",
            }
            raise ConfigError(f"the network {name!r} needs weights. Fix: use --weights FILE; {where[name]}.")
        network = _inception(real, weights) if name == "inception" else _dinov2(real, weights)
    elif weights is not None:
        raise ConfigError(f"the network {name!r} takes no weights, but --weights is {weights}. Fix: leave it out.")
    elif name == "scattering":
        network = _scattering(real)
    else:
        network = _classifier(real, classes, settings or ClassifierSettings(), device, progress)
    network.parts.to(device)
    if network.parts.piece is not None:
        network.parts.piece = PIECE_ON_CPU if torch.device(device).type == "cpu" else PIECE_ELSEWHERE
    return network


def _inception(real: LabelledImages, weights: Path) -> Network:
    model = Inception(real.shape).eval()
    digest = load_public(model, weights)
    standard = digest_trunk(model) == STANDARD_INCEPTION
    return Network(
        "inception" if standard else "inception, other weights",
        split_head(model),
        f"Inception-v3 (Google, 2015) trained on ImageNet, {WEB}; from the file {weights.name}",
        standard=standard,
        weights=digest,
        has_classes=bool(model.head.weight.any()),
    )


def _dinov2(real: LabelledImages, weights: Path) -> Network:
    model = build("dinov2-vits14", real.shape, classes=2, seed=0).eval()
    digest = load_public(model, weights)
    origin = f"DINOv2 ViT-S/14 (Meta) trained on web images, {WEB}; from the file {weights.name}"
    return Network("dinov2", split_head(model), origin, weights=digest)


def _scattering(real: LabelledImages) -> Network:
    """Average scattering coefficients over each quarter of the image, so that coarse positions matter."""
    layers = nn.Sequential(
        Scattering(real.shape), NormaliseChannels(real.shape[0]), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    origin = "wavelet scattering transform (Bruna and Mallat 2013), averaged over four quarters; not trained"
    return Network("scattering", Featured(layers, nn.Identity(), piece=None), origin)


def _classifier(
    real: LabelledImages,
    classes: int | None,
    settings: ClassifierSettings,
    device: torch.device | str,
    progress: Progress,
) -> Network:
    if classes is None:
        raise ConfigError("the network 'classifier' needs the number of classes.")
    model = train_classifier(real, settings, classes=classes, device=device, progress=progress)
    origin = f"{settings.model}, trained for {settings.steps:,} steps on the same real images it is applied to"
    return Network("classifier", split_head(model), origin, has_classes=True)


def digest_trunk(model: Inception) -> str:
    """Return a digest of the weights before the head, independent of the file format."""
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.float().contiguous().numpy().tobytes())
    return digest.hexdigest()
