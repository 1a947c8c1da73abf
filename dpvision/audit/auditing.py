"""What can be tested of a finished run: its mechanism by canaries in other runs of it, its model by its losses.

The first takes the run's settings and no data: the sampler, rate, steps, clipping and noise of the run, around a model
of few weights (training_canaries.py). The second reads private images, so what it finds is for the operator.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.audit.canaries import FRESH, CanaryRandom, Progress, Scores
from dpvision.audit.losses import cross_entropies
from dpvision.audit.membership import Membership, attack_success
from dpvision.audit.training_canaries import Training, training_scores
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Split, load
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import Inputs
from dpvision.released.model import Model, load_model
from dpvision.settings.training import Config
from dpvision.views import Views

# Canaries that share a run: fewer where each is several images.
IN_A_RUN, IN_A_RUN_OF_VIEWS = 500, 100
# What can be done to images of any number of channels; the others are left out: clipping bounds whatever they make.
ON_ANY_CHANNELS = ("crop", "flip", "cutout")


def mechanism_of(config: Config) -> Training:
    """The run's mechanism, from its complete settings."""
    if not (config.batch and config.n and config.steps and config.sigma):
        raise ConfigError("config.toml: batch, n, steps and sigma must be there; those of a finished run are.")
    views = None
    if config.views > 1:
        augment = tuple(name for name in config.augment if name in ON_ANY_CHANNELS)
        base = config.k_base + config.k_diff  # public images beside it: here, views of the canary itself
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


def canary_scores(
    config: Config, *, canaries: int, rng: CanaryRandom = FRESH, progress: Progress = lambda *_: None
) -> Scores:
    """Scores of at least as many canaries, half of them in, of the run's mechanism."""
    training = mechanism_of(config)
    together = min(canaries, IN_A_RUN if training.views is None else IN_A_RUN_OF_VIEWS)
    return training_scores(training, canaries=together, runs=math.ceil(canaries / together), rng=rng, progress=progress)


def losses_of(folder: Path, source: str, *, most: int = 10_000) -> tuple[Membership, dict[str, NDArray[np.float64]]]:
    """The loss-threshold attack on a run's model: images of the training split against those of the test split."""
    made = load_model(folder)
    data = load(source, classes=list(made.classes), size=made.shape[1:], channels=made.shape[0])
    if data.test is None:
        raise DataError(f"{source}: it has no test split, so there are no images to compare with.")
    members, others = (_losses(made, split, most) for split in (data.train, data.test))
    found = attack_success(-members[0], -others[0], classes=(members[1], others[1]))
    return found, {"members": -members[0], "others": -others[0]}


def _losses(made: Model, split: Split, most: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    labels = np.asarray(split.labels[:most])
    return cross_entropies(answers(made, split, most=most), labels), labels


def answers(made: Model, split: Split, *, most: int | None = None) -> NDArray[np.float64]:
    """(N, classes) scores of a model for the records of a split, or for the first `most` of them."""
    inputs, count = Inputs(split), len(split) if most is None else min(most, len(split))
    found = []
    for start in range(0, count, 1024):
        with torch.no_grad():
            found.append(made.model(inputs(slice(start, min(start + 1024, count)))).double().numpy())
    return np.concatenate(found)


def of_membership(found: Membership, classes: tuple[str, ...]) -> dict[str, Any]:
    """As plain values, for files in operator/."""
    named = {classes[k]: auc for k, auc in found.by_class.items()}
    return {**asdict(found), "found": {f"{k:g}": v for k, v in found.found.items()}, "by_class": named}
