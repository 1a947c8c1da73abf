"""Every rule equals the naive loop: K 1 and 4, with and without bias, shift and perturbation, shapes from hypothesis."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from dpvision.models.resnets import StandardisedConv2d
from dpvision.private.engine import ClippedSum, Public
from dpvision.private.engine.rules import fallback
from tests.private.engine.oracle import clipped_sum, each_loss, unit_gradients

CLASSES = 3
Draw = Callable[[st.SearchStrategy[int]], int]


class Net(nn.Module):
    """A layer under test between a smooth function before and a mean and a head after."""

    def __init__(self, layer: nn.Module, features: int, *, last: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.last = layer, nn.Linear(features, CLASSES), last

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.layer(x))
        if y.dim() > 2:
            y = y.flatten(1, -2).mean(1) if self.last else y.flatten(2).mean(2)
        return self.head(y)


class Scaled(nn.Module):
    """Scale, class token, position embedding and bias, as in vision transformers."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(width) + 0.5)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, tokens + 1, width) * 0.3)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        return x.sin() * self.gamma.reshape(1, 1, -1) + self.bias


class Reused(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Tied(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class Attention(nn.Module):
    """Built of Linear layers, as in timm."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = (
            heads,
            nn.Linear(width, 3 * width, bias=bias),
            nn.Linear(width, width, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, bias=bias, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Standardised(nn.Conv2d):
    """Weight standardisation as others write it: a function of the weight, unknown to the rules."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        mean, var = weight.mean((1, 2, 3), keepdim=True), weight.var((1, 2, 3), keepdim=True, correction=0)
        return self._conv_forward(x, (weight - mean) / (var + 1e-3).sqrt(), self.bias)


class Halved(nn.Module):
    """Changes the output of a layer in place."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mul_(0.5)


class Odd(nn.Module):
    """Operations without a rule: a bilinear form and an einsum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(width, width, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nti,ijk->ntjk", x, self.a).flatten(2)


def _linear(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    width, out, axes = n(st.integers(1, 40)), n(st.integers(1, 40)), n(st.integers(0, 2))
    return Net(nn.Linear(width, out, bias=bias), out, last=True), (*(n(st.integers(1, 3)) for _ in range(axes)), width)


def _large_linear(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    width = n(st.integers(150, 300))
    return Net(nn.Linear(width, 130, bias=bias), 130, last=True), (width,)


def _conv(axes: int, kind: type[nn.Module] | None = None) -> Callable[[Draw, bool], tuple[nn.Module, tuple[int, ...]]]:
    def make(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
        groups = n(st.integers(1, 2)) if kind is None else 1
        channels, filters, kernel = groups * n(st.integers(1, 4)), groups * n(st.integers(1, 4)), n(st.integers(1, 3))
        options = {"stride": n(st.integers(1, 2)), "padding": n(st.integers(0, 2)), "dilation": n(st.integers(1, 2))}
        layer = (kind or [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1])(
            channels, filters, kernel, bias=bias, groups=groups, **options
        )
        side = (kernel - 1) * options["dilation"] + n(st.integers(1, 4))
        return Net(layer, filters), (channels, *[side] * axes)

    return make


def _depthwise(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    channels = n(st.integers(1, 8))
    return Net(nn.Conv2d(channels, 2 * channels, 3, padding="same", groups=channels, bias=bias), 2 * channels), (
        channels,
        n(st.integers(3, 6)),
        4,
    )


def _large_conv(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    """Large filters on small images: patches are unfolded, several images at a time, in either order of memory."""
    filters = n(st.sampled_from([128, 264]))
    return Net(nn.Conv2d(120, filters, 3, padding=1, bias=bias), filters), (120, n(st.integers(2, 5)), 4)


def _standardised(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    """Standardised filters with few positions; a gain of zero cannot be divided by."""
    channels, filters, side = n(st.integers(4, 9)), n(st.integers(2, 5)), n(st.integers(2, 3))
    layer = StandardisedConv2d(channels, filters, 3, padding=1, bias=bias)
    nn.init.uniform_(layer.gain, -1, 1)
    layer.gain.data[0] = n(st.integers(0, 1))
    return Net(Halved(layer), filters), (channels, side, 3)


def _norm(kind: str) -> Callable[[Draw, bool], tuple[nn.Module, tuple[int, ...]]]:
    def make(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
        channels, side = 2 * n(st.integers(1, 5)), n(st.integers(2, 5))
        if kind == "layer":
            return Net(nn.LayerNorm(channels, bias=bias), channels, last=True), (side, channels)
        layer = nn.GroupNorm(2, channels) if kind == "group" else nn.InstanceNorm2d(channels, affine=True)
        if not bias:
            layer.bias.requires_grad_(False)
        return Net(layer, channels), (channels, side, 3)

    return make


def _sequence(layer: Callable[[int, bool], nn.Module]) -> Callable[[Draw, bool], tuple[nn.Module, tuple[int, ...]]]:
    def make(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
        width = 2 * n(st.integers(1, 8))
        return Net(layer(width, bias), width, last=True), (n(st.integers(1, 4)), width)

    return make


def _scaled(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    width, tokens = n(st.integers(1, 8)), n(st.integers(1, 4))
    layer = Scaled(width, tokens)
    layer.bias.requires_grad_(bias)
    return Net(layer, width, last=True), (tokens, width)


def _biases_only(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    model, shape = _conv(2)(n, True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") and (bias or "layer" in name))
    return model, shape


def _frozen_start(n: Draw, bias: bool) -> tuple[nn.Module, tuple[int, ...]]:
    model, shape = _conv(2)(n, bias)
    model.layer.requires_grad_(False)
    return model, shape


RULES = {
    "linear": _linear,
    "linear, kept as factors": _large_linear,
    "conv1d": _conv(1),
    "conv2d": _conv(2),
    "conv3d": _conv(3),
    "depthwise": _depthwise,
    "large conv2d": _large_conv,
    "weight-standardised conv2d": _conv(2, Standardised),
    "standardised filters": _standardised,
    "group norm": _norm("group"),
    "layer norm": _norm("layer"),
    "instance norm": _norm("instance"),
    "scale, token, place": _scaled,
    "attention": _sequence(lambda width, bias: Attention(width, 2, bias)),
    "torch's attention": _sequence(lambda width, bias: TorchAttention(width, 2, bias)),
    "tied": _sequence(Tied),
    "reused": _sequence(lambda width, bias: Reused(nn.Linear(width, width, bias=bias))),
    "weight norm": _sequence(lambda width, bias: weight_norm(nn.Linear(width, width, bias=bias))),
    "biases only": _biases_only,
    "frozen start": _frozen_start,
}


@pytest.mark.parametrize("extra", ["plain", "shift", "perturbation", "scale and shift"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_equal_to_the_naive_loop(rule: str, copies: int, bias: bool, extra: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    model, shape = RULES[rule](data.draw, bias)
    units = data.draw(st.integers(1, 4))
    images, targets = torch.randn(units * copies, *shape), torch.randint(0, CLASSES, (units * copies,))
    views = [copies] * units
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    moves = [torch.randn(size) * 0.1 for _ in range(copies)] if extra == "perturbation" else []
    shift = torch.randn(size) * 0.05 if "shift" in extra else None
    scale = torch.rand(size) + 0.5 if "scale" in extra else None
    expected = unit_gradients(model, images, targets, views, moves)
    expected = expected if scale is None else expected * scale
    expected = expected if shift is None else expected - shift
    bound = float(expected.norm(dim=1).median())
    public = Public(scale, shift, moves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = ClippedSum(model, each_loss, clip=bound)
        total = engine(images, targets, views, public)
        direction = torch.randn(size, dtype=torch.float64)
        inner = engine.inner_products(images, targets, views, direction, public)
    wanted = clipped_sum(expected, bound)
    assert float((total - wanted).norm()) <= 1e-5 * max(float(wanted.norm()), bound)
    scale_of_inner = float(direction.norm() * expected.norm(dim=1).max())
    assert float((inner - expected @ direction).abs().max()) <= 1e-5 * scale_of_inner


def test_embedding() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, CLASSES)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.table(words).sin().mean(1))

    model = Words()
    words, targets = torch.randint(0, 11, (12, 5)), torch.randint(0, CLASSES, (12,))
    for views in ([1] * 12, [4] * 3, [5, 7]):
        expected = unit_gradients(model, words, targets, views)
        assert torch.allclose(
            ClippedSum(model, each_loss, clip=1.0).gradients(words, targets, views).double(), expected, atol=1e-6
        )


def test_without_a_rule_it_is_slow_and_said_once() -> None:
    model = Net(Odd(5), 10, last=True)
    images, targets = torch.randn(6, 3, 5), torch.randint(0, CLASSES, (6,))
    expected = unit_gradients(model, images, targets, [2, 2, 2])
    engine = ClippedSum(model, each_loss, clip=1.0)
    fallback._warned.clear()  # another test of the same process may have met it
    with pytest.warns(UserWarning, match=r"einsum \(layer.a\) has no rule"):
        gradients = engine.gradients(images, targets, [2, 2, 2])
    assert torch.allclose(gradients.double(), expected, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.gradients(images, targets, [2, 2, 2])
