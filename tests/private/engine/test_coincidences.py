"""Sizes that happen to agree, memory that is used again, parts that remember or rescale: found or refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.private.engine import Automatic, ClippedSum, Public
from tests.private.engine.oracle import each_loss, unit_gradients, verify


class _Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.t = nn.Linear(5, 10), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.t.expand(10)


class _Shared(nn.Module):
    """One row for all 16 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.s = nn.Parameter(torch.randn(1, 5)), nn.Parameter(torch.randn(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w.expand(16, 5)) + F.linear(x, self.w * self.s.expand(16, 5).sin())


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 15, 16, 17])
@pytest.mark.parametrize("kind", [_Temperature, _Shared])
def test_an_axis_as_long_as_the_batch_is_not_the_batch(kind: type[nn.Module], count: int) -> None:
    torch.manual_seed(0)
    model = kind()
    images, targets = torch.randn(count, 5), torch.randint(0, 10, (count,))
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [1] * count)
    assert torch.allclose(gradients.double(), unit_gradients(model, images, targets, [1] * count), atol=1e-5)


class _ForPlaces(nn.Module):
    """A value for each of four places in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.places = nn.Linear(5, 10), nn.Parameter(torch.zeros(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.places


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_parameter_for_places_in_the_batch_is_refused(count: int) -> None:
    engine = ClippedSum(_ForPlaces(), each_loss, clip=1.0)
    with pytest.raises(UnsafeLayer, match="positions in the batch"):
        engine(torch.randn(count, 5), torch.zeros(count, dtype=torch.int64), [1] * count)


def test_a_batch_buffer_may_be_used_again() -> None:
    buffer = torch.empty(4, 64)
    engine = ClippedSum(nn.Sequential(nn.Linear(64, 64)), each_loss, clip=1.0)

    def batches():
        for size in (1e-3, 1e-3, 1e4):
            buffer.copy_(torch.randn(4, 64) * size)
            yield buffer, torch.zeros(4, dtype=torch.int64), [1] * 4

    assert float(engine.sum(batches()).norm()) <= 12.01


@pytest.mark.parametrize("physical", [1, 2, 3, None])
def test_units_with_different_numbers_of_views_in_different_groups(physical: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    views = [1, 1, 2, 1, 3, 1, 1]
    images, targets = torch.randn(10, 64), torch.randint(0, 10, (10,))
    engine = ClippedSum(model, each_loss, clip=0.5, physical=physical)
    expected = unit_gradients(model, images, targets, views)
    wanted = (expected * (0.5 / expected.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    for _ in range(2):
        assert float((engine(images, targets, views) - wanted).norm()) <= 1e-5 * float(wanted.norm())


def test_a_filter_that_is_used_in_two_ways() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.head = nn.Parameter(torch.randn(4, 4, 3, 3) * 0.2), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(F.conv2d(x, self.w, stride=2))
            return self.head(torch.tanh(F.conv2d(x, 2 * self.w)).flatten(2).mean(2))

    torch.manual_seed(0)
    model = Both()
    images, targets = torch.randn(3, 4, 9, 9), torch.randint(0, 10, (3,))
    gradients = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [1] * 3)
    assert torch.allclose(gradients.double(), unit_gradients(model, images, targets, [1] * 3), atol=1e-5)


class _Hides(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.how = nn.Linear(6, 10), how
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "by the largest":
            x = x / x.abs().max().clamp(min=1)
        elif self.how == "in a buffer":
            self.mean.copy_(x.detach().mean(0))
        return self.head(x)


@pytest.mark.parametrize("how", ["by the largest", "in a buffer"])
def test_mixing_by_magnitude_and_keeping_in_buffers_are_found(how: str) -> None:
    with pytest.raises(UnsafeLayer):
        verify(_Hides(how), each_loss, (6,), 10)
    verify(_Hides("not"), each_loss, (6,), 10)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="half precision"):
        ClippedSum(nn.Linear(4, 10).bfloat16(), each_loss, clip=1.0)


class _Remembers(nn.Module):
    """A moving mean in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 10)
        self.mean = nn.Parameter(torch.zeros(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.data.mul_(0.9)
            torch.Tensor.add_(self.mean, 0.1 * x.detach().as_subclass(Tensor).double().mean(0).to(self.mean))
        return self.head(x)


def test_frozen_parameters_that_remember_images_are_refused() -> None:
    with pytest.raises(UnsafeLayer, match=r"mean|changed"):
        verify(_Remembers(), each_loss, (5,), 10)
    with pytest.raises(UnsafeLayer, match="changed its own"):
        ClippedSum(_Remembers(), each_loss, clip=1.0)(torch.randn(4, 5), torch.zeros(4, dtype=torch.int64), [1] * 4)


def test_an_embedding_that_rescales_itself_is_refused_also_when_frozen() -> None:
    model = nn.Sequential(nn.Embedding(30, 4, max_norm=1.0), nn.Flatten(), nn.Linear(20, 10))
    model[0].weight.requires_grad_(False)
    with pytest.raises(UnsafeLayer, match="max_norm"):
        ClippedSum(model, each_loss, clip=1.0)(torch.randint(0, 30, (4, 5)), torch.zeros(4, dtype=torch.int64), [1] * 4)


def test_stability_below_what_norms_can_show_is_refused() -> None:
    with pytest.raises(ConfigError, match="stability"):
        Automatic(1.0, stability=1e-24)


def test_parts_that_are_computed_again_use_the_moved_weights() -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(lambda v: torch.tanh(self.inner(v)), x, use_reentrant=False))

    class Once(Again):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(x)))

    torch.manual_seed(0)
    again, images, targets = Again(), torch.randn(4, 6), torch.randint(0, 10, (4,))
    once = Once()
    once.load_state_dict(again.state_dict())
    moves = Public(perturbations=[torch.randn(112), torch.randn(112)])
    a, b = (ClippedSum(m, each_loss, clip=1.0)(images, targets, [2, 2], moves) for m in (again, once))
    assert float((a - b).norm()) <= 1e-6 * float(b.norm())
