"""Which weights are trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpvision.errors import ConfigError
from dpvision.models import build, train_only

SHAPE = (1, 28, 28)


def _trained(model: nn.Module) -> set[str]:
    return {n for n, p in model.named_parameters() if p.requires_grad}


def _sketch(name: str) -> nn.Module:
    with torch.device("meta"):
        return build(name, SHAPE, classes=10, seed=0)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("linear", "1"),
        ("wrn-16-4", "10"),
        ("resnet-9", "8"),
        ("tanh-cnn", "9"),
        ("vit-tiny", "head"),
        ("dinov2-vits14", "head"),
        ("scatter-linear", "rest.1"),
        ("scatter-cnn", "rest.7"),
    ],
)
def test_the_head_is_the_last_linear_layer_alone(name: str, head: str) -> None:
    model = _sketch(name)
    train_only(model, "head")
    assert _trained(model) == {f"{head}.weight", f"{head}.bias"}
    train_only(model, "all")
    assert _trained(model) == {n for n, _ in model.named_parameters()}  # scattering has no weights to freeze


def test_biases_and_the_head() -> None:
    model = _sketch("vit-tiny")
    train_only(model, "bias")
    expected = {n for n, _ in model.named_parameters() if n.endswith(".bias")} | {"head.weight"}
    assert _trained(model) == expected and {"norm.bias", "blocks.1.attn.qkv.bias"} < expected
    assert not {"cls_token", "pos_embed", "norm.weight", "blocks.0.ls1.gamma"} & expected


def test_a_frozen_prefix_stays_frozen() -> None:
    from dpvision.models import split_head

    parts = split_head(build("vit-tiny", SHAPE, classes=10, seed=0))
    for part in ("all", "head"):
        train_only(parts, part)
        assert _trained(parts) == {"rest.weight", "rest.bias"}


def test_meaningless_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"vit-tiny: there is no part 'heads'.*all, head, centred-head, probe, bias"):
        train_only(_sketch("vit-tiny"), "heads", name="vit-tiny")
    with pytest.raises(ConfigError, match=r"linear: only its head has a bias.*Fix: "):
        train_only(_sketch("linear"), "bias", name="linear")
    with pytest.raises(ConfigError, match=r"Conv2d: it has no linear layer.*head.*Fix: "):
        train_only(nn.Conv2d(1, 10, 28), "head")
