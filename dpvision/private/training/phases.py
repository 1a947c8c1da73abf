"""Which weights a step learns, and how fast: a function of the step's number, fixed before the training.

The steps of a training are all the same mechanism, Poisson sampling and noise of sigma times the clipping norm. That
the first of them learn the head alone (Tang et al. 2023, Phase II), or the mean of the features, changes what is
summed, not what it tells: one event, one charge, one noise multiplier for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.models.parts import CENTRE
from dpvision.private.engine import Loss
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.state import trainable
from dpvision.settings.training import Config


@dataclass(frozen=True)
class Phase:
    """Steps `first` to `end` - 1. Its network is a copy of its own, in which the phase's part is trainable."""

    first: int
    end: int
    part: str
    lr: float
    learner: nn.Module  # what the clipped sum differentiates
    loss: Loss
    before: nn.Module | None  # what the learner's input goes through first and does not learn: done once
    _all: list[nn.Parameter]  # of its network: what the whole training learns
    _here: Tensor  # which numbers of the state's flat vector this phase learns

    def load(self, weights: Tensor) -> None:
        """Put the state's weights into the network."""
        vector_to_parameters(weights, self._all)

    def spread(self, gradient: Tensor) -> Tensor:
        """The gradient of this phase's part as one of all weights that are learned: zero where nothing is."""
        return torch.zeros(len(self._here)).masked_scatter(self._here, gradient)


def phases(prepared: Prepared) -> list[Phase]:
    """One after the other, from step 0 to the last; one of them where the head is not learned first."""
    config = prepared.config
    assert config.steps
    if config.part == "centred-head":
        mean = _phase(prepared, 0, 1, part=CENTRE, lr=_rate_of_mean(config))
        rest = _phase(prepared, 1, config.steps, part="head", lr=config.lr)
        assert isinstance(rest.learner, nn.Sequential)
        centred, head = rest.learner
        return [mean, replace(rest, before=centred, learner=head)]
    found = []
    if config.probe_steps:
        found.append(_phase(prepared, 0, config.probe_steps, part="probe", lr=config.probe_lr or config.lr))
    if config.probe_steps < config.steps:
        found.append(_phase(prepared, config.probe_steps, config.steps, part=config.part, lr=config.lr))
    return found


def fewest_weights(prepared: Prepared) -> int:
    """Of all steps, how many weights the one that learns the fewest learns."""
    return min(sum(p.numel() for p in phase.learner.parameters() if p.requires_grad) for phase in phases(prepared))


def _phase(prepared: Prepared, first: int, end: int, *, part: str, lr: float) -> Phase:
    names = [n for n, p in prepared.model().named_parameters() if p.requires_grad]
    model = prepared.model(part=part)
    mine = dict(model.named_parameters())
    every = [mine[n] for n in names]
    here = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in every])
    assert int(here.sum()) == len(parameters_to_vector(trainable(model)))  # a phase learns a part of the whole
    return Phase(first, end, part, lr, *prepared.learner(model, part=part), None, every, here)


def _rate_of_mean(config: Config) -> float:
    """Rows have length 1 and clipping leaves min(1, C) of that, or C by normalising: this makes it 1 again."""
    return 1.0 / (config.clip if config.clip_style == "automatic" else min(1.0, config.clip))
