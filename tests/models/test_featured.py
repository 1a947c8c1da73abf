"""A model in two parts: the first fixed, the second trained."""

from __future__ import annotations

import torch
from torch import nn

from dpvision.models import Featured


def _featured() -> Featured:
    torch.manual_seed(0)
    return Featured(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5)), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))


def test_the_rest_on_features_is_the_whole() -> None:
    model, x = _featured(), torch.randn(5, 4)
    by_hand = torch.tanh(x @ model.prefix[0].weight.T + model.prefix[0].bias)
    assert torch.allclose(model(x), by_hand @ model.rest[1].weight.T + model.rest[1].bias, atol=1e-6)
    assert torch.equal(model(x), model.rest(model.features(x)))


def test_only_the_rest_can_be_trained() -> None:
    model, x = _featured(), torch.randn(5, 4, requires_grad=True)
    model(x).sum().backward()
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {"rest.1.weight", "rest.1.bias"}
    assert all(p.grad is None for p in model.prefix.parameters()) and x.grad is None
    assert model.rest[1].weight.grad is not None


def test_the_prefix_draws_nothing_even_in_training() -> None:
    model, x = _featured().train(), torch.randn(5, 4)
    assert model.training and model.rest.training and not model.prefix.training
    assert torch.equal(model.features(x), model.features(x))
