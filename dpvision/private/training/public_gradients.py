"""What public images contribute to each private step: batches drawn by the step's number, their gradients, the method.

Rank 0 computes public gradients, at weights that noisy sums made, and hands them to the others: all ranks compute with
the same bits. A public batch is a function of (seed, step, number of the batch): a resumed run draws the same one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.private.training.phases import Phase
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State
from dpvision.private.training.units import fetcher
from dpvision.public import assist
from dpvision.public.assist import Assisted
from dpvision.views import Views


class Assistant:
    """Turns the state before a step into what assists it."""

    def __init__(self, prepared: Prepared, phase: Phase, model: nn.Module, team: Team) -> None:
        self._config, self._phase, self._team = prepared.config, phase, team
        public = prepared.synthetic
        assert public is not None  # or the settings would have been refused
        config, views = prepared.config, None
        if not config.as_it_is:
            views = Views(config.augment, base=1, classes=len(prepared.data.classes))
        self._fetch = fetcher(public, "image", prepared.inputs(public, model), views)
        self._images = len(public.labels)

    def __call__(self, state: State) -> tuple[State, Assisted]:
        """The phase's network must hold the state's weights."""
        made = assist.assist(
            self._config.assist,
            assist.Moment(
                state.weights, state.step, self._config, lambda count: self._gradients(state, count), state.second
            ),
        )
        return (state if made.second is None else replace(state, second=made.second)), made

    def _gradients(self, state: State, count: int) -> Tensor:
        """(count, size): mean gradients of as many public batches, the same on all ranks."""
        found = torch.empty(count, len(state.weights))
        if self._team.first:
            for number in range(count):
                found[number] = self._gradient(state.step, number)
        return self._team.from_first(found)

    def _gradient(self, step: int, number: int) -> Tensor:
        rng = np.random.default_rng([self._config.seed, step, number])
        size = min(self._config.public_batch, self._images)
        rows = np.sort(rng.choice(self._images, size, replace=False))
        images, targets, _ = self._fetch(rows, int(rng.integers(1 << 62)))
        found = assist.mean_gradient(self._phase.learner, self._phase.loss, images, targets)
        if not bool(found.isfinite().all()):
            raise ConfigError(
                f"step {step}: the gradient of the public images is not a number any more: the training has diverged. "
                "What was charged stays charged. Fix: a new run with a smaller --lr."
            )
        return found
