"""The small networks, layer by layer as their papers list them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpvision.models.small import dpmix_cnn, small_alexnet, tanh_cnn


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


def test_by_hand() -> None:
    torch.manual_seed(0)
    model, x = dpmix_cnn((3, 32, 32), 10), torch.randn(2, 3, 32, 32)
    conv1, conv2, *linears = (m for m in model if hasattr(m, "weight"))
    y = F.max_pool2d(F.conv2d(x, conv1.weight, conv1.bias, padding=2).relu(), 2)
    y = F.max_pool2d(F.conv2d(y, conv2.weight, conv2.bias, padding=2).relu(), 2).flatten(1)
    assert y.shape == (2, 48 * 8 * 8) and [m.out_features for m in linears] == [100, 100, 10]
    for place, layer in enumerate(linears):
        y = y @ layer.weight.T + layer.bias
        y = y.relu() if place < 2 else y
    assert torch.allclose(model(x), y, atol=1e-5)


@pytest.mark.parametrize(("side", "left"), [(64, 7), (32, 3), (28, 2), (15, 1)])
def test_smaller_images_make_the_first_linear_layer_smaller(side: int, left: int) -> None:
    model = small_alexnet((3, side, side), 5, width=16, hidden=32)
    first = next(m for m in model.modules() if isinstance(m, nn.Linear))
    assert first.in_features == 2 * 16 * left**2
    assert model(torch.randn(2, 3, side, side)).shape == (2, 5)


def test_group_norms_replace_batch_statistics_and_weights_are_small() -> None:
    model = small_alexnet((3, 32, 32), 10, width=32, hidden=256)
    kinds = [type(m) for m in model]
    for place, kind in enumerate(kinds[:-1]):
        if kind in (nn.Conv2d, nn.Linear):
            assert kinds[place + 1 : place + 3] == [nn.GroupNorm, nn.ReLU] and model[place].bias is None
            assert float(model[place].weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert kinds[-1] is nn.Linear and not model[-1].bias.any()
