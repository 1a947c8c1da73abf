"""The vision transformer compared with a slow implementation in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import Featured, build, split_head
from dpvision.models.vit import Vit, dinov2_vits14


def _random(grid: tuple[int, int] = (3, 4)) -> Vit:
    """Make every parameter random, including those that are initially zeros or ones."""
    torch.manual_seed(0)
    model = Vit(3, 5, patch=2, grid=grid, width=24, depth=3, heads=4).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def _slow(model: Vit, x: Tensor, positions: Tensor) -> Tensor:
    """One image at a time: patches cut by hand, torch's own multi-head attention, GELU by the error function."""
    results = []
    for image in x:
        patches = F.unfold(image.unsqueeze(0), 2, stride=2)[0].T  # (tokens, 12)
        proj = model.patch_embed.proj
        tokens = torch.cat([model.cls_token[0], patches @ proj.weight.flatten(1).T + proj.bias]) + positions
        for block in model.blocks:
            attention = nn.MultiheadAttention(24, 4, batch_first=True, dtype=torch.float64)
            attention.in_proj_weight, attention.in_proj_bias = block.attn.qkv.weight, block.attn.qkv.bias
            attention.out_proj = block.attn.proj
            y = _norm(tokens, block.norm1).unsqueeze(0)
            tokens = tokens + block.ls1.gamma * attention(y, y, y, need_weights=True)[0][0]
            y = _norm(tokens, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias
            y = 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
            tokens = tokens + block.ls2.gamma * (y @ block.mlp.fc2.weight.T + block.mlp.fc2.bias)
        results.append(_norm(tokens, model.norm)[0])
    return torch.stack(results)


def _norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-6) * norm.weight + norm.bias


def _bicubic(stored: int, wanted: int) -> Tensor:
    """(wanted, stored): Keys' kernel with a = -0.75 around (i + 0.5) stored / (wanted + 0.1) - 0.5, edges repeated."""
    matrix = torch.zeros(wanted, stored, dtype=torch.float64)
    for i in range(wanted):
        centre = (i + 0.5) * stored / (wanted + 0.1) - 0.5
        for j in range(math.floor(centre) - 1, math.floor(centre) + 3):
            d, a = abs(centre - j), -0.75
            weight = (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)
            matrix[i, min(max(j, 0), stored - 1)] += weight
    return matrix


def test_features_and_outputs_equal_a_plain_implementation() -> None:
    model, x = _random(), torch.rand(4, 3, 6, 8, dtype=torch.float64) * 2 - 1
    expected = _slow(model, x, model.pos_embed[0])
    assert torch.allclose(model.features(x), expected, rtol=1e-9, atol=1e-9)
    assert torch.allclose(model(x), expected @ model.head.weight.T + model.head.bias, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [(12, 10), (4, 6)])
def test_positions_are_resized_as_dinov2_does(size: tuple[int, int]) -> None:
    model, (rows, columns) = _random((5, 4)), (size[0] // 2, size[1] // 2)
    stored = model.pos_embed[0, 1:].unflatten(0, (5, 4))
    picture = torch.einsum("ih,jw,hwc->ijc", _bicubic(5, rows), _bicubic(4, columns), stored)
    positions = torch.cat([model.pos_embed[0, :1], picture.flatten(0, 1)])
    assert torch.allclose(model.positions(rows, columns)[0], positions, rtol=1e-7, atol=1e-7)
    x = torch.rand(2, 3, *size, dtype=torch.float64) * 2 - 1
    assert torch.allclose(model.features(x), _slow(model, x, positions), rtol=1e-6, atol=1e-6)


def test_the_head_starts_at_zero_and_the_rest_does_not() -> None:
    model = build("vit-tiny", (3, 32, 32), classes=10, seed=0)
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        assert not model(x).any() and float(model.features(x).std()) > 0.1


def test_the_head_alone_is_the_models_own() -> None:
    model = _random()
    x = torch.rand(2, 3, 6, 8, dtype=torch.float64)
    parts = split_head(model)
    assert isinstance(parts, Featured) and parts.rest is model.head
    # Not the same bits: a batch of 2 and a piece of 8 may take other kernels.
    close = {"rtol": 1e-12, "atol": 1e-12}
    assert torch.allclose(parts.features(x), model.features(x), **close) and torch.allclose(parts(x), model(x), **close)
    assert {n for n, p in parts.named_parameters() if p.requires_grad} == {"rest.weight", "rest.bias"}
    assert not any(n.startswith("prefix.head") for n, _ in parts.named_parameters())
    with torch.no_grad():
        parts.rest.weight.zero_()
    assert torch.equal(model(x), model.head.bias.expand(2, -1))


@pytest.mark.parametrize(
    ("shape", "side", "size"),
    [((3, 32, 32), 154, (154, 154)), ((1, 28, 40), 112, (112, 154)), ((3, 300, 224), 224, (294, 224))],
)
def test_images_are_resized_to_whole_patches(shape: tuple[int, int, int], side: int, size: tuple[int, int]) -> None:
    with torch.device("meta"):  # shapes only
        model = dinov2_vits14(shape, 10, side=side)
    assert model.prepare(torch.zeros(1, *shape)).shape == (1, 3, *size)
    with pytest.raises(ConfigError, match="multiple of 14"):
        dinov2_vits14(shape, 10, side=side + 1)


def test_dinov2_of_grey_images() -> None:
    """Two patches a side: the stored positions are resized, the one channel is taken three times."""
    model = dinov2_vits14((1, 8, 8), 3, side=28)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        assert model(x).shape == (2, 3) and model.positions(2, 2).shape == (1, 5, 384)
        assert not torch.allclose(model.features(x)[0], model.features(x)[1], atol=1e-3)
