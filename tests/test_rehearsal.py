"""A rehearsal on public data: the noise of a full-size step at a fraction of its cost (TAN's rule)."""

from __future__ import annotations

import pytest

from dpvision.core import accountant
from dpvision.core.events import PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings.plan import plan, scaled_down
from dpvision.settings.training import Config


@pytest.mark.parametrize("factor", [1, 4, 16, 33.3])
def test_steps_and_noise_of_the_mean_stay(factor: float) -> None:
    full = plan(n=50_000, batch=4096, steps=875, epsilon=1.0)
    small = scaled_down(full, factor)
    assert small["batch"] == round(4096 / factor) and small["steps"] == 875
    assert small["sigma"] / small["batch"] == pytest.approx(full["sigma"] / full["batch"], rel=1e-12)
    assert small["epsilon"] >= full["epsilon"]


def test_its_command_is_accepted() -> None:
    small = scaled_down(plan(n=50_000, batch=4096, steps=366, epsilon=1.0), 16)
    words = small["command"].split()
    asked = {k.removeprefix("--"): float(v) for k, v in zip(words[3::2], words[4::2], strict=True)}
    event = PoissonGaussian(asked["batch"] / asked["n"], asked["sigma"], int(asked["steps"]))
    assert accountant.epsilon(event, 1e-5) <= asked["epsilon"]
    Config(epsilon=asked["epsilon"], n=int(asked["n"]), batch=int(asked["batch"])).complete(50_000)


def test_so_little_noise_that_nothing_can_be_proven() -> None:
    assert scaled_down(plan(n=50_000, batch=4096, steps=366, epsilon=8.0), 1000)["command"].startswith("none")
    with pytest.raises(ConfigError, match="at least 1"):
        scaled_down(plan(n=50_000, epsilon=1.0), 0.5)
