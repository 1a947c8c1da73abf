"""Epsilon and test accuracy at a few steps of a training: the lines of metrics.jsonl, all of which may be released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.utils import vector_to_parameters

from dpvision.inputs import Inputs, accuracy
from dpvision.prepare import Prepared
from dpvision.privacy import quick
from dpvision.state import State, event_so_far, trainable

POINTS = 20
RECORDS = 2000  # of the test split, at every point but the last


def epsilon_at_mark(state: State, prepared: Prepared, marks: set[int]) -> float:
    """For display: the bound at the next mark, so that a bar costs twenty evaluations and never shows too little."""
    ahead = min((m for m in marks if m >= state.step), default=state.step)
    return quick.epsilon(event_so_far(replace(state, step=ahead)), prepared.config.delta)


def marks(prepared: Prepared) -> set[int]:
    """Steps after which accuracy is looked at: so few that it takes about a quarter of the training's time at most.

    To train on a view costs about three times what it costs to look at an image. All of it is public.
    """
    steps, points = prepared.sampler.steps, POINTS
    if prepared.data.test is not None:
        looks = 2 * min(len(prepared.data.test), RECORDS)
        points = min(points, max(1, 3 * prepared.sampler.batch * steps * prepared.config.views // (4 * looks)))
    return {max(1, round(i * steps / points)) for i in range(1, points + 1)}


def line(state: State, prepared: Prepared, model: nn.Module, test: Inputs | None) -> dict[str, Any]:
    """Accuracy of both sets of weights: at the end on the whole test split, before on its first records."""
    found: dict[str, Any] = {"step": state.step, "epsilon": quick.epsilon(event_so_far(state), prepared.config.delta)}
    if test is not None:
        most = None if state.step == prepared.sampler.steps else RECORDS
        found["test_images"] = min(len(test), most or len(test))
        for name, weights in (("ema", state.ema), ("last", state.weights)):
            vector_to_parameters(weights, trainable(model))
            found[f"test_accuracy_{name}"] = accuracy(prepared.learner(model)[0], test, most=most)
    return found
