"""The fixture `device` of tests/conftest.py: each name gives the device of that name."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import DEVICES


def test_by_default_the_host_and_the_stand_in(device: torch.device, request: pytest.FixtureRequest) -> None:
    assert str(device) in ("cpu", "standin:0")
    assert str(device).split(":")[0] == request.node.callspec.params["device"]
    torch.ones(2, device=device, requires_grad=True).sum().backward()


@pytest.mark.parametrize("device", sorted(DEVICES), indirect=True)
def test_every_name(device: torch.device, request: pytest.FixtureRequest) -> None:
    place, options = DEVICES[request.node.callspec.params["device"]]
    assert device == torch.device(place)
    if options:
        assert {name: torch.ops.standin.option(name) for name in options} == options
    product = torch.full((1, 1), 1 + 2.0**-9, device=device) @ torch.ones(1, 1, device=device)
    assert product.item() == (1.0 if options.get("bits") == 7 else 1 + 2.0**-9)
