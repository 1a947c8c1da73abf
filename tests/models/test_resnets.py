"""The wide residual networks of De et al. 2022 (size, order, filters, padding, first weights), and ResNet-9 by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.models.resnets import (
    Block,
    Layer,
    MaximumOfQuarters,
    Residual,
    StandardisedConv2d,
    resnet9,
    standardise,
    wide_resnet,
)

SHAPE = (3, 32, 32)


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "millions"), [("wrn-16-4", 2.75), ("wrn-40-4", 8.9)])
def test_the_number_of_parameters_is_that_of_the_paper(name: str, millions: float) -> None:
    assert _size(build(name, SHAPE, classes=10, seed=0)) == pytest.approx(millions * 1e6, rel=0.01)


def test_plain_convolutions_lack_only_the_gains() -> None:
    standardised, plain = wide_resnet(SHAPE, 10), wide_resnet(SHAPE, 10, conv=nn.Conv2d)
    gains = sum(m.out_channels for m in standardised.modules() if isinstance(m, StandardisedConv2d))
    assert gains > 0 and _size(standardised) - _size(plain) == gains


def test_other_depths_are_refused() -> None:
    for depth in (4, 15):
        with pytest.raises(ConfigError, match=f"not {depth}"):
            wide_resnet(SHAPE, 10, depth=depth)


def test_every_norm_follows_an_activation_and_meets_a_convolution() -> None:
    """What enters a GroupNorm is never negative; what leaves it has mean zero over a group."""
    model = build("wrn-16-4", SHAPE, classes=10, seed=0)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, args, output: seen.append((module, args[0], output)))
    model(torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0)))
    assert len(seen) == len(norms) == 3 * (2 * 2 + 1) + 1  # two in each block, one in each stage's skip, one at the end
    for module, before, after in seen:
        assert isinstance(module, nn.GroupNorm) and module.num_groups == 16 and module.eps == 1e-5
        assert bool((before >= 0).all())
        assert bool((after.view(2, 16, -1).mean(-1).abs() < 1e-5).all())


def test_a_block_by_hand() -> None:
    torch.manual_seed(0)
    block = Block(16, 32, stride=2, skip=True, conv=nn.Conv2d)
    x = torch.randn(2, 16, 8, 8)
    shortcut, c1, c2 = block.skip[1], block.conv1, block.conv2

    def normed(x: Tensor) -> Tensor:
        return F.group_norm(x.clamp(min=0), 16)

    inner = F.conv2d(F.pad(normed(x), (0, 1, 0, 1)), c1.weight, c1.bias, stride=2)
    expected = F.conv2d(normed(inner), c2.weight, c2.bias, padding=1)
    expected += F.conv2d(normed(x)[:, :, ::2, ::2], shortcut.weight, shortcut.bias)
    assert torch.allclose(block(x), expected, atol=1e-5)


@pytest.mark.parametrize("side", [28, 29, 32, 33])
def test_images_of_any_side(side: int) -> None:
    assert build("wrn-16-4", (1, side, side), classes=7, seed=0)(torch.randn(2, 1, side, side)).shape == (2, 7)


def test_standardised_filters() -> None:
    """Compared with numbers computed one output channel at a time, in float64."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 4, 3, 3, generator=generator, dtype=torch.float64) + 0.3
    weight[4] *= 1e-4  # so narrow that eps decides
    gain = torch.rand(5, 1, 1, 1, generator=generator, dtype=torch.float64)
    result = standardise(weight, gain)
    for channel, w in enumerate(weight):
        mean = sum(w.flatten().tolist()) / 36
        var = sum((x - mean) ** 2 for x in w.flatten().tolist()) / 36
        expected = float(gain[channel]) * (w - mean) / math.sqrt(max(36 * var, 1e-4))
        assert torch.allclose(result[channel], expected, rtol=1e-12)
    assert torch.autograd.gradcheck(standardise, (weight[:4].requires_grad_(), gain[:4].requires_grad_()))


class _Named(torch.Tensor):
    """A tensor that overrides torch functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func.__name__, kwargs


def test_standardisation_is_one_operation_of_the_function_protocol() -> None:
    weight = torch.randn(2, 3, 3, 3).as_subclass(_Named)
    assert standardise(weight, torch.ones(2, 1, 1, 1)) == ("standardise", {"eps": 1e-4})


def test_the_first_weights() -> None:
    model = build("wrn-16-4", SHAPE, classes=1000, seed=0)
    for module in model.modules():
        if isinstance(module, StandardisedConv2d):
            fan_in = module.weight[0].numel()
            assert float(module.weight.detach().std()) == pytest.approx(fan_in**-0.5, rel=0.15)
            assert module.bias is not None and not module.bias.any()
            assert module.gain.shape == (module.out_channels, 1, 1, 1) and bool((module.gain == 1).all())
        elif isinstance(module, nn.GroupNorm):
            assert bool((module.weight == 1).all()) and not module.bias.any()
        elif isinstance(module, nn.Linear):
            std = module.in_features**-0.5
            assert float(module.weight.detach().std()) == pytest.approx(std, rel=0.01)
            assert float(module.weight.detach().abs().max()) <= 2 * std / 0.8796 and not module.bias.any()


def test_seeds_fix_the_first_weights_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (build("small-cnn", (1, 8, 8), classes=10, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_maximum_of_quarters_has_the_bits_of_adaptive_pooling(layout: torch.memory_format) -> None:
    """In values and gradients, for even and odd sides, a single pixel, and equal values."""
    rng = torch.Generator().manual_seed(0)
    for height, width in itertools.product((1, 2, 3, 4, 7, 8), repeat=2):
        x = (1.5 * torch.randn(3, 16, height, width, generator=rng)).round().to(memory_format=layout)
        upstream = torch.randn(3, 16, 2, 2, generator=rng)
        results = []
        for pool in (nn.AdaptiveMaxPool2d(2), MaximumOfQuarters()):
            leaf = x.clone().requires_grad_()
            output = pool(leaf)
            results.append((output.detach(), *torch.autograd.grad(output, leaf, upstream)))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), (height, width)
