"""Views that are differentiated at weights of their own: no view is lost, whatever the weights or the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpvision.errors import UnsafeLayer
from dpvision.models.resnets import StandardisedConv2d
from dpvision.private.engine import ClippedSum, Public
from tests.private.engine.oracle import each_loss, unit_gradients, verify


class _Halves(nn.Module):
    """Two rows for each image: its upper and its lower half."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = StandardisedConv2d(1, 4, 3, padding=1), nn.Linear(4 * 4 * 8 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        halves = x.unflatten(2, (2, 4)).transpose(1, 2).flatten(0, 1)
        return self.head(torch.tanh(self.conv(halves)).unflatten(0, (-1, 2)).flatten(1))


def _small() -> nn.Module:
    return nn.Sequential(StandardisedConv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 10))


def _batch(units: int, views: int) -> tuple[Tensor, Tensor, list[int]]:
    return torch.randn(units * views, 1, 8, 8), torch.randint(0, 10, (units * views,)), [views] * units


@pytest.mark.parametrize("zero", [(), (0,), (1,), (0, 1, 2)], ids=str)
def test_a_gain_of_zero_in_some_views_loses_none_of_them(zero: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = _small()
    batch, size = _batch(5, 3), sum(p.numel() for p in model.parameters())
    moves = [0.1 * torch.randn(size) for _ in range(3)]
    start = 0
    for name, parameter in model.named_parameters():
        if name.endswith("gain"):
            for view in zero:
                moves[view][start] = -parameter.detach().flatten()[0]
        start += parameter.numel()
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(*batch, Public(perturbations=moves))
    torch.testing.assert_close(gradients.double(), unit_gradients(model, *batch, moves), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("units", [1, 3, 8])
def test_several_rows_of_an_image_are_no_matter(units: int) -> None:
    torch.manual_seed(0)
    model = _Halves()
    batch = _batch(units, 2)
    moves = [0.1 * torch.randn(sum(p.numel() for p in model.parameters())) for _ in range(2)]
    verify(model, each_loss, (1, 8, 8), 10, apart=True)
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(*batch, Public(perturbations=moves))
    torch.testing.assert_close(gradients.double(), unit_gradients(model, *batch, moves), rtol=1e-4, atol=1e-5)


class _Moody(nn.Module):
    """Leaves a layer out by the value of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.switch, self.conv = nn.Parameter(torch.tensor([0.5])), nn.Conv2d(1, 1, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.conv(x) if self.switch.detach().sum().item() > 0 else x).flatten(1)) * self.switch


def test_a_model_that_does_not_do_the_same_with_every_view_is_refused() -> None:
    model = _Moody()
    moves = [torch.zeros(sum(p.numel() for p in model.parameters())) for _ in range(2)]
    moves[1][0] = -1.0
    with pytest.raises(UnsafeLayer, match="does not treat every view alike"):
        ClippedSum(model, each_loss, clip=1.0)(*_batch(3, 2), Public(perturbations=moves))
