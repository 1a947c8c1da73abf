"""Layers that mix images, keep statistics, draw at random or cannot be attributed to one image are refused by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.models import build
from dpvision.models.resnets import wide_resnet
from dpvision.private.engine import ClippedSum, refuse_unsafe
from tests.private.engine.oracle import each_loss, verify

SHAPE = (1, 8, 8)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(1),
        nn.BatchNorm2d(1, track_running_stats=False),
        nn.SyncBatchNorm(1),
        nn.InstanceNorm2d(1, track_running_stats=True),
        nn.LazyBatchNorm2d(),
        nn.Dropout(0.5),
        nn.RReLU(),
    ],
)
def test_unsafe_layers_are_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Identity(), layer, nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UnsafeLayer, match=f"1 \\({type(layer).__name__}\\)"):
        ClippedSum(model, each_loss, clip=1.0)


def test_dropout_that_does_nothing_is_allowed() -> None:
    refuse_unsafe(nn.Sequential(nn.Dropout(0.0), nn.Linear(3, 3)))
    refuse_unsafe(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3)).eval())


class _Mixing(nn.Module):
    """Looks harmless by class."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.head, self.kind = nn.Linear(64, 20), nn.Linear(20, 10), kind

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        if self.kind == "centred":
            x = x - x.mean(0)
        elif self.kind == "scaled":
            x = x / x.norm()
        elif self.kind == "neighbour":
            x = x + 0.01 * x.roll(1, 0)
        elif self.kind == "batch norm by hand":
            x = F.batch_norm(x, None, None, training=True)
        elif self.kind == "detached statistics":
            x = x * (1 + x.detach().std(0))
        elif self.kind == "sorted":
            x = x.sort(0).values
        return self.head(x)


@pytest.mark.parametrize(
    "kind", ["centred", "scaled", "neighbour", "batch norm by hand", "detached statistics", "sorted"]
)
def test_a_hidden_mixture_is_found_by_trial(kind: str) -> None:
    refuse_unsafe(_Mixing(kind))
    with pytest.raises(UnsafeLayer, match="depends on other images in the batch"):
        verify(_Mixing(kind), each_loss, SHAPE, 10)
    verify(_Mixing("not at all"), each_loss, SHAPE, 10)


@pytest.mark.parametrize("name", ["linear", "small-cnn"])
def test_our_models_pass(name: str) -> None:
    verify(build(name, SHAPE, classes=10, seed=0), each_loss, SHAPE, 10)


def test_wide_resnet_passes() -> None:
    verify(wide_resnet((3, 16, 16), 10, depth=10, width=1), each_loss, (3, 16, 16), 10)


def test_outputs_must_fit_the_classes() -> None:
    with pytest.raises(ConfigError, match="outputs of shape"):
        verify(build("linear", SHAPE, classes=3, seed=0), each_loss, SHAPE, 10)


def test_a_wrong_rule_is_found_by_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is against autograd, not against ourselves."""
    from dpvision.private.engine.rules import conv

    right = conv._backward
    monkeypatch.setattr(
        conv, "_backward", lambda *a, of_input: right(*a, of_input=of_input) * (1.0 if of_input else 1.001)
    )
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(UnsafeLayer, match=r"0.weight \(Conv2d\)"):
        verify(model, each_loss, SHAPE, 10)


def test_a_parameter_beside_the_images_is_refused() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.extra = nn.Linear(64, 10), nn.Parameter(torch.ones(4, 10))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.flatten(1)) + self.extra

    with pytest.raises(UnsafeLayer, match="extra"):
        ClippedSum(Penalty(), each_loss, clip=1.0)(torch.rand(4, *SHAPE), torch.zeros(4, dtype=torch.int64), [1] * 4)


def test_images_must_stay_first() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(8, 8), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.inner(x.squeeze(1).transpose(0, 1))  # (rows, images, columns)
            return self.head(torch.tanh(rows).transpose(0, 1).flatten(1))

    with pytest.raises(UnsafeLayer):
        verify(Transposed(), each_loss, SHAPE, 10)
