"""One unit moves the sum by at most the sensitivity, whatever it is; the cut, the order and the pieces do not matter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dpvision.core import clipping
from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.models.resnets import wide_resnet
from dpvision.private.engine import Automatic, ClippedSum, Flat, PerLayer, Public, Style, Tally, pass_size
from tests.private.engine.oracle import clipped_sum, each_loss, unit_gradients

SHAPE = (1, 8, 8)
SMALL = ("linear", "small-cnn")


def _batch(count: int, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, generator=generator) * 2 - 1, torch.randint(0, 10, (count,), generator=generator)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("views", [[1] * 9, [3, 1, 4, 1], [9]])
@pytest.mark.parametrize("physical", [1, 4, None])
@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_equal_to_the_naive_loop_and_to_the_specification(
    name: str, views: list[int], physical: int | None, bound: float
) -> None:
    model = build(name, SHAPE, classes=10, seed=1)
    images, targets = _batch(9)
    total = ClippedSum(model, each_loss, clip=bound, physical=physical)(images, targets, views)
    expected = clipped_sum(unit_gradients(model, images, targets, views), bound)
    assert total.dtype == torch.float64
    assert float((total - expected).norm()) <= 1e-5 * max(bound, float(expected.norm()))
    units = list(zip(images.split(views), targets.split(views), strict=True))
    specified = clipping.clipped_sum(model, each_loss, clipping.Flat(bound), units)
    assert float((specified - expected).norm()) <= 1e-5 * float(expected.norm())


def test_frozen_parts_are_left_out() -> None:
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    images, targets = _batch(5)
    engine = ClippedSum(model, each_loss, clip=1.0)
    assert engine.size == sum(p.numel() for p in list(model.parameters())[-2:])
    expected = clipped_sum(unit_gradients(model, images, targets, [1] * 5), 1.0)
    assert float((engine(images, targets, [1] * 5) - expected).norm()) <= 1e-5 * float(expected.norm())


def _neighbours() -> dict[str, Tensor]:
    image = _batch(1, seed=7)[0][0]
    return {
        "ordinary": image,
        "huge": image * 1e6,
        "enormous": image * 1e30,
        "tiny": image * 1e-30,
        "zero": torch.zeros(SHAPE),
        "nan": torch.full(SHAPE, float("nan")),
        "one nan": image.clone().index_put_(tuple(torch.tensor([0]) for _ in range(3)), torch.tensor(float("nan"))),
        "inf": torch.full(SHAPE, float("inf")),
        "minus inf": torch.full(SHAPE, float("-inf")),
        "denormal": torch.full(SHAPE, 1e-42),
        "duplicate": _batch(6)[0][0],
    }


STYLES: dict[str, Style] = {"flat": Flat(0.5), "automatic": Automatic(0.5), "per-layer": PerLayer(0.5)}


@pytest.mark.parametrize("kind", sorted(_neighbours()))
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("copies", [1, 3])
def test_one_unit_more_moves_the_sum_by_at_most_the_sensitivity(kind: str, name: str, style: str, copies: int) -> None:
    model = build(name, SHAPE, classes=10, seed=1)
    engine = ClippedSum(model, each_loss, clip=STYLES[style])
    assert engine.sensitivity == pytest.approx(0.5)
    images, targets = _batch(6 * copies)
    without = engine(images, targets, [copies] * 6)
    more = (
        torch.cat([images, _neighbours()[kind].expand(copies, *SHAPE)]),
        torch.cat([targets, torch.full((copies,), 3)]),
    )
    with_it = engine(*more, [copies] * 7)
    assert torch.isfinite(with_it).all()
    moved = float((with_it - without).norm())
    assert moved <= engine.sensitivity * (1 + 1e-5)
    if "nan" in kind or "inf" in kind:
        assert torch.equal(with_it, without)
    elif kind in ("ordinary", "duplicate") and style == "automatic":
        assert moved > 0.4


@pytest.mark.parametrize("kind", ["ordinary", "huge", "nan", "zero"])
def test_shift_scale_and_perturbations_keep_the_sensitivity(kind: str) -> None:
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    engine = ClippedSum(model, each_loss, clip=0.5)
    generator = torch.Generator().manual_seed(3)
    vectors = [torch.randn(engine.size, generator=generator) for _ in range(4)]
    public = Public(scale=vectors[0].abs() * 10, shift=vectors[1], perturbations=[v * 0.1 for v in vectors[2:]])
    images, targets = _batch(8)
    without = engine(images[:6], targets[:6], [2] * 3, public)
    images[6:] = _neighbours()[kind]
    with_it = engine(images, targets, [2] * 4, public)
    assert float((with_it - without).norm()) <= 0.5 * (1 + 1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["linear", "small-cnn", "wide linear", "wide-resnet"])
def test_the_cut_does_not_change_a_bit(kind: str, threads: int) -> None:
    torch.manual_seed(0)
    shape = (3, 16, 16) if kind == "wide-resnet" else SHAPE
    if kind == "wide-resnet":
        model = wide_resnet(shape, 10, depth=10, width=2)
    elif kind == "wide linear":
        model = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 150), nn.Tanh(), nn.Linear(150, 120), nn.Tanh(), nn.Linear(120, 10)
        )
    else:
        model = build(kind, SHAPE, classes=10, seed=1)
    images, targets = _batch(80, shape=shape)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for views in ([1] * 80, [4] * 20):
            sums = [
                ClippedSum(model, each_loss, clip=1.0, physical=physical)(images, targets, views)
                for physical in (None, 4, 5, 16, 33, 80)
            ]
            assert all(torch.equal(s, sums[0]) for s in sums)
            engine = ClippedSum(model, each_loss, clip=1.0)
            parts = [(images[a : a + 20], targets[a : a + 20], views[: 20 // views[0]]) for a in range(0, 80, 20)]
            assert torch.equal(engine.sum(parts), sums[0])
    finally:
        torch.set_num_threads(before)


def test_shares_of_ranks_add_up_without_rounding() -> None:
    """Any split of the units, summed in any order, gives the same bits."""
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    engine = ClippedSum(model, each_loss, clip=0.3)
    images, targets = _batch(60)
    whole = engine(images, targets, [1] * 60)
    for ranks in (2, 3, 4):
        shares = [engine(images[r::ranks], targets[r::ranks], [1] * len(targets[r::ranks])) for r in range(ranks)]
        assert torch.equal(sum(shares), whole)  # type: ignore[arg-type]
        assert torch.equal(sum(reversed(shares)), whole)  # type: ignore[arg-type]


def test_a_person_counts_once_however_many_images() -> None:
    """Clipping each view and adding up would move the sum by K * C."""
    model = build("linear", SHAPE, classes=10, seed=1)
    engine = ClippedSum(model, each_loss, clip=0.1, physical=4)
    image, target = _batch(1)
    many = engine(image.expand(40, *SHAPE), target.expand(40), [40])
    assert float(many.norm()) <= 0.1 * (1 + 1e-6)
    assert torch.allclose(many, engine(image, target, [1]), atol=1e-6)


def test_an_empty_batch_is_zero_and_leaves_nothing_behind() -> None:
    engine = ClippedSum(build("linear", SHAPE, classes=10, seed=1), each_loss, clip=1.0)
    images, targets = _batch(3)
    assert torch.equal(engine(images[:0], targets[:0], []), torch.zeros(650, dtype=torch.float64))
    first = engine(images, targets, [1] * 3)
    assert torch.equal(engine(images[:0], targets[:0], []), torch.zeros(650, dtype=torch.float64))
    assert torch.equal(engine(images, targets, [1] * 3), first)
    kept = first.clone()
    engine(images, targets, [3])
    assert torch.equal(first, kept)  # a later sum does not write into an earlier one


def test_weights_that_moved_are_seen() -> None:
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    engine = ClippedSum(model, each_loss, clip=1.0)
    images, targets = _batch(4)
    before = engine(images, targets, [1] * 4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    expected = clipped_sum(unit_gradients(model, images, targets, [1] * 4), 1.0)
    after = engine(images, targets, [1] * 4)
    assert not torch.equal(before, after)
    assert torch.allclose(after, expected, rtol=1e-4, atol=1e-6)


def test_styles_by_their_formulas() -> None:
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    images, targets = _batch(5)
    gradients = unit_gradients(model, images, targets, [1] * 5)
    automatic = ClippedSum(model, each_loss, clip=Automatic(0.7, stability=0.05))(images, targets, [1] * 5)
    expected = (gradients * (0.7 / (gradients.norm(dim=1, keepdim=True) + 0.05))).sum(0)
    assert torch.allclose(automatic, expected, rtol=1e-4, atol=1e-6)

    names = [n for n, _ in model.named_parameters()]
    layers = list(dict.fromkeys(n.rpartition(".")[0] for n in names))
    bounds = {layer: 0.01 * (i + 1) for i, layer in enumerate(layers)}
    style = PerLayer(bounds)
    assert style.sensitivity == pytest.approx(math.sqrt(sum(c * c for c in bounds.values())))
    result = ClippedSum(model, each_loss, clip=style)(images, targets, [1] * 5)
    start, wanted = 0, torch.zeros_like(result)
    by_layer: dict[str, list[slice]] = {}
    for name, parameter in model.named_parameters():
        by_layer.setdefault(name.rpartition(".")[0], []).append(slice(start, start + parameter.numel()))
        start += parameter.numel()
    for layer, parts in by_layer.items():
        index = torch.cat([torch.arange(p.start, p.stop) for p in parts])
        wanted[index] = clipped_sum(gradients[:, index], bounds[layer])
    assert torch.allclose(result, wanted, rtol=1e-4, atol=1e-7)
    with pytest.raises(ConfigError, match="exactly the trainable layers"):
        ClippedSum(model, each_loss, clip=PerLayer({"nowhere": 1.0}))


def test_the_operators_tallies_change_nothing() -> None:
    model = build("linear", SHAPE, classes=10, seed=1)
    images, targets = _batch(8)
    seen = Tally()
    watched = ClippedSum(model, each_loss, clip=0.1, watch=seen)(images, targets, [1] * 8)
    assert torch.equal(watched, ClippedSum(model, each_loss, clip=0.1)(images, targets, [1] * 8))
    tally = seen.flush()
    assert tally["units"] == 8 and tally["clipped_share"] == 1.0
    assert seen.flush()["units"] == 0


def test_bad_arguments_are_refused() -> None:
    model = build("linear", SHAPE, classes=10, seed=1)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        for style in (Flat, Automatic, PerLayer):
            with pytest.raises(ConfigError, match="clip is"):
                style(bad)
    with pytest.raises(ConfigError, match="stability"):
        Automatic(1.0, stability=0.0)
    engine = ClippedSum(model, each_loss, clip=1.0)
    images, targets = _batch(4)
    for views in ([1, 1], [2, 0, 2], [5]):
        with pytest.raises(ConfigError, match="must sum to the number of images"):
            engine(images, targets, views)
    with pytest.raises(ConfigError, match="one for each trainable weight"):
        engine(images, targets, [1] * 4, Public(shift=torch.zeros(3)))
    with pytest.raises(ConfigError, match="every unit must have 2 views"):
        engine(images, targets, [1] * 4, Public(perturbations=[torch.zeros(650)] * 2))
    with pytest.raises(ConfigError, match="reduction='none'"):
        ClippedSum(model, nn.functional.cross_entropy, clip=1.0)(images, targets, [1] * 4)
    with pytest.raises(ConfigError, match="no trainable"):
        ClippedSum(model.requires_grad_(False), each_loss, clip=1.0)


def test_memory_does_not_grow_with_the_batch() -> None:
    """The cut follows what a pass keeps: a deeper network gets fewer images at a time."""
    small = ClippedSum(build("small-cnn", (3, 32, 32), classes=10, seed=1), each_loss, clip=1.0)
    large = ClippedSum(wide_resnet((3, 32, 32), 10), each_loss, clip=1.0)
    images, targets = _batch(2, shape=(3, 32, 32))
    for engine in (small, large):
        engine(images, targets, [1, 1])
    assert large.pass_images < small.pass_images <= pass_size.MAX_IMAGES
