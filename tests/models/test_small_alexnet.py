"""The small AlexNet of contrastive learning."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpvision.models.small_alexnet import small_alexnet


@pytest.mark.parametrize(("side", "left"), [(64, 7), (32, 3), (28, 2), (15, 1)])
def test_smaller_images_make_the_first_linear_layer_smaller(side: int, left: int) -> None:
    model = small_alexnet((3, side, side), 5, width=16, hidden=32)
    first = next(m for m in model.modules() if isinstance(m, nn.Linear))
    assert first.in_features == 2 * 16 * left**2
    assert model(torch.randn(2, 3, side, side)).shape == (2, 5)


def test_norms_stand_where_batch_statistics_were_and_weights_are_small() -> None:
    model = small_alexnet((3, 32, 32), 10, width=32, hidden=256)
    kinds = [type(m) for m in model]
    for place, kind in enumerate(kinds[:-1]):
        if kind in (nn.Conv2d, nn.Linear):
            assert kinds[place + 1 : place + 3] == [nn.GroupNorm, nn.ReLU] and model[place].bias is None
            assert float(model[place].weight.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert kinds[-1] is nn.Linear and not model[-1].bias.any()
