"""Group normalisation with few channels in a group: right, the same bits in any batch, and nothing of others in it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.private.engine import ClippedSum
from dpvision.private.engine.rules.normalise import few_channels_gradients, has_few_channels, normalise_few_channels
from tests.one_thread import one_thread
from tests.private.engine.oracle import each_loss

__all__ = ["one_thread"]  # as in the engine, whose threads do one group of units each

SHAPES = [
    (4, 1, 1, 1),
    (6, 3, 1, 2),
    (32, 16, 1, 1),
    (16, 16, 7, 5),
    (20, 4, 14, 14),
    (32, 16, 14, 14),
    (16, 16, 32, 32),
]


def images(count: int, channels: int, *sides: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(channels)
    return torch.randn(count, *sides, channels, dtype=dtype).permute(0, 3, 1, 2) * 3 + 1


@pytest.mark.parametrize(("channels", "groups", "height", "width"), SHAPES)
def test_it_is_group_norm_and_its_gradients(channels: int, groups: int, height: int, width: int) -> None:
    x, dy = (images(5, channels, height, width, dtype=torch.float64) for _ in range(2))
    weight, bias = torch.randn(2, channels, dtype=torch.float64)
    assert has_few_channels(x, weight, bias, groups)
    y, mean, inverse = normalise_few_channels(x, weight, bias, groups, 1e-5)
    dx, dw, db = few_channels_gradients(dy, x, mean, inverse, weight)
    for e in range(5):
        leaves = [t.detach().clone().requires_grad_() for t in (x[e : e + 1], weight, bias)]
        expected = F.group_norm(leaves[0], groups, *leaves[1:], eps=1e-5)
        gradients = torch.autograd.grad(expected, leaves, dy[e : e + 1])
        torch.testing.assert_close(y[e : e + 1], expected)
        for result, right in zip((dx[e : e + 1], dw[e], db[e]), gradients, strict=True):
            torch.testing.assert_close(result, right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("channels", "groups", "height", "width"), SHAPES)
def test_an_image_has_the_same_bits_in_any_batch_at_any_place(
    channels: int, groups: int, height: int, width: int
) -> None:
    x, dy = images(70, channels, height, width), images(70, channels, height, width).flip(0)
    weight, bias = torch.randn(2, channels)

    def both(some: slice) -> list[Tensor]:
        y, mean, inverse = normalise_few_channels(x[some], weight, bias, groups, 1e-5)
        return [y, *few_channels_gradients(dy[some], x[some], mean, inverse, weight)]

    whole = both(slice(0, 70))
    for start, stop in ((0, 1), (69, 70), (3, 5), (1, 34), (0, 69)):
        for result, expected in zip(both(slice(start, stop)), whole, strict=True):
            assert torch.equal(result, expected[start:stop])


def test_no_number_of_one_image_is_in_another_and_a_broken_one_counts_as_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.GroupNorm(16, 16), nn.Flatten(), nn.Linear(16 * 36, 10))
    engine = ClippedSum(model, each_loss, clip=1.0)
    x, targets = torch.randn(9, 1, 8, 8), torch.randint(0, 10, (9,))
    alone = engine(x[:8], targets[:8], [2] * 4)
    for broken in (float("nan"), float("inf"), 1e38):
        x[8] = broken
        assert torch.isfinite(total := engine(x, targets, [2] * 4 + [1])).all()
        if broken != 1e38:
            assert torch.equal(total, alone)
        assert float((total - alone).norm()) <= 1 + 1e-4


class _Cropped(nn.Module):
    """The first rows of an image: dense inside an image, not between images."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, :5]


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_a_crop_before_it_leaves_the_bits_of_an_image_alone(groups: int) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 16, 3), _Cropped(), nn.GroupNorm(groups, 16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30, 10)
    engine = ClippedSum(nn.Sequential(*layers), each_loss, clip=1.0)
    x, targets = torch.randn(9, 1, 8, 8), torch.randint(0, 10, (9,))
    whole = engine.gradients(x, targets, [1] * 9)
    for e in range(9):
        assert torch.equal(engine.gradients(x[e : e + 1], targets[e : e + 1], [1])[0], whole[e])
