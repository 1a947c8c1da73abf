"""Networks that measures of quality look through, by name.

    name         features    weights                                     what its distance is called
    inception    2,048       a file (benchmarks/inception_weights.py)    FID, if they are what FID is defined with
    dinov2       384         a file of DINOv2's ViT-S/14                 FID (dinov2)
    scattering   324, 972    none: nothing in it is learned              FID (scattering)
    classifier   256         none: it learns from the real images        FID (classifier)

Distances of two networks cannot be compared, nor can a stand-in's with a published FID.
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
from dpvision.public.quality.classifier import Training, train
from dpvision.public.quality.inception import Inception
from dpvision.public.quality.pictures import Pictures

Progress = Callable[[int, int], None]

NETWORKS = ("inception", "dinov2", "scattering", "classifier")
AT_A_TIME, PIECE_ON_CPU, PIECE_ELSEWHERE = 256, 8, 64
# Digest of the weights before the head that FID is defined with, their batch normalisation folded.
STANDARD_INCEPTION = "c9754e76551bf83b62ddec4bd42717fe3db91402fdd4f960365b5445ba177364"
WEB = "which may contain images of benchmarks"


@dataclass(frozen=True, eq=False)
class Network:
    """Features of each image alone, and the classes that it tells apart, if it does."""

    name: str  # also says where it is not what the name promises
    parts: Featured
    origin: str  # where it comes from, for a report
    standard: bool = False  # whether it is the one that FID is defined with
    weights: str | None = None  # digest of the file
    has_classes: bool = False

    def features(self, pictures: Pictures, progress: Progress = lambda *_: None) -> Tensor:
        """(N, width) float32 on the network's device; a row has the same bits whatever other images are there."""
        device = next(iter((*self.parts.parameters(), *self.parts.buffers()))).device
        found = []
        for start in range(0, len(pictures), AT_A_TIME):
            images = pictures.tensor(slice(start, start + AT_A_TIME)).to(device)
            found.append(self.parts.features(images).flatten(1).float())
            progress(min(start + AT_A_TIME, len(pictures)), len(pictures))
        return torch.cat(found)

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """(N, classes) of rows of features."""
        if not self.has_classes:
            raise ConfigError(f"the network {self.name!r} tells no classes apart. Fix: the network 'classifier'.")
        return torch.cat([self.parts.rest(part).softmax(1) for part in features.split(AT_A_TIME)])


def network(
    name: str,
    real: Pictures,
    *,
    weights: Path | None = None,
    classes: int | None = None,
    training: Training | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Network:
    """The network for images of the real ones' shape; only "classifier" learns from them (`classes`, `training`)."""
    if name not in NETWORKS:
        raise ConfigError(f"there is no network named {name!r}. There are: {', '.join(NETWORKS)}.")
    if name in ("inception", "dinov2"):
        if weights is None:
            where = {
                "inception": "`python -m benchmarks.inception_weights inception.safetensors` makes them",
                "dinov2": "give those of DINOv2's ViT-S/14 as safetensors, with the names of the original model",
            }
            raise ConfigError(f"the network {name!r} needs weights. Fix: --weights FILE; {where[name]}.")
        found = _inception(real, weights) if name == "inception" else _dinov2(real, weights)
    elif weights is not None:
        raise ConfigError(f"the network {name!r} takes no weights, so {weights} would not be used. Fix: leave it out.")
    elif name == "scattering":
        found = _scattering(real)
    else:
        found = _classifier(real, classes, training or Training(), device, progress)
    found.parts.to(device)
    if found.parts.piece is not None:
        found.parts.piece = PIECE_ON_CPU if torch.device(device).type == "cpu" else PIECE_ELSEWHERE
    return found


def _inception(real: Pictures, weights: Path) -> Network:
    model = Inception(real.shape).eval()
    digest = load_public(model, weights)
    standard = digest_of_trunk(model) == STANDARD_INCEPTION
    return Network(
        "inception" if standard else "inception, other weights",
        split_head(model),
        f"Inception-v3 (Google, 2015) trained on ImageNet, {WEB}; as the file {weights.name} has it",
        standard=standard,
        weights=digest,
        has_classes=bool(model.head.weight.any()),
    )


def _dinov2(real: Pictures, weights: Path) -> Network:
    model = build("dinov2-vits14", real.shape, classes=2, seed=0).eval()
    digest = load_public(model, weights)
    origin = f"DINOv2 ViT-S/14 (Meta) trained on web images, {WEB}; as the file {weights.name} has it"
    return Network("dinov2", split_head(model), origin, weights=digest)


def _scattering(real: Pictures) -> Network:
    """Means over the four quarters of the image: where things are matters, but not to the pixel."""
    layers = nn.Sequential(
        Scattering(real.shape), NormaliseChannels(real.shape[0]), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    origin = "wavelet scattering transform (Bruna and Mallat 2013), means of four quarters; nothing in it is learned"
    return Network("scattering", Featured(layers, nn.Identity(), piece=None), origin)


def _classifier(
    real: Pictures, classes: int | None, training: Training, device: torch.device | str, progress: Progress
) -> Network:
    if classes is None:
        raise ConfigError("the network 'classifier' needs to know how many classes there are.")
    model = train(real, training, classes=classes, device=device, progress=progress)
    origin = f"{training.model}, trained for {training.steps:,} steps on the very real images that it then looks at"
    return Network("classifier", split_head(model), origin, has_classes=True)


def digest_of_trunk(model: Inception) -> str:
    """Names the weights that make the features, whatever file they came in."""
    found = hashlib.blake2b(digest_size=32)
    for name, tensor in model.state_dict().items():
        if not name.startswith("head."):
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(tensor.float().contiguous().numpy().tobytes())
    return found.hexdigest()
