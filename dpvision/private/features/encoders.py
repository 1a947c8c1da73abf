"""Frozen, public functions from an image to a row of features, by name, and the rows of all records.

Formal guarantee: the row of an image is a function of that image alone and of public numbers, so clipping and noise on
rows protect images. This is tested before the first extraction: an encoder that mixes the images of a batch, depends on
their positions or learns from them is refused. Weights trained on private data are refused too, because they reveal
something about that data.

    name                        row                                                            weights
    pixels                      the pixels in [0, 1]; "linear" has them in [-1, 1]             none
    scattering                  the scattering transform; "scatter-linear" standardises it     none
    patches, patches-...        patches of random images, with norm 1                          computed, or a file
    any other model, timm:NAME  the input of its head, flattened                               a safetensors file

Weights that `dpvision weights get` downloaded are found by name. Networks with their own input size resize the
images (bicubic, antialiased); the registry of public weights states how. A timm model is given images at their own
size, in [-1, 1], as in training; its own mean and standard deviation are not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpvision.data import Split, identify
from dpvision.errors import ConfigError, DataError
from dpvision.models import Shape, at_side, build, load_public, split_head
from dpvision.models.device import CPU
from dpvision.models.featured import Featured, Pixels, require_head_last
from dpvision.models.parts import before_head
from dpvision.models.patches import PATCHES
from dpvision.models.scattering import Scattering
from dpvision.private.features import cache
from dpvision.public import dictionary
from dpvision.storage import safetensors
from dpvision.storage import weights as public_weights
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
    """A frozen network; `features` turns images (N, C, H, W) in [-1, 1], of one shape, into rows (N, d)."""

    def __init__(
        self, name: str, shape: Shape, prefix: nn.Module, *, piece: int | None, origin: str, weights: str | None = None
    ) -> None:
        super().__init__(nn.Sequential(prefix, nn.Flatten()), nn.Identity(), piece=piece)
        self.name, self.shape = name, shape
        self.origin = origin  # its source and licence, for a card
        self.weights = weights  # digest of their file; None if nothing is learned

    @property
    def width(self) -> int:
        return cache.shape_of(self, self.shape)[0]


def load_encoder(
    name: str,
    shape: Shape,
    weights: str | Path | None = None,
    *,
    progress: Progress = lambda *_: None,
    device: torch.device = CPU,
) -> Encoder:
    """Return the encoder for images of (channels, height, width), on a device.

    A dictionary of patches is computed if it is not cached.
    """
    return _load(name, shape, weights, progress).to(device)


def _load(name: str, shape: Shape, weights: str | Path | None, progress: Progress) -> Encoder:
    if name == "pixels":
        _require_none(name, weights)
        return Encoder(name, shape, Pixels(), piece=None, origin=ORIGINS[name])
    if name == "scattering":
        _require_none(name, weights)
        return Encoder(name, shape, Scattering(shape), piece=None, origin=ORIGINS[name])
    model_name = "patches-1024" if name == "patches" else name
    base, computed = at_side(model_name, shape)
    if base in PATCHES and weights is None:
        weights = dictionary.load_or_compute(dictionary.DictionarySettings(base, computed), home() / "priors", progress)
    model = build(model_name, shape, classes=2, seed=0).eval()
    parts = before_head(model)
    if not any(True for _ in parts.prefix.parameters()):
        _require_none(name, weights)
        encoder = Encoder(name, shape, parts.prefix, piece=parts.piece, origin=_origin(name, None))
        encoder.reduced_to = parts.reduced_to
        return encoder
    if weights is None and public_weights.is_name(name):
        weights = public_weights.find(name)
    if weights is None:
        raise ConfigError(
            f"the encoder {name!r} needs weights trained on public images. Fix: give a safetensors file of them, "
            "such as `dpvision pretrain` writes; or use the encoder 'scattering', 'patches' or 'pixels'."
        )
    path = public_weights.resolve(weights)
    origin, digest = _origin(name, path), load_public(model, path)
    require_head_last(model, split_head(model), shape)
    origin = public_weights.describe(path, digest).get("origin", origin)
    encoder = Encoder(name, shape, parts.prefix, piece=parts.piece, origin=origin, weights=digest)
    encoder.reduced_to = parts.reduced_to
    return encoder


def extract(encoder: Encoder, split: Split, progress: Progress = lambda *_: None) -> NDArray[np.float32]:
    """Return the (N, d) rows of all records, computed by all workers or mapped from $DPVISION_HOME/features.

    They are as private as the images. A computation that was killed is resumed.
    """
    height, width, channels = split.images.shape[1:]
    if encoder.shape != (channels, height, width):
        raise ConfigError(
            f"the encoder {encoder.name!r} is for images of (channels, height, width) {encoder.shape}, and these are "
            f"{(channels, height, width)}. Fix: load it for their shape."
        )
    key = cache_key(encoder, split)
    if not cache.path_of(key).exists():
        cache.require_separate(encoder, encoder.shape, name=f"the encoder {encoder.name!r}")
    return cache.load_or_compute(encoder, split, key=key, progress=progress)


def cache_key(encoder: Encoder, split: Split) -> tuple[str, ...]:
    """Return everything the rows depend on: records, network, weights, code and machine."""
    shape, piece = str(encoder.shape), str(encoder.piece)
    return identify(split)[1], "rows", encoder.name, shape, piece, cache.digest(encoder), cache.code_version()


def _origin(name: str, weights: Path | None) -> str:
    """Return where the features come from, for a card: the file's own metadata first. Private weights are refused."""
    header = {} if weights is None else safetensors.verified_header(weights)
    if "event" in header or header.get("private", "yes") != "yes":
        raise DataError(
            f"{weights}: was trained on private data, and a public encoder must not reveal any. Fix: use other weights."
        )
    if "process" in header:
        return f"{name} trained on random images ({header['process']}, seed {header.get('seed', '?')}): no photograph"
    if "learned_from" in header:
        assert weights is not None
        return f"{name} with the weights of {weights.name}, trained on images that it lists; none is released here"
    known = next((text for start, text in ORIGINS.items() if name.startswith(start)), None)
    if weights is None:
        return known or f"{name}; {NOTHING_LEARNED}"
    if known is None:
        return f"{name} with the weights of {weights.name}, of unknown origin: declared public by the user"
    return f"{public_weights.declared(known)}: read from the file {weights.name}"


def _require_none(name: str, weights: str | Path | None) -> None:
    if weights is not None:
        raise ConfigError(f"the encoder {name!r} has no weights, so {weights} would not be used. Fix: leave it out.")
