"""Canaries in private training: the real PrivateSum with its sampler, clipping, noise and charge, on a small model.

Sampler, rate, steps, clipping, noise and device are those of the run. The model is linear and its loss is its output,
so the gradient of a record is the record itself. Canary j is a multiple of the j-th unit vector with a norm far above
C, and clipping turns it into C e_j. (As an image, it has one bright channel: however its views are cropped, flipped,
cut out or mixed, their mean gradient has the same direction.) Gradients do not depend on the weights, so no weights are
updated. Views, public vectors and the transition between phases are the same as in real training. In addition to the
canaries there are ordinary records, whose gradients use other coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.audit.canaries import (
    FRESH,
    CanaryRandom,
    CanaryRun,
    Floats,
    OnProgress,
    Scores,
    Trials,
    score_releases,
    score_runs,
)
from dpvision.core.events import Exposure
from dpvision.core.gate import Gate
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Split
from dpvision.errors import ConfigError
from dpvision.models.device import CPU
from dpvision.models.inputs import Inputs
from dpvision.private.engine import STYLES, ClippedSum, Public
from dpvision.private.training.private_sum import Fetch, PrivateSum, fetcher
from dpvision.public import assist
from dpvision.settings.training import Config
from dpvision.views import Views

# Number of ordinary records, and the side of an image in pixels.
OTHERS, SIDE = 16, 4
# Norm of a canary's gradient before clipping, in units of C.
NORM = 1e4
# Number of canaries in a run: fewer if each one has several views.
IN_A_RUN, IN_A_RUN_OF_VIEWS = 500, 100
# Augmentations that apply to any number of channels. The others are left out: clipping bounds whatever they return.
ON_ANY_CHANNELS = ("crop", "flip", "cutout")


@dataclass(frozen=True)
class Training:
    """The mechanism of a private training run, without its data."""

    sampler: PoissonSampler
    sigma: float
    clip: float = 1.0
    style: str = "flat"
    views: Views | None = None
    assist: str = "none"
    hand_over: int | None = None  # the step from which twice the number of weights is trained, as in a second phase
    device: torch.device = CPU
    precision: str = "float32"


class LinearSum(nn.Module):
    """A sum of linear maps of one row, so that each map's gradient is the row; an image is averaged over pixels."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        row = x.mean((2, 3)) if x.ndim == 4 else x
        return torch.stack([linear(row) for linear in self.maps]).sum(0)


def output_as_loss(outputs: Tensor, _targets: Tensor) -> Tensor:
    """Return the model's output as its loss."""
    return outputs[:, 0]


def training_of(config: Config, *, device: torch.device | str = "cpu") -> Training:
    """Return the mechanism of a run, from its complete settings."""
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
        hand_over=config.probe_steps or (config.part == "centred-head") + (config.objective == "balanced") or None,
        device=torch.device(device),
        precision="float32" if config.precision == "tf32" and torch.device(device).type == "cpu" else config.precision,
    )


def score_canaries(
    config: Config,
    *,
    canaries: int,
    rng: CanaryRandom = FRESH,
    device: torch.device | str = "cpu",
    progress: OnProgress = lambda *_: None,
) -> Scores:
    """Execute the mechanism of a run with at least `canaries` canaries in total, without its data, and score them."""
    training = training_of(config, device=device)
    together = IN_A_RUN if training.views is None else IN_A_RUN_OF_VIEWS
    return training_scores(training, Trials.of(canaries, together=together, rng=rng, progress=progress))


def training_scores(training: Training, trials: Trials) -> Scores:
    """Run the training with canaries, half of them inserted, and score them."""
    claimed = training.sampler.event(training.sigma)
    exposure = Exposure(claimed.rate, claimed.sigma, claimed.steps)

    def score_run(run: CanaryRun) -> Floats:
        charge = run.charge(training.sampler.event(training.sigma * trials.rng.noise), run.name)
        private_sum = PrivateSum(
            Gate(charge, run.key, training.sampler, name=run.name),
            _clipped_sum(training, trials.canaries, layers=1),
            views=1 if training.views is None else training.views.count,
            device=training.device,
        )
        z = _project_steps(private_sum, training, run.inside, trials.rng.public(run.number))
        return score_releases(z, exposure)

    return score_runs(score_run, claimed, exposure, trials)


def _project_steps(
    private_sum: PrivateSum, training: Training, inside: NDArray[np.bool_], public: np.random.Generator
) -> Floats:
    """Project every step's noisy sum onto the direction of each canary; return a (steps, canaries) array."""
    canaries, layers = len(inside), 1
    units, fetch = int(inside.sum()) + OTHERS, _fetch(training, inside)
    z = np.empty((training.sampler.steps, canaries))
    for step in range(training.sampler.steps):
        if step == training.hand_over:
            layers = 2
            private_sum.sum_with(_clipped_sum(training, canaries, layers=layers))
        vectors = _public_vectors(training, layers * (canaries + OTHERS), public)
        noisy = private_sum.step(step, units, fetch, vectors).numpy().reshape(layers, -1)
        projection = noisy.sum(0)[:canaries] / np.sqrt(layers)  # canary j is (e_j, ..., e_j) / sqrt(layers)
        z[step] = projection * training.sampler.batch / training.clip
    return z


def _clipped_sum(training: Training, canaries: int, *, layers: int) -> ClippedSum:
    return ClippedSum(
        LinearSum(canaries + OTHERS, layers).to(training.device),
        output_as_loss,
        clip=STYLES[training.style](training.clip),
        one_view=training.views is None,
        views=1 if training.views is None else training.views.count,
        batch=training.sampler.batch,
        precision=training.precision,
    )


def _fetch(training: Training, inside: NDArray[np.bool_]) -> Fetch:
    """Return the real fetcher over inserted canaries and ordinary records, as rows or images with a bright channel."""
    width = len(inside) + OTHERS
    present = np.concatenate([np.flatnonzero(inside), np.arange(len(inside), width)])
    rows = (NORM * training.clip * np.eye(width, dtype=np.float32))[present]
    if training.views is not None:
        rows = np.broadcast_to(rows[:, :, None, None], (*rows.shape, SIDE, SIDE))
    split = Split(np.empty((len(rows), 1, 1, 1)), np.zeros(len(rows), np.int64), None)
    return fetcher(split, "image", Inputs(split, rows), training.views, training.device)


def _public_vectors(training: Training, size: int, rng: np.random.Generator) -> Public | None:
    """Return the public vectors of an assisting method, from random gradients instead of those of public images."""
    sampler, views = training.sampler, 1 if training.views is None else training.views.count
    settings = SimpleNamespace(
        views=views, radius=0.1, adaptive=False, horizon=1.0, floor=0.1,
        steps=sampler.steps, n=sampler.n, batch=sampler.batch,
    )  # fmt: skip

    def gradients(count: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(count, size))).float()

    moment = assist.Moment(torch.ones(size), 0, settings, gradients)
    return assist.assist(training.assist, moment).public
