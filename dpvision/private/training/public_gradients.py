"""Public gradients that assist each private step: batches drawn by the step's number, their gradients, the method.

Rank 0 computes public gradients, at weights that come from noisy sums, and sends them to the others: all ranks compute
with the same bits. A public batch is a function of (seed, step, number of the batch): a resumed run draws the same one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.private.training.network import Phase
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.private_sum import fetcher
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State
from dpvision.public import assist
from dpvision.public.assist import Assisted
from dpvision.views import Views


class Assistant:
    """Computes what assists a step from public images and the state before it."""

    def __init__(self, prepared: Prepared, phase: Phase, model: nn.Module, team: Team) -> None:
        self._config, self._phase, self._team = prepared.config, phase, team
        public = prepared.public.images
        assert public is not None  # or the settings would have been refused
        config, views = prepared.config, None
        if not config.as_it_is:
            views = Views(config.augment, base=1, classes=len(prepared.data.classes))
        self._fetch = fetcher(public, "image", prepared.network.load_or_compute_inputs(public, model), views)
        self._images = len(public.labels)

    def __call__(self, state: State) -> tuple[State, Assisted]:
        """Return the state and what assists its next step; the phase's network must hold the state's weights."""
        assisted = assist.assist(
            self._config.assist,
            assist.Moment(
                state.weights, state.step, self._config, lambda count: self._gradients(state, count), state.second
            ),
        )
        return (state if assisted.second is None else replace(state, second=assisted.second)), assisted

    def _gradients(self, state: State, count: int) -> Tensor:
        """Return mean gradients of `count` public batches, (count, size), the same on all ranks."""
        gradients = torch.empty(count, len(state.weights))
        if self._team.first:
            for number in range(count):
                gradients[number] = self._gradient(state.step, number)
        return self._team.from_first(gradients)

    def _gradient(self, step: int, number: int) -> Tensor:
        rng = np.random.default_rng([self._config.seed, step, number])
        size = min(self._config.public_batch, self._images)
        rows = np.sort(rng.choice(self._images, size, replace=False))
        images, targets, _ = self._fetch(rows, int(rng.integers(1 << 62)))
        gradient = assist.mean_gradient(self._phase.learner, self._phase.loss, images, targets)
        if not bool(gradient.isfinite().all()):
            raise ConfigError(
                f"step {step}: the gradient of the public images is not finite: the training has diverged. "
                "What was charged stays charged. Fix: a new run with a smaller --lr."
            )
        return gradient
