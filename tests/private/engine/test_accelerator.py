"""On an accelerator: the CPU's sums, in passes of one size, and no wait in a pass. The stand-in shows it without a GPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.private.engine import ClippedSum, PerLayer, Public
from dpvision.private.engine.rules import conv
from tests.private.engine.oracle import each_loss, unit_gradients
from tests.private.engine.small_networks import NETWORKS
from tests.private.engine.test_rules import CLASSES, RULES

standin = pytest.importorskip("tests.standin")
FAR = torch.device("standin")


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    """Ignore the warnings about what is computed once per unit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _far(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(FAR)


def _batch(count: int, shape: tuple[int, ...], classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, *shape, generator=generator) * 2 - 1
    return images, torch.randint(0, classes, (count,), generator=generator)


def _public(size: int, kind: str, views: int) -> Public:
    generator = torch.Generator().manual_seed(1)
    vectors = [torch.randn(size, generator=generator) for _ in range(views + 2)]
    if kind == "perturbation":
        return Public(perturbations=[0.1 * v for v in vectors[2:]])
    return Public(vectors[0].abs() + 0.5, 0.05 * vectors[1]) if kind == "scale and shift" else Public()


def _small() -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(64, 10))


SHAPE = (1, 8, 8)


def _off(model: nn.Module, shape: tuple[int, ...], views: list[int], public: Public, classes: int = 10) -> float:
    """The distance between the clipped sums of the device and the CPU, relative to the norm."""
    images, targets = _batch(sum(views), shape, classes)
    rows = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, views, public)
    clip = max(float(rows.norm(dim=1).median()), 1e-6)  # half of the units are clipped
    near = ClippedSum(model, each_loss, clip=clip)(images, targets, views, public)
    far = ClippedSum(_far(model), each_loss, clip=clip, physical=8)(images, targets, views, public).cpu()
    return float((near - far).norm() / near.norm())


