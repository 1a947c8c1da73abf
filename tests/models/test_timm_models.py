"""Models of timm, with a substitute for the library, which is an extra."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from dpvision.errors import ConfigError
from dpvision.models import build


class _Net(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(channels, 4), nn.Linear(4, classes)

    side = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.side not in (0, x.shape[2]):
            raise AssertionError("Input height doesn't match model")
        return self.fc(self.body(x.mean((2, 3))))

    def get_classifier(self) -> nn.Module:
        return self.fc


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    calls: list[tuple[str, dict[str, Any]]] = []

    def create_model(name: str, **options: Any) -> nn.Module:
        calls.append((name, options))
        if name == "nothing":
            raise RuntimeError("Unknown model (nothing)")
        net = _Net(options["in_chans"], options["num_classes"])
        if name == "headless":
            net.fc = nn.Identity()  # type: ignore[assignment]
        if name == "sized":
            net.side = 224
        return net

    timm = ModuleType("timm")
    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    return calls


def test_built_without_downloads_and_with_a_head_of_zeros(asked: list[tuple[str, dict[str, Any]]]) -> None:
    one, same = (build("timm:vit_tiny", (1, 28, 28), classes=7, seed=3) for _ in range(2))
    assert asked[0] == ("vit_tiny", {"pretrained": False, "num_classes": 7, "in_chans": 1})
    assert not one.fc.weight.any() and not one.fc.bias.any() and one.body.weight.any()
    assert torch.equal(one.body.weight, same.body.weight)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nothing", "Unknown model"), ("headless", "ends in Identity"), ("sized", "height doesn't match")],
)
def test_networks_that_timm_cannot_build(asked: list[tuple[str, dict[str, Any]]], name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*Fix: "):
        build(f"timm:{name}", (3, 32, 32), classes=7, seed=0)


@pytest.mark.parametrize("name", ["hf-hub:attacker/beacon", "local-dir:/tmp/x", "a/b", ""])
def test_names_of_other_sources_are_never_requested(asked: list[tuple[str, dict[str, Any]]], name: str) -> None:
    with pytest.raises(ConfigError, match="no model named"):
        build(f"timm:{name}", (3, 32, 32), classes=7, seed=0)
    assert not asked


def test_without_the_library_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r'-c constraints.txt "dpvision\[timm\]"'):
        build("timm:resnet18", (3, 32, 32), classes=10, seed=0)
