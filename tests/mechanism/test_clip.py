"""The clipped sum equals the naive loop, moves by at most C for any one unit, and refuses what mixes examples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.mechanism.clip import ClippedSum, Seen, clipped, probe, refuse_unsafe
from dpvision.models import MODELS, build

SHAPE = (1, 8, 8)
SMALL = ("linear", "small-cnn")  # the wide networks would take minutes


def _batch(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=generator) * 2 - 1, torch.randint(0, 10, (count,), generator=generator)


def _naive(model: nn.Module, images: Tensor, targets: Tensor, views: list[int], bound: float) -> Tensor:
    """One unit at a time, by ordinary backward passes."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    start = 0
    for count in views:
        loss = F.cross_entropy(model(images[start : start + count]), targets[start : start + count])
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]).double()
        if torch.isfinite(flat).all():
            total += flat * min(1.0, bound / float(flat.norm()))
        start += count
    return total


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("views", [[1] * 9, [3, 1, 4, 1], [9]])
@pytest.mark.parametrize("physical", [1, 4, 256])
@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_equal_to_the_naive_loop(name: str, views: list[int], physical: int, bound: float) -> None:
    model = build(name, SHAPE, classes=10, seed=1)
    images, targets = _batch(9)
    total = ClippedSum(model, F.cross_entropy, clip=bound, physical=physical)(images, targets, views)
    expected = _naive(model, images, targets, views, bound)
    assert total.dtype == torch.float64
    assert float((total - expected).norm()) <= 1e-5 * float(expected.norm())


def test_frozen_parts_are_left_out() -> None:
    model = build("small-cnn", SHAPE, classes=10, seed=1)
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    images, targets = _batch(5)
    clipped_sum = ClippedSum(model, F.cross_entropy, clip=1.0)
    head = sum(p.numel() for p in list(model.parameters())[-2:])
    assert clipped_sum.size == head
    expected = _naive(model, images, targets, [1] * 5, 1.0)
    assert torch.allclose(clipped_sum(images, targets, [1] * 5), expected, rtol=1e-5, atol=1e-7)


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


@pytest.mark.parametrize("kind", sorted(_neighbours()))
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("physical", [1, 3, 256])
def test_one_unit_more_moves_the_sum_by_at_most_the_sensitivity(kind: str, name: str, physical: int) -> None:
    model = build(name, SHAPE, classes=10, seed=1)
    clipped_sum = ClippedSum(model, F.cross_entropy, clip=0.5, physical=physical)
    images, targets = _batch(6)
    without = clipped_sum(images, targets, [1] * 6)
    more = torch.cat([images, _neighbours()[kind].unsqueeze(0)]), torch.cat([targets, torch.tensor([3])])
    with_it = clipped_sum(*more, [1] * 7)
    assert torch.isfinite(with_it).all()
    # Each unit's own float32 gradient may round otherwise in another batch; that is far below the bound here.
    assert float((with_it - without).norm()) <= clipped_sum.sensitivity * (1 + 1e-6)
    if "nan" in kind or "inf" in kind:
        assert torch.allclose(with_it, without, atol=1e-6)


def test_a_person_counts_once_however_many_images() -> None:
    """Clipping each view and adding up would move the sum by K * C."""
    model = build("linear", SHAPE, classes=10, seed=1)
    clipped_sum = ClippedSum(model, F.cross_entropy, clip=0.1, physical=4)
    image, target = _batch(1)
    many = clipped_sum(image.expand(40, *SHAPE), target.expand(40), [40])
    assert float(many.norm()) <= 0.1 * (1 + 1e-9)
    assert torch.allclose(many, clipped_sum(image, target, [1]), atol=1e-6)


def test_an_empty_batch_is_zero() -> None:
    clipped_sum = ClippedSum(build("linear", SHAPE, classes=10, seed=1), F.cross_entropy, clip=1.0)
    images, targets = _batch(0)
    assert torch.equal(clipped_sum(images, targets, []), torch.zeros(650, dtype=torch.float64))


def test_clipping_is_exact_at_the_bound() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [float("inf"), 1.0], [1e30, 1e30]])
    assert torch.allclose(clipped(rows[:1], 1.0), torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert torch.equal(clipped(rows[1:2], 1.0), rows[1].double())
    assert torch.equal(clipped(rows[2:4], 1.0), torch.zeros(2, dtype=torch.float64))
    assert float(clipped(rows[4:], 1.0).norm()) == pytest.approx(1.0)


class _Coupled(nn.Module):
    """Looks harmless by class, but centres the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.head(x - x.mean(0))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(1),
        nn.BatchNorm2d(1, track_running_stats=False),
        nn.SyncBatchNorm(1),
        nn.InstanceNorm2d(1, track_running_stats=True),
        nn.LazyBatchNorm2d(),
    ],
)
def test_layers_that_mix_examples_are_refused_by_name(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Identity(), layer, nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(UnsafeLayer, match=f"1 \\({type(layer).__name__}\\)"):
        ClippedSum(model, F.cross_entropy, clip=1.0)


def test_a_hidden_mixture_is_found_by_trial() -> None:
    refuse_unsafe(_Coupled())
    with pytest.raises(UnsafeLayer, match="changing one image"):
        probe(_Coupled(), torch.zeros(SHAPE), 10)
    for name in MODELS:
        probe(build(name, SHAPE, classes=10, seed=0), torch.zeros(SHAPE), 10)
    with pytest.raises(ConfigError, match="outputs of shape"):
        probe(build("linear", SHAPE, classes=3, seed=0), torch.zeros(SHAPE), 10)


def test_the_operators_tallies_change_nothing() -> None:
    model = build("linear", SHAPE, classes=10, seed=1)
    images, targets = _batch(8)
    seen = Seen()
    watched = ClippedSum(model, F.cross_entropy, clip=0.1, watch=seen)(images, targets, [1] * 8)
    assert torch.equal(watched, ClippedSum(model, F.cross_entropy, clip=0.1)(images, targets, [1] * 8))
    tally = seen.flush()
    assert tally["units"] == 8 and tally["clipped_share"] == 1.0
    assert seen.flush()["units"] == 0


def test_bad_bounds_are_refused() -> None:
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError):
            ClippedSum(build("linear", SHAPE, classes=10, seed=1), F.cross_entropy, clip=bad)


def test_seeds_fix_the_first_weights_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (build("small-cnn", SHAPE, classes=10, seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
