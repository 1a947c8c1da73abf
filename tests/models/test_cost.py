"""Predictions for devices that are not here: a published figure, and how they follow from the device's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.models.cost import Described, count, predict

A100 = Path(__file__).parents[2] / "examples" / "devices" / "a100.toml"


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("name, hours", [("wrn-16-4", 5.5), ("wrn-40-4", 12)])
def test_published_trainings_are_predicted_within_a_factor_of_two(name: str, hours: float) -> None:
    """Tang et al. (2023), section 3.4 and appendix: 875 steps at batch 4,096 with 16 views on one A100, in float32.

    They do not state a precision; in TF32 the prediction is a third of this.
    """
    cost = count(build(name, (3, 32, 32), classes=10, seed=0), _loss, (3, 32, 32))
    step = predict(cost, Described.read(A100), batch=4096, views=16, precision="float32").step
    assert hours / 2 < step * 875 / 3600 < hours * 2


def test_operations_of_a_linear_layer_are_counted() -> None:
    cost = count(nn.Sequential(nn.Flatten(), nn.Linear(48, 10)), _loss, (3, 4, 4))
    assert cost.weights == 490
    assert sum(flops for flops, _ in cost.kernels) == 2 * 2 * 48 * 10  # outputs, and the gradient of the weights


def test_a_faster_device_takes_less_time_and_a_larger_one_larger_passes() -> None:
    cost = count(build("small-cnn", (3, 16, 16), classes=10, seed=0), _loss, (3, 16, 16))
    device = Described.read(A100)
    slow = predict(cost, device, batch=512, views=4, precision="float32")
    for changed in ({"tflops_float32": 1000.0}, {"bandwidth_gb_s": 1e5}, {"launch_us": 0.1}):
        assert predict(cost, replace(device, **changed), batch=512, views=4, precision="float32").step < slow.step
    small = predict(cost, replace(device, memory_gb=0.01), batch=512, views=4, precision="float32")
    assert small.units < slow.units and small.memory <= 0.5 * 0.01e9
    assert slow.images_per_second == pytest.approx(512 / slow.step)


def test_a_description_is_checked(tmp_path: Path) -> None:
    for text, message in (("speed = 3", "no setting 'speed'"), ("memory_gb = -1", "above 0"), ("name = 3", "name")):
        file = tmp_path / "device.toml"
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            Described.read(file)
    with pytest.raises(ConfigError, match=r"Fix: set tflops_bf16"):
        Described().peak("bf16")
