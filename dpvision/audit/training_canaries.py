"""Canaries in private training: PrivateSum itself, its sampler, clipping, noise and charge; a model of few weights.

The model is linear and its loss is its output, so a record's gradient is the record: canary j is a multiple of the j-th
unit vector, far longer than C, and clipping makes it C e_j. (As an image, it has one bright channel: whatever is
cropped, flipped, cut out or mixed of its views, their mean gradient points the same way.) The gradient depends on no
weight, so no training need take place; views, public vectors and the hand-over from one phase to the next are those of
train.py. Beside the canaries there are ordinary records, with gradients in coordinates of their own.
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
    Floats,
    Gathering,
    Progress,
    Scores,
    require_canaries,
    score,
    throw_away_ledgers,
)
from dpvision.core.events import Exposure
from dpvision.core.gate import Gate
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Split
from dpvision.models.inputs import Inputs
from dpvision.private.engine import STYLES, ClippedSum, Public
from dpvision.private.training.private_sum import Fetch, PrivateSum
from dpvision.private.training.units import fetcher
from dpvision.public import assist
from dpvision.views import Views

OTHERS, SIDE = 16, 4
# How many times longer than C a canary's gradient is before it is clipped.
LENGTH = 1e4


@dataclass(frozen=True)
class Training:
    """A private training as far as its mechanism goes."""

    sampler: PoissonSampler
    sigma: float
    clip: float = 1.0
    style: str = "flat"
    views: Views | None = None
    assist: str = "none"
    hand_over: int | None = None  # from this step on, twice as many weights are learned


class Layers(nn.Module):
    """A sum of linear maps of the same row: the gradient of each is the row, of an image its mean over pixels."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        row = x.mean((2, 3)) if x.ndim == 4 else x
        return torch.stack([layer(row) for layer in self.each]).sum(0)


def the_output(outputs: Tensor, _targets: Tensor) -> Tensor:
    return outputs[:, 0]


def training_scores(
    training: Training,
    *,
    canaries: int = 500,
    runs: int = 20,
    rng: CanaryRandom = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """Scores of `canaries` canaries in each of `runs` runs, half of them in and half of them out."""
    require_canaries(canaries, runs)
    claimed, true_sigma = training.sampler.event(training.sigma), training.sigma * rng.noise
    met = Exposure(claimed.rate, claimed.sigma, claimed.steps)
    found = Gathering(claimed, (met,))
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = rng.split(run, canaries), rng.key(run)
            charged = charge(training.sampler.event(true_sigma), key, f"run {run}")
            private_sum = PrivateSum(
                Gate(charged, key, training.sampler, name=f"run {run}"),
                _clipped_sum(training, canaries, layers=1),
                views=1 if training.views is None else training.views.count,
            )
            z = _seen(private_sum, training, inside, rng.public(run))
            found.add(score(z, met), inside)
            progress(run + 1, runs)
    return found.scores()


def _seen(
    private_sum: PrivateSum, training: Training, inside: NDArray[np.bool_], public: np.random.Generator
) -> Floats:
    """(steps, canaries): what the adversary looks at of each release."""
    canaries, layers = len(inside), 1
    units, fetch = int(inside.sum()) + OTHERS, _fetch(training, inside)
    z = np.empty((training.sampler.steps, canaries))
    for step in range(training.sampler.steps):
        if step == training.hand_over:
            layers = 2
            private_sum.sum_with(_clipped_sum(training, canaries, layers=layers))
        vectors = _public(training, layers * (canaries + OTHERS), public)
        noisy = private_sum.step(step, units, fetch, vectors).numpy().reshape(layers, -1)
        along = noisy.sum(0)[:canaries] / np.sqrt(layers)  # canary j is (e_j, ..., e_j) / sqrt(layers)
        z[step] = along * training.sampler.batch / training.clip
    return z


def _clipped_sum(training: Training, canaries: int, *, layers: int) -> ClippedSum:
    style = STYLES[training.style](training.clip)
    return ClippedSum(
        Layers(canaries + OTHERS, layers), the_output, clip=style, one_view=training.views is None, physical=None
    )


def _fetch(training: Training, inside: NDArray[np.bool_]) -> Fetch:
    """The real fetcher, over canaries that are in and others, as rows or as images of one bright channel."""
    width = len(inside) + OTHERS
    there = np.concatenate([np.flatnonzero(inside), np.arange(len(inside), width)])
    rows = (LENGTH * training.clip * np.eye(width, dtype=np.float32))[there]
    if training.views is not None:
        rows = np.broadcast_to(rows[:, :, None, None], (*rows.shape, SIDE, SIDE))
    split = Split(np.empty((len(rows), 1, 1, 1)), np.zeros(len(rows), np.int64), None)
    return fetcher(split, "image", Inputs(split, rows), training.views)


def _public(training: Training, size: int, rng: np.random.Generator) -> Public | None:
    """What a method takes from public images: here from gradients that were drawn at random."""
    sampler, views = training.sampler, 1 if training.views is None else training.views.count
    settings = SimpleNamespace(
        views=views, radius=0.1, adaptive=False, horizon=1.0, floor=0.1,
        steps=sampler.steps, n=sampler.n, batch=sampler.batch,
    )  # fmt: skip

    def gradients(count: int) -> Tensor:
        return torch.from_numpy(rng.normal(size=(count, size))).float()

    return assist.assist(training.assist, assist.Moment(torch.ones(size), 0, settings, gradients)).public
