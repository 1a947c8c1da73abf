"""Applies the rule of `auto` (settings/auto.py): collects the public numbers of a data set and of this machine.

Of the images, only the number of units and the shape are used, which are declared or stated on the card as read from
the data.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from dpvision.data import Dataset
from dpvision.errors import ConfigError
from dpvision.models import Featured, Shape, build
from dpvision.models.featured import head_name
from dpvision.settings import auto
from dpvision.settings.symmetry import with_symmetry
from dpvision.settings.training import Config
from dpvision.storage import weights

TRIED = 16  # random images per thread, to measure the time of features


def choose_recipe(config: Config, data: Dataset, units: int, device: torch.device) -> Config:
    """Return the settings that `auto` chooses for `units` units, which the data has if n is not declared."""
    if config.minutes is not None and config.unit != "image":
        raise ConfigError(
            f"--minutes with --unit {config.unit}: the time depends on the number of images, which is not public. "
            "Fix: use --recipe and --model instead, for instance --recipe patches --model patches-256."
        )
    encoder = weights.network_at_hand(config.pretrained)
    numbers = auto.Numbers(
        n=config.n or units,
        shape=shape_of(data),
        epsilon=config.epsilon,
        delta=config.delta,
        encoder=encoder,
        minutes=config.minutes,
    )
    resolved = auto.resolve(
        config,
        numbers,
        width=lambda model: width_of(model, numbers.shape),
        seconds=lambda model: (
            numbers.n * seconds_per_image(with_symmetry(model, config.symmetry), numbers.shape, device)
        ),
    )
    if encoder is not None and not resolved.pretrained:
        resolved = replace(resolved, pretrained=str(weights.find(encoder)))
    return resolved


def choose_encoder(data: Dataset, *, n: int, epsilon: float) -> tuple[str, str]:
    """Return the encoder that `auto` chooses for a release, and the reason."""
    return auto.choose_encoder(
        auto.Numbers(n=n, shape=shape_of(data), epsilon=epsilon, encoder=weights.network_at_hand())
    )


def shape_of(data: Dataset) -> Shape:
    """Return the channels, height and width of the images."""
    height, width, channels = data.train.images.shape[1:]
    return channels, height, width


def width_of(model: str, shape: Shape) -> int:
    """Return the number of features before the head of a model."""
    with torch.device("meta"):  # shapes only
        network = build(model, shape, classes=2, seed=0)
    return int(network.get_submodule(head_name(network)).get_parameter("weight").shape[1])


def seconds_per_image(model: str, shape: Shape, device: torch.device) -> float:
    """Measure the time that a model needs for the features of an image, on random images."""
    network = build(model, shape, classes=2, seed=0).to(device)
    assert isinstance(network, Featured)
    images = (torch.rand(TRIED * torch.get_num_threads(), *shape) * 2 - 1).to(device)
    with torch.no_grad():
        network.features(images)  # the first call has setup costs
        began = time.perf_counter()
        network.features(images).cpu()
    return (time.perf_counter() - began) / len(images)
