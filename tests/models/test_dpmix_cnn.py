"""The network of DPMix, layer by layer as its table lists it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dpvision.models.dpmix_cnn import dpmix_cnn


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