@pytest.mark.parametrize("extra", ["scale and shift", "perturbation"])
@pytest.mark.parametrize("copies", [1, 4])
@pytest.mark.parametrize("rule", sorted(RULES))
@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_rule_gives_the_sum_of_the_cpu(rule: str, copies: int, extra: str, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    model, shape = RULES[rule](data.draw, data.draw(st.booleans()))
    size = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert _off(model, shape, [copies] * 3, _public(size, extra, copies), CLASSES) <= 1e-5


# One creates its mask on the host; of the other, torch has its own kernel for such devices, and the stand-in none.
NOT_HERE = {"attention, masked", "cell"}


@pytest.mark.parametrize("name", sorted(n for n in NETWORKS if n not in NOT_HERE and " to " not in n))
def test_small_networks_give_the_sum_of_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    assert _off(make(), shape, [2, 2, 1, 3], Public()) <= 1e-5


ZOO = {"tanh-cnn": (1, 28, 28), "small-cnn": (1, 8, 8), "wrn-10-1": (3, 8, 8), "vit-tiny": (3, 16, 16)}
LARGE = {"resnet-9-small": (3, 16, 16), "dpmix-cnn": (3, 32, 32), "small-alexnet": (3, 32, 32), "wrn-16-4": (3, 16, 16)}
LARGE |= {
    "scatter-cnn": (1, 28, 28),
    "efficientnet-lite0": (3, 32, 32),
    "linear": (1, 8, 8),
    "patches-256": (3, 32, 32),
}


@pytest.mark.parametrize("name", [*ZOO, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_networks_by_name_give_the_sum_of_the_cpu(name: str) -> None:
    shape = (ZOO | LARGE)[name]
    assert _off(build(name, shape, classes=10, seed=0), shape, [2, 2, 2], Public()) <= 1e-5


def test_the_same_bits_where_the_kernels_are_the_same() -> None:
    """Norms, factors and sums add nothing: here the products have the same sizes on both devices."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16)
    images, targets = _batch(32, (16,), 16)
    images[5] = torch.inf
    near = ClippedSum(model, each_loss, clip=0.3)(images, targets, [1] * 32)
    for there in (images, images.to(FAR)):
        far = ClippedSum(_far(model), each_loss, clip=0.3, physical=32)(there, targets, [1] * 32)
        assert far.device.type == "standin" and torch.equal(far.cpu(), near)


def test_gradients_and_products_come_in_the_order_of_the_units() -> None:
    """Units of several sizes pass in several passes."""
    model, views = _small(), [3, 1, 9, 2, 1, 4]
    images, targets = _batch(sum(views), SHAPE)
    engine = ClippedSum(_far(model), each_loss, clip=1.0, physical=4)
    expected = unit_gradients(model, images, targets, views)
    torch.testing.assert_close(engine.gradients(images, targets, views).cpu().double(), expected, rtol=1e-4, atol=1e-6)
    direction = torch.randn(engine.size, dtype=torch.float64)
    products = engine.inner_products(images, targets, views, direction).cpu()
    torch.testing.assert_close(products, expected @ direction, rtol=1e-4, atol=1e-5)
    assert engine.gradients(images[:0], targets[:0], []).shape == (0, engine.size)


@pytest.mark.parametrize("size", [1, 4000, 40_000])
def test_patches_in_parts_give_the_same_gradients(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a unit's images, and of the units."""
    model = _small()
    images, targets = _batch(8, SHAPE)
    engine = ClippedSum(_far(model), each_loss, clip=1.0, physical=8)
    whole = engine.gradients(images, targets, [4, 4]).cpu()
    monkeypatch.setattr(conv, "PATCH_BYTES_BATCHED", size)
    torch.testing.assert_close(engine.gradients(images, targets, [4, 4]).cpu(), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("units", [8, 6, 5])
def test_products_of_patches_in_parts_have_one_size(units: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a last, smaller part could round its units differently."""
    multiply, counts = conv.multiply, []

    def counted(a: Tensor, b: Tensor, bf16: bool) -> Tensor:
        counts.append(len(a))
        return multiply(a, b, bf16)

    monkeypatch.setattr(conv, "multiply", counted)
    monkeypatch.setattr(conv, "PATCH_BYTES_BATCHED", 3 * 64 * 9 * 4)  # three units
    model = _small()
    ClippedSum(_far(model), each_loss, clip=1.0, physical=units)(*_batch(units, SHAPE), [1] * units)
    assert set(counts) == {{8: 2, 6: 3, 5: 1}[units]} and sum(counts) == units


def test_factors_of_gradients_are_kept_where_units_are_one_image() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    images, targets = _batch(9, SHAPE)
    images[4] = torch.inf
    near = ClippedSum(model, each_loss, clip=0.3, one_view=True)(images, targets, [1] * 9)
    far = ClippedSum(_far(model), each_loss, clip=0.3, one_view=True, physical=4)(images, targets, [1] * 9).cpu()
    assert float((near - far).norm()) <= 1e-6 * float(near.norm())


def test_per_layer_clipping_with_a_unit_of_nan() -> None:
    model, style = _small(), PerLayer(0.5)
    images, targets = _batch(6, SHAPE)
    images[2] = torch.nan
    near = ClippedSum(model, each_loss, clip=style)(images, targets, [1] * 6)
    far = ClippedSum(_far(model), each_loss, clip=style, physical=4)(images, targets, [1] * 6).cpu()
    assert float((near - far).norm()) <= 1e-5 * float(near.norm())


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(lambda v: torch.tanh(self.body(v)), x, use_reentrant=False))


def test_what_a_checkpoint_computes_again_belongs_to_the_pass() -> None:
    """It is computed again in the backward pass, for which torch has threads of the device."""
    torch.manual_seed(0)
    assert _off(_Checkpointed(), (8,), [2, 2], Public()) <= 1e-5


def _counts(engine: ClippedSum, images: Tensor, targets: Tensor, views: list[int], public: Public) -> dict[str, Any]:
    standin.reset()
    engine(images, targets, views, public)
    return dict(standin.counts())


@pytest.mark.parametrize("extra", ["plain", "perturbation"])
@pytest.mark.parametrize("name", ["wrn-10-1", "vit-tiny"])
def test_a_pass_has_the_same_kernels_and_no_wait_whatever_is_in_it(name: str, extra: str) -> None:
    shape, views = (3, 8, 8), 2
    read = []
    engine = ClippedSum(
        _far(build(name, shape, classes=10, seed=0)),
        each_loss,
        clip=1.0,
        physical=16,
        views=views,
        watch=lambda losses, norms, _: read.append((losses, norms)),
    )
    images, targets = _batch(16, shape)
    public = _public(engine.size, extra, views)
    engine(images, targets, [views] * 8, public)  # measures
    with standin.asked(late=1):
        many, few = (_counts(engine, images[:n], targets[:n], [views] * (n // 2), public) for n in (16, 4))
    assert many["kernels"] == few["kernels"] and sum(many["kernels"].values()) < 2500
    assert sum(many["waits"].values()) <= 2 and many["hazards"] == 0
    assert extra != "plain" or many["bytes_to_device"] <= 1.2 * images.nbytes
    assert [tuple(map(len, figures)) for figures in read[1:]] == [(16, 8), (4, 2)]
    assert all(bool(t.isfinite().all()) for figures in read for t in figures)


def test_passes_wait_once_for_each_batch_that_is_fetched() -> None:
    engine = ClippedSum(_far(_small()), each_loss, clip=1.0, physical=4)
    parts = [(*_batch(8, SHAPE, seed=seed), [1] * 8) for seed in range(3)]
    whole = engine(*(torch.cat([part[i] for part in parts]) for i in range(2)), [1] * 24)
    standin.reset()
    total = engine.sum(parts)
    assert sum(standin.counts()["waits"].values()) == len(parts)
    assert torch.equal(total.cpu(), whole.cpu())


def _moved(engine: ClippedSum, unit: int, seed: int, *, most: int) -> float:
    """By how much a unit moves the sum of others that are drawn at random, relative to the sensitivity."""
    generator = torch.Generator().manual_seed(seed)
    views = torch.randint(1, most + 1, (int(torch.randint(2, 9, (1,), generator=generator)),), generator=generator)
    images, targets = _batch(int(views.sum()), SHAPE, seed=seed)
    scales = 10.0 ** torch.randint(-1, 4, (len(views),), generator=generator).repeat_interleave(views)
    images *= scales.view(-1, 1, 1, 1)
    unit %= len(views)
    first, last = int(views[:unit].sum()), int(views[: unit + 1].sum())
    fewer = [torch.cat([t[:first], t[last:]]) for t in (images, targets)]
    whole = engine(images, targets, views.tolist())
    without = engine(fewer[0], fewer[1], [*views[:unit].tolist(), *views[unit + 1 :].tolist()])
    return float((whole - without).norm().cpu()) / engine.sensitivity


@pytest.mark.parametrize("pairs", [10, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("most", [1, 3, 6])
def test_one_unit_moves_the_sum_by_its_own_part_where_kernels_round_by_size(pairs: int, most: int) -> None:
    engine = ClippedSum(_far(_small()), each_loss, clip=1e-3, physical=4)
    with standin.asked(by_size=0.5):  # far more than kernels differ by: others would move by half of the bound
        assert max(_moved(engine, seed, seed, most=most) for seed in range(pairs)) <= 1 + 1e-4


def test_the_size_of_a_pass_is_planned_from_public_numbers() -> None:
    model = _far(_small())

    def planned(**options: int) -> int:
        return ClippedSum(model, each_loss, clip=1.0, **options).plan_pass(SHAPE)

    assert planned(physical=64) == 64 and planned(physical=64, views=3) == 63 and planned(physical=2, views=3) == 2
    assert planned() == 1024 and planned(views=3) == 768 and planned(batch=5, views=3) == 24
    engine = ClippedSum(model, each_loss, clip=1.0, views=3)
    engine.plan_pass(SHAPE)
    assert engine.pass_images == engine.units_at_a_time == 768
    with pytest.raises(ConfigError, match="images, targets and views do not match"):
        engine(*_batch(3, SHAPE), [1, 1])


def test_products_in_lower_precision() -> None:
    """Of rounded factors, on both devices; the sum is of float32 gradients, and of exact ones in a float64 model."""
    model = build("tanh-cnn", (1, 28, 28), classes=10, seed=0)
    images, targets = _batch(4, (1, 28, 28))

    def total(network: nn.Module, precision: str) -> Tensor:
        engine = ClippedSum(network, each_loss, clip=0.1, precision=precision, physical=4)
        return engine(images.to(next(network.parameters()).dtype), targets, [2, 2]).cpu()

    exact, near, far = total(model, "float32"), total(model, "bf16"), total(_far(model), "bf16")
    assert float((near - far).norm()) <= 1e-3 * float(near.norm())
    assert 1e-3 < float((near - exact).norm() / exact.norm()) < 0.2
    double = copy.deepcopy(model).double()
    assert torch.equal(total(double, "bf16"), total(double, "float32"))
    with pytest.raises(ConfigError, match="tf32, which the CPU does not support"):
        total(model, "tf32")
    with pytest.raises(ConfigError, match="precision is 'fp8'"):
        total(model, "fp8")
