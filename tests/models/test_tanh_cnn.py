"""The two networks of Papernot et al. 2021."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpvision.models.tanh_cnn import tanh_cnn


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 17, 30), (3, 32, 32), (3, 28, 45)])
def test_every_activation_is_bounded(shape: tuple[int, int, int]) -> None:
    model = tanh_cnn(shape, 10)
    seen: list[float] = []
    activations = [m for m in model.modules() if isinstance(m, nn.Tanh)]
    for activation in activations:
        activation.register_forward_hook(lambda module, args, output: seen.append(float(output.detach().abs().max())))
    assert model(100 * torch.randn(2, *shape)).shape == (2, 10)
    assert len(seen) == len(activations) == (3 if shape[0] == 1 else 7) and max(seen) <= 1
    assert not any(isinstance(m, nn.ReLU | nn.GroupNorm) for m in model.modules())


def test_sizes_of_the_grey_one_on_the_way() -> None:
    """28 -> 14 -> 13 -> 5 -> 4: "same" padding of an 8x8 filter with stride 2 is three pixels."""
    sides, x = [], torch.zeros(1, 1, 28, 28)
    for layer in tanh_cnn((1, 28, 28), 10)[:6]:
        x = layer(x)
        if not isinstance(layer, nn.Tanh):
            sides.append(x.shape[-1])
    assert sides == [14, 13, 5, 4]
