"""When accuracy is measured: always at the end, and earlier only if that is cheap compared with training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpvision.errors import ConfigError
from dpvision.private.training import metrics, train
from dpvision.settings.training import Config


@pytest.mark.parametrize(("batch", "steps", "points"), [(500, 100, 20), (700, 7, 5), (100, 3, 1), (50, 1, 1)])
def test_marks_are_even_and_few_where_looking_is_dear(batch: int, steps: int, points: int) -> None:
    """The test split has 360 images, both sets of weights are looked at, and a view costs three looks."""
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=batch, steps=steps, model="linear"))
    marks = metrics.measured_steps(prepared)
    assert len(marks) == points and max(marks) == steps and min(marks) >= 1
    assert len(marks) == 1 or len(marks) * 2 * 360 * 4 <= 3 * batch * steps
    config = replace(prepared.config, k_base=16, augment=("flip",))
    views = replace(prepared, config=config, network=replace(prepared.network, config=config))
    assert len(metrics.measured_steps(views)) >= points


def test_settings_that_differ_from_those_of_the_network_are_refused() -> None:
    """Otherwise one network would be trained under noise that is named for another."""
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=50, steps=4, model="linear"))
    with pytest.raises(ConfigError, match="different settings"):
        replace(prepared, config=replace(prepared.config, seed=1))


def test_without_a_test_split_only_epsilon_is_reported() -> None:
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=50, steps=40, model="linear"))
    without = replace(prepared, data=replace(prepared.data, test=None))
    assert len(metrics.measured_steps(without)) == 20
