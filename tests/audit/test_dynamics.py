"""Loss, accuracy and gradient norms against the naive loop, and along a real training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dpvision.audit import dynamics, geometry_pictures
from dpvision.audit.hessian import PHYSICAL
from dpvision.models import build
from dpvision.private.training.prepare import each_loss
from tests.private.engine.oracle import unit_gradients


def _images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 4
    return torch.randn(count, 1, 4, 4, generator=rng) + targets.view(-1, 1, 1, 1) / 2, targets


def test_one_point_is_what_the_naive_loop_says() -> None:
    model = build("small-cnn", (1, 4, 4), classes=4, seed=0)
    images, targets = _images(PHYSICAL + 5, 0)
    point = dynamics.at(model, each_loss, images, targets, clip=0.3)
    rows = unit_gradients(model, images, targets, [1] * len(images))
    clipped = rows * (0.3 / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    outputs = model(images)
    assert point.loss == pytest.approx(float(F.cross_entropy(outputs, targets).detach()), rel=1e-5)
    assert point.accuracy == pytest.approx(float((outputs.argmax(1) == targets).float().mean()))
    assert point.gradient == pytest.approx(float(rows.mean(0).norm()), rel=1e-4)
    assert point.clipped == pytest.approx(float(clipped.mean(0).norm()), rel=1e-4)
    assert point.clipped < point.gradient


def test_along_a_training_each_set_is_seen_at_each_weights() -> None:
    model = build("linear", (1, 4, 4), classes=4, seed=0)
    sets = {"public": _images(40, 1), "test": _images(40, 2)}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    series = []
    for _ in range(4):
        series.append({n: t.clone() for n, t in model.state_dict().items()})
        optimiser.zero_grad()
        F.cross_entropy(model(sets["public"][0]), sets["public"][1]).backward()
        optimiser.step()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    seen: list[int] = []
    found = dynamics.along(model, each_loss, iter(series), sets=sets, progress=seen.append)
    assert seen == [1, 2, 3, 4] and found.keys() == sets.keys()
    losses = [p.loss for p in found["public"]]
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(1.3863, abs=1e-3)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items()), "the weights it had"
    model.load_state_dict(series[2])
    assert dynamics.at(model, each_loss, *sets["test"]) == found["test"][2]
    picture = geometry_pictures.dynamics(found, steps=range(4), private=False)
    assert b"public" in picture and geometry_pictures.WARNING.encode() not in picture
    hidden = geometry_pictures.dynamics(found, steps=range(4), private=True)
    assert b"EYES ONLY" in hidden


def test_weights_come_back_even_if_a_series_breaks_off() -> None:
    model = build("linear", (1, 4, 4), classes=4, seed=0)
    before = model.state_dict()["1.weight"].clone()

    def broken():  # type: ignore[no-untyped-def]
        yield {n: t + 1 for n, t in model.state_dict().items()}
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        dynamics.along(model, each_loss, broken(), sets={"a": _images(8, 0)})
    assert torch.equal(model.state_dict()["1.weight"], before)
