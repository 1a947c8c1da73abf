"""Test accuracy at a few steps of a training, and the epsilon that it was charged for: the lines of metrics.jsonl, all
of which may be released.

Every line has the epsilon of the whole training: it is charged before the first step, and who stops early because of
an accuracy on one of these lines has revealed no less.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import vector_to_parameters

from dpvision.core.events import Capped, Event
from dpvision.models.inputs import Inputs, accuracy
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.state import State, trainable
from dpvision.settings import quick

POINTS = 20
RECORDS = 2000  # of the test split, at every point but the last


def stated_epsilon(event: Event, delta: float) -> float:
    """The epsilon of all that the run was charged for; the budget's where its settings changed on the way."""
    return quick.epsilon(event, max(delta, event.delta) if isinstance(event, Capped) else delta)


def marks(prepared: Prepared) -> set[int]:
    """Steps after which accuracy is looked at: so few that it takes about a quarter of the training's time at most.

    To train on a view costs about three times what it costs to look at an image. All of it is public.
    """
    steps, points = prepared.sampler.steps, POINTS
    if prepared.data.test is not None:
        looks = 2 * min(len(prepared.data.test), RECORDS)
        points = min(points, max(1, 3 * prepared.sampler.batch * steps * prepared.config.views // (4 * looks)))
    return {max(1, round(i * steps / points)) for i in range(1, points + 1)}


def line(state: State, prepared: Prepared, model: nn.Module, test: Inputs | None, epsilon: float) -> dict[str, Any]:
    """Accuracy of both sets of weights: at the end on the whole test split, before on its first records."""
    found: dict[str, Any] = {"step": state.step, "epsilon": epsilon}
    if test is not None:
        most = None if state.step == prepared.sampler.steps else RECORDS
        found["test_images"] = min(len(test), most or len(test))
        for name, weights in (("ema", state.ema), ("last", state.weights)):
            vector_to_parameters(weights, trainable(model))
            found[f"test_accuracy_{name}"] = accuracy(prepared.learner(model)[0], test, most=most)
    return found
