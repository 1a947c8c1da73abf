"""Audits of a finished run: its mechanism by canaries in other runs of it, its model by its losses.

The first takes the run's settings and no data: sampler, rate, steps, clipping and noise of the run, around a model of
few weights (training_canaries.py). The second reads private images, so its results are not for release.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.audit.canaries import FRESH, CanaryRandom, OnProgress, Scores
from dpvision.audit.membership import Membership, cross_entropies, evaluate_attack
from dpvision.audit.training_canaries import Training, training_scores
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Split, load
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import Inputs
from dpvision.released.model import Model, load_model
from dpvision.settings.training import Config
from dpvision.views import Views

# Canaries that share a run: fewer if each one is several images.
IN_A_RUN, IN_A_RUN_OF_VIEWS = 500, 100
# Augmentations that apply to any number of channels. The others are left out: clipping bounds whatever they return.
ON_ANY_CHANNELS = ("crop", "flip", "cutout")


def training_of(config: Config) -> Training:
    """The mechanism of a run, from its complete settings."""
    if not (config.batch and config.n and config.steps and config.sigma):
        raise ConfigError("config.toml: batch, n, steps and sigma are required; a finished run has them.")
    views = None
    if config.views > 1:
        augment = tuple(name for name in config.augment if name in ON_ANY_CHANNELS)
        base = config.k_base + config.k_diff  # mixtures with public images are replaced by views of the canary alone
        views = Views(augment, base=base, self_mix=config.k_self, alpha=config.mix_alpha, mix=config.mix, classes=2)
    return Training(
        PoissonSampler(config.batch, config.n, config.steps),
        config.sigma,
        clip=config.clip,
        style=config.clip_style,
        views=views,
        assist=config.assist,
        hand_over=config.probe_steps or (1 if config.part == "centred-head" else None),
    )


def score_canaries(
    config: Config, *, canaries: int, rng: CanaryRandom = FRESH, progress: OnProgress = lambda *_: None
) -> Scores:
    """Run the mechanism with at least `canaries` canaries in all, half of them inserted, and score them."""
    training = training_of(config)
    together = min(canaries, IN_A_RUN if training.views is None else IN_A_RUN_OF_VIEWS)
    return training_scores(training, canaries=together, runs=math.ceil(canaries / together), rng=rng, progress=progress)


def attack_losses(
    folder: Path, source: str, *, most: int = 10_000
) -> tuple[Membership, dict[str, NDArray[np.float64]]]:
    """The loss-threshold attack on a run's model, training images against test images, and the scores of both."""
    model = load_model(folder)
    data = load(source, classes=list(model.classes), size=model.shape[1:], channels=model.shape[0])
    if data.test is None:
        raise DataError(f"{source}: it has no test split, so there are no images to compare with.")
    scores = {}
    for name, split in {"members": data.train, "others": data.test}.items():
        scores[name] = -cross_entropies(predict_scores(model, split, most=most), split.labels[:most])
    classes = data.train.labels[:most], data.test.labels[:most]
    return evaluate_attack(scores["members"], scores["others"], classes=classes), scores


def predict_scores(model: Model, split: Split, *, most: int | None = None) -> NDArray[np.float64]:
    """(N, classes) scores of a model for the records of a split, or for the first `most` of them."""
    inputs, count = Inputs(split), len(split) if most is None else min(most, len(split))
    scores = []
    for start in range(0, count, 1024):
        with torch.no_grad():
            scores.append(model.model(inputs(slice(start, min(start + 1024, count)))).double().numpy())
    return np.concatenate(scores)
