"""When accuracy is looked at: at the end always, and before only where that is cheap beside the training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpvision.private.training import metrics, train
from dpvision.settings.training import Config


@pytest.mark.parametrize(("batch", "steps", "points"), [(500, 100, 20), (700, 7, 5), (100, 3, 1), (50, 1, 1)])
def test_marks_are_even_and_few_where_looking_is_dear(batch: int, steps: int, points: int) -> None:
    """The test split has 360 images, both sets of weights are looked at, and a view costs three looks."""
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=batch, steps=steps, model="linear"))
    marks = metrics.measured_steps(prepared)
    assert len(marks) == points and max(marks) == steps and min(marks) >= 1
    assert len(marks) == 1 or len(marks) * 2 * 360 * 4 <= 3 * batch * steps
    views = replace(prepared, config=replace(prepared.config, k_base=16, augment=("flip",)))
    assert len(metrics.measured_steps(views)) >= points


def test_without_a_test_split_only_epsilon_is_told() -> None:
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=50, steps=40, model="linear"))
    without = replace(prepared, data=replace(prepared.data, test=None))
    assert len(metrics.measured_steps(without)) == 20
