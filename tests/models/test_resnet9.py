"""ResNet-9 by hand."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.resnet9 import Layer, Residual, resnet9


def _layer(x: Tensor, layer: Layer, groups: int) -> Tensor:
    y = F.group_norm(F.conv2d(x, layer.conv.weight, padding=1), groups, layer.norm.weight, layer.norm.bias)
    return y * torch.tanh(torch.log1p(torch.exp(y)))  # Mish


def test_a_layer_and_a_block_by_hand() -> None:
    torch.manual_seed(0)
    x, layer, block = torch.randn(2, 16, 9, 9), Layer(16, 32, pool=True), Residual(16)
    for module in (layer, block):
        for name, parameter in module.named_parameters():
            if "norm" in name:
                nn.init.normal_(parameter)
    assert torch.allclose(layer(x), F.max_pool2d(_layer(x, layer, 16), 2), atol=1e-5)
    inner = _layer(_layer(x, block.layers[0], 8), block.layers[1], 8)
    assert torch.allclose(block(x), F.group_norm(x + inner, 8, block.norm.weight, block.norm.bias), atol=1e-5)


def test_the_full_width_has_32_groups_everywhere_and_no_bias_before_a_norm() -> None:
    with torch.device("meta"):
        model = resnet9((3, 32, 32), 10)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert [m.num_groups for m in norms] == [32] * 10
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Conv2d))


def test_the_image_is_halved_three_times() -> None:
    model = resnet9((1, 28, 28), 10, width=4)
    assert model[:6](torch.zeros(1, 1, 28, 28)).shape == (1, 16, 3, 3)
