"""Views on an accelerator, which a stand-in plays: the same as on the CPU, from random numbers of the host."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpvision.views import OPERATIONS, Augment, UnitRandom, Views

standin = pytest.importorskip("tests.standin")

SHAPE, UNITS = (3, 8, 10), 24


def _images(seed: int = 0) -> Tensor:
    pixels = torch.randint(0, 256, (UNITS, *SHAPE), generator=torch.Generator().manual_seed(seed))
    return pixels / 127.5 - 1


def _rng() -> UnitRandom:
    return UnitRandom.grouped(7, torch.arange(UNITS).numpy(), [1] * UNITS)


@pytest.mark.parametrize("device", ["standin:1"], indirect=True)
@pytest.mark.parametrize("names", [*([name] for name in sorted(OPERATIONS)), ["crop", "flip"]], ids="-".join)
def test_every_operation_is_that_of_the_cpu(names: list[str], device: torch.device) -> None:
    here = Augment(names)(_images().unsqueeze(1), _rng(), 3)
    there = Augment(names)(_images().unsqueeze(1).to(device), _rng(), 3)
    assert there.device == device and torch.equal(there.cpu(), here)


@pytest.mark.parametrize("device", ["standin:1"], indirect=True)
@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
@pytest.mark.parametrize("diff", [0, 2])
def test_mixtures_are_those_of_the_cpu(mix: str, diff: int, device: torch.device) -> None:
    public = ((_images(1)[:6] * 127.5 + 127.5).to(torch.uint8), torch.arange(6) % 3)
    views = Views(["flip"], base=2, classes=3, self_mix=2, diff=diff, mix=mix, public=public if diff else None)
    images, labels = _images(), torch.arange(UNITS) % 3
    here = views(images, labels, _rng())
    there = views(images.to(device), labels.to(device), _rng())
    for far, near in zip(there, here, strict=True):
        assert far.device == device and torch.equal(far.cpu(), near)


@pytest.mark.parametrize("device", ["standin-late"], indirect=True)
def test_nothing_waits_for_the_device(device: torch.device) -> None:
    views = Views(sorted(OPERATIONS), base=3, classes=3, self_mix=1, mix="cutmix")
    images, labels = _images().to(device), (torch.arange(UNITS) % 3).to(device)
    standin.settle()
    with standin.asked(refuse_waits=1):
        made, _ = views(images, labels, _rng())
    assert made.shape == (UNITS * 4, *SHAPE)
