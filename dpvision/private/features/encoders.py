"""Frozen, public functions from an image to a row of features, by name, and the rows of all records.

Formal guarantee: an encoder's row of an image is a function of that image alone and of public numbers, so a release of
clipped and noised rows is a release about images. By trial before the first extraction: an encoder that mixes the
images of a batch, looks at their places or learns from them is refused. Weights of a private training are refused too,
as they tell about their own data.

    name                        row                                                            weights
    pixels                      the pixels in [0, 1]; "linear" has them in [-1, 1]             none
    scattering                  the scattering transform; "scatter-linear" standardises it     none
    patches, patches-...        patches of random images, of length 1                          made here, or a file
    any other model, timm:NAME  what its head gets, flattened                                  a safetensors file

A model of timm gets images of the size they have, in [-1, 1], as in a training; its own mean and deviation are not
applied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dpvision.data import Split, identify
from dpvision.errors import ConfigError, DataError
from dpvision.models import Featured, Shape, build, load_public, split_head
from dpvision.models.featured import Pixels, require_head_last
from dpvision.models.parts import Centred
from dpvision.models.patches import PATCHES
from dpvision.models.scattering import Scattering
from dpvision.private.features import cache
from dpvision.public import dictionary
from dpvision.storage import safetensors
from dpvision.storage.home import home

Progress = Callable[[int, int], None]

WEB = "which may contain images of benchmarks"
NOTHING_LEARNED = "nothing in it is learned"
ORIGINS = {
    "pixels": f"the pixels themselves, scaled to [0, 1]; {NOTHING_LEARNED}",
    "linear": f"the pixels themselves, scaled to [-1, 1]; {NOTHING_LEARNED}",
    "scattering": f"wavelet scattering transform (Bruna and Mallat 2013); {NOTHING_LEARNED}",
    "scatter-linear": f"wavelet scattering transform, standardised by constants of a random process; {NOTHING_LEARNED}",
    "dinov2-vits14": f"DINOv2 ViT-S/14 (Meta), Apache-2.0, trained without labels on web images, {WEB}",
    "efficientnet-lite0": f"EfficientNet-Lite0 (Google), Apache-2.0, trained on ImageNet, {WEB}",
}


class Encoder(Featured):
    """`features` gives images (N, C, H, W) in [-1, 1], of one shape, as rows (N, d)."""

    def __init__(
        self, name: str, shape: Shape, prefix: nn.Module, *, piece: int | None, origin: str, weights: str | None = None
    ) -> None:
        super().__init__(nn.Sequential(prefix, nn.Flatten()), nn.Identity(), piece=piece)
        self.name, self.shape = name, shape
        self.origin = origin  # where it comes from and under which licence, for a card
        self.weights = weights  # digest of their file; None where nothing is learned

    @property
    def width(self) -> int:
        return cache.shape_of(self, self.shape)[0]


def encoder(
    name: str, shape: Shape, weights: str | Path | None = None, *, progress: Progress = lambda *_: None
) -> Encoder:
    """The encoder for images (channels, height, width); `progress` is of a dictionary of patches that is made."""
    if name == "pixels":
        _require_none(name, weights)
        return Encoder(name, shape, Pixels(), piece=None, origin=ORIGINS[name])
    if name == "scattering":
        _require_none(name, weights)
        return Encoder(name, shape, Scattering(shape), piece=None, origin=ORIGINS[name])
    model_name = "patches-1024" if name == "patches" else name
    if model_name in PATCHES and weights is None:
        weights = dictionary.load_or_compute(
            dictionary.DictionarySettings(model_name, shape), home() / "priors", progress
        )
    model = build(model_name, shape, classes=2, seed=0).eval()
    parts = _before_head(model)
    if not any(True for _ in parts.prefix.parameters()):
        _require_none(name, weights)
        return Encoder(name, shape, parts.prefix, piece=parts.piece, origin=_origin(name, None))
    if weights is None:
        raise ConfigError(
            f"the encoder {name!r} has weights that something public must have taught. Fix: give a safetensors file of "
            "them, such as `dpvision pretrain` makes; or the encoder 'scattering', 'patches' or 'pixels'."
        )
    path = Path(weights)
    origin, digest = _origin(name, path), load_public(model, path)
    require_head_last(model, split_head(model), shape)
    return Encoder(name, shape, parts.prefix, piece=parts.piece, origin=origin, weights=digest)


def extract(encoder: Encoder, split: Split, progress: Progress = lambda *_: None) -> NDArray[np.float32]:
    """(N, d), memory-mapped from $DPVISION_HOME/features: computed once, by all ranks, and gone on with after a kill.

    They are as private as the images.
    """
    height, width, channels = split.images.shape[1:]
    if encoder.shape != (channels, height, width):
        raise ConfigError(
            f"the encoder {encoder.name!r} is for images of (channels, height, width) {encoder.shape}, and these are "
            f"{(channels, height, width)}. Fix: make it for their shape."
        )
    of = named(encoder, split)
    if not cache.file(of).exists():
        cache.require_separate(encoder, encoder.shape, name=f"the encoder {encoder.name!r}")
    return cache.kept(encoder, split, of=of, progress=progress)


def named(encoder: Encoder, split: Split) -> tuple[str, ...]:
    """What the rows depend on: records, network, weights, code and machine."""
    shape, piece = str(encoder.shape), str(encoder.piece)
    return identify(split)[1], "rows", encoder.name, shape, piece, cache.digest(encoder), cache.made_by()


def _before_head(model: nn.Module) -> Featured:
    """The fixed part of a model that has one and nothing but a head behind it; otherwise all before its head."""
    if isinstance(model, Featured):
        learned = [m for m in model.rest.modules() if m._parameters and not isinstance(m, Centred)]
        if len(learned) == 1:
            return model
    return split_head(model)


def _origin(name: str, weights: Path | None) -> str:
    """For a card. What a file says of itself comes first; private weights are refused."""
    said = {} if weights is None else safetensors.verified_header(weights)
    if "event" in said or said.get("private", "yes") != "yes":
        raise DataError(
            f"{weights}: was trained on private data, and a public encoder must not tell about any. Fix: other weights."
        )
    if "process" in said:
        return f"{name} taught by random images ({said['process']}, seed {said.get('seed', '?')}): no photograph"
    if "learned_from" in said:
        assert weights is not None
        return f"{name} with the weights of {weights.name}, taught by images that the file notes; none is released here"
    known = next((text for start, text in ORIGINS.items() if name.startswith(start)), None)
    if weights is None:
        return known or f"{name}; {NOTHING_LEARNED}"
    if known is None:
        return f"{name} with the weights of {weights.name}, of unknown origin: who chose them takes them for public"
    return f"{known}; as the file {weights.name} has it"


def _require_none(name: str, weights: str | Path | None) -> None:
    if weights is not None:
        raise ConfigError(f"the encoder {name!r} has no weights, so {weights} would not be used. Fix: leave it out.")
