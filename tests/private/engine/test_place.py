"""A unit's bits depend neither on its position in the batch nor on the units next to it: by name, at every scale."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpvision.core.noise import ARITHMETIC_SLACK
from dpvision.models import MODELS, build
from dpvision.private.engine import ClippedSum
from dpvision.private.engine.rules import conv, linear, normalise
from tests.private.engine.oracle import each_loss, unit_gradients
from tests.private.engine.small_networks import CLASSES, NETWORKS

SCALES = (1e-3, 1.0, 1e3, 1e6, 1e8)
# Of the built-in networks, the least images that each takes; all others take these.
SMALL_SHAPE = (3, 32, 32)
LARGE = {
    *("clip-vit-b16", "clip-vit-b32", "dinov2-vitb14", "dinov2-vits14", "dinov2-vits14-112", "dinov2-vits14-224"),
    *("efficientnet-lite0", "siglip-b16", "wrn-40-4"),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operations that run once per unit warn about it
        yield
    torch.set_num_threads(before)


def _orders(units: int, permutations: int) -> list[list[int]]:
    """The units without the first, a middle one and the last; a single one; and permutations of all."""
    everyone = list(range(units))
    removed = [everyone[:u] + everyone[u + 1 :] for u in (0, units // 2, units - 1)]
    return [*removed, [units // 2], *(torch.randperm(units).tolist() for _ in range(permutations))]


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _require_same_bits(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    views: Sequence[int],
    *,
    permutations: int,
    one_view: bool = False,
) -> None:
    """Gradients of units, and exact sums of what they contribute, in other orders and without some."""
    sizes = [v for v, _ in zip(cycle(views), range(len(images)), strict=False)]
    units = next(u for u, end in enumerate(accumulate(sizes), start=1) if end >= len(images) - max(views))
    engine = ClippedSum(model, each_loss, clip=0.5, one_view=one_view)
    parts = [t.split([*sizes[:units], len(t) - sum(sizes[:units])]) for t in (images, targets)]

    def of(order: Sequence[int]) -> tuple[Tensor, Tensor, list[int]]:
        x, y = (torch.cat([part[u] for u in order]) for part in parts)
        return x, y, [sizes[u] for u in order]

    gradients, total = engine.gradients(*of(range(units))), engine(*of(range(units)))
    for order in _orders(units, permutations):
        rows = engine.gradients(*of(order))
        wrong = [u for row, u in zip(rows, order, strict=True) if not _same(row, gradients[u])]
        assert not wrong, f"units {wrong} of {order} have other bits"
        left_out = sorted(set(range(units)) - set(order))
        rest = engine(*of(left_out)) if left_out else torch.zeros_like(total)
        assert torch.equal(engine(*of(order)) + rest, total), order


def _case(shape: tuple[int, ...], images: int, scale: float, *, soft: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(images, *shape) * scale
    return x, torch.rand(images, CLASSES).softmax(1) if soft else torch.randint(0, CLASSES, (images,))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_unit_has_the_same_bits_in_any_place(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model = make()
    for scale in (1.0, 1e6):
        _require_same_bits(model, *_case(shape, 23, scale, soft=scale > 1), [1], permutations=2)
    _require_same_bits(model, *_case(shape, 23, 1.0, soft=False), [1], permutations=1, one_view=True)
    _require_same_bits(model, *_case(shape, 27, 1.0, soft=True), [3], permutations=1)
    _require_same_bits(model, *_case(shape, 40, 1.0, soft=False), [1, 4, 2], permutations=1)


# A constant by which the rules choose how to compute, and a value with which they choose what these small networks do
# not need.
WAYS: list[tuple[Any, str, Any]] = [
    (linear, "ONEDNN", False),
    (linear, "SMALL", 0),
    (conv, "MANY_WEIGHTS", 0),
    (conv, "FEW_POSITIONS", 0),
    (conv, "IN_CACHE", 60),
    (normalise, "SMALL_IMAGE", 0),
]
SOME = ["linear over tokens", "linear, large", "conv2d", "conv2d, one filter a channel", "conv2d, many channels"]
SOME += ["conv2d, points, stride", "group norm", "group norm, wide", "group norm, no positions", "layer norm"]


@pytest.mark.parametrize(("rule", "constant", "value"), WAYS, ids=[f"{c} = {v}" for _, c, v in WAYS])
def test_a_unit_has_the_same_bits_however_it_is_computed(
    monkeypatch: pytest.MonkeyPatch, rule: Any, constant: str, value: Any
) -> None:
    """And gradients are those of ordinary autograd."""
    torch.manual_seed(0)
    for name in SOME:
        make, shape = NETWORKS[name]
        model = make()
        images, targets = _case(shape, 27, 1.0, soft=False)
        expected = ClippedSum(copy.deepcopy(model), each_loss, clip=0.5).gradients(images, targets, [1, 2] * 9)
        with monkeypatch.context() as patch:
            patch.setattr(rule, constant, value)
            results = ClippedSum(model, each_loss, clip=0.5).gradients(images, targets, [1, 2] * 9)
            torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-5)
            _require_same_bits(model, images, targets, [1], permutations=1)
            _require_same_bits(model, images, targets, [1, 4, 2], permutations=1)
        oracle = unit_gradients(model, images, targets, [1, 2] * 9)
        torch.testing.assert_close(results.double(), oracle, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cut_changes_no_bit(name: str) -> None:
    """As long as a unit fits a pass."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    model, (images, targets) = make(), _case(shape, 21, 1.0, soft=False)
    for views in (1, 3):
        sums = [
            ClippedSum(model, each_loss, clip=0.3, physical=physical)(images, targets, [views] * (21 // views))
            for physical in (None, 7, views)
        ]
        assert all(torch.equal(one, sums[0]) for one in sums), views


@pytest.mark.parametrize("name", ["cell", "conv1d", "conv2d", "linear 13 to 5", "attention, bmm", "attention, sdpa"])
def test_a_unit_has_the_same_bits_in_any_place_in_float64(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    images, targets = _case(shape, 23, 1.0, soft=False)
    _require_same_bits(make().double(), images.double(), targets, [1], permutations=3)


@pytest.mark.parametrize("name", ["linear", "scatter-linear", "small-cnn", "tanh-cnn", "vit-tiny", "wrn-10-1"])
def test_networks_by_name_keep_the_bits_of_others(name: str) -> None:
    model = _moved(build(name, SMALL_SHAPE, classes=CLASSES, seed=0))
    _require_same_bits(model, *_case(SMALL_SHAPE, 5, 1.0, soft=False), [1], permutations=1)


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_unit_has_the_same_bits_in_200_permutations(name: str, scale: float) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    for soft in (False, True):
        model = make()
        _require_same_bits(model, *_case(shape, 23, scale, soft=soft), [1], permutations=100)
        _require_same_bits(model, *_case(shape, 70, scale, soft=soft), [1], permutations=20, one_view=True)
        _require_same_bits(model, *_case(shape, 27, scale, soft=soft), [3], permutations=60)
        _require_same_bits(model, *_case(shape, 40, scale, soft=soft), [1, 4, 2], permutations=20)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_network_by_name_keeps_the_bits_of_others(name: str) -> None:
    """200 permutations over the five scales for networks that are fast enough, and fewer for the others."""
    model = _moved(build(name, SMALL_SHAPE, classes=CLASSES, seed=0))
    for scale in SCALES:
        for views in (1, 3):
            count = 1 if name in LARGE else 20
            _require_same_bits(
                model, *_case(SMALL_SHAPE, 6 * views, scale, soft=views == 3), [views], permutations=count, one_view=views == 1
            )  # fmt: skip


def _moved(model: nn.Module) -> nn.Module:
    """At weights other than zero, so that no path is closed."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    return model


@pytest.mark.parametrize("scale", [1e4, 1e5, 1e6, 1e7, 1e8])
@pytest.mark.parametrize("one_view", [False, True])
def test_logits_that_cancel_leave_the_sensitivity_as_it_is(scale: float, one_view: bool) -> None:
    """Rows in the null space of the weights' differences: a rounded bit of a logit turned a gradient around."""
    torch.manual_seed(0)
    model, units = nn.Linear(13, CLASSES), 512
    nn.init.normal_(model.weight)
    across, _ = torch.linalg.qr((model.weight[1:] - model.weight[:1]).detach().double().T)
    x = torch.randn(units, 13, dtype=torch.float64) * scale
    images, targets = (x - x @ across @ across.T).float(), torch.randint(0, CLASSES, (units,))
    engine = ClippedSum(model, each_loss, clip=1.0, one_view=one_view)
    total = engine(images, targets, [1] * units)
    for unit in (0, 1, 2, units // 2, units - 2, units - 1):
        left = [u for u in range(units) if u != unit]
        moved = total - engine(images[left], targets[left], [1] * len(left))
        assert float(moved.norm()) <= 1 + ARITHMETIC_SLACK
