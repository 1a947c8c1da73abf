"""An image has the same bits in any batch, and sums do not round: no unit moves what others contribute."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import build
from dpvision.private.engine import ClippedSum
from tests.private.engine.oracle import each_loss, unit_gradients


@pytest.mark.parametrize("kind", ["linear", "conv", "silu", "softplus", "elu", "sigmoid", "gelu"])
def test_frozen_layers_and_activations_give_an_image_the_same_bits_in_any_batch(kind: str) -> None:
    torch.manual_seed(0)
    middle: nn.Module = {
        "linear": nn.Linear(13, 13),
        "conv": nn.Sequential(nn.Unflatten(1, (1, 13, 1)), nn.Conv2d(1, 1, 1), nn.Flatten()),
        "silu": nn.SiLU(),
        "softplus": nn.Softplus(),
        "elu": nn.ELU(),
        "sigmoid": nn.Sigmoid(),
        "gelu": nn.GELU(approximate="tanh"),
    }[kind].requires_grad_(False)
    model = nn.Sequential(nn.Linear(13, 13), middle, nn.Linear(13, 10))
    images, targets = torch.randn(40, 13), torch.randint(0, 10, (40,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    all_of_them = engine.gradients(images, targets, [1] * 40)
    for count in (1, 2, 3, 5, 8, 17, 31):
        assert torch.equal(engine.gradients(images[:count], targets[:count], [1] * count), all_of_them[:count])


def test_what_was_summed_before_does_not_matter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(64, 256, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(256 * 16, 10))
    images, targets = torch.randn(8, 64, 4, 4), torch.randint(0, 10, (8,))
    fresh, used = (ClippedSum(model, each_loss, clip=1.0) for _ in range(2))
    used(images, targets, [8])
    assert torch.equal(used(images[:4], targets[:4], [1, 3]), fresh(images[:4], targets[:4], [1, 3]))


def test_products_of_the_tiny_and_the_huge_keep_the_bound() -> None:
    model = nn.Linear(64, 130, bias=False)
    loss = lambda output, _: (output * 5e17).sum(1)  # noqa: E731
    total = ClippedSum(model, loss, clip=1e-3)(torch.full((1, 64), 2.6e-23), torch.zeros(1), [1])
    assert float(total.norm()) <= 1.001e-3


@pytest.fixture
def any_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _moved_by_one_more(model: nn.Module, shape: tuple[int, ...], count: int) -> float:
    """How far the sum moves when one unit is added at the end, relative to the bound."""
    torch.manual_seed(1)
    images, targets = torch.randn(count + 1, *shape), torch.randint(0, 10, (count + 1,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    fewer = engine(images[:count], targets[:count], [1] * count)
    return float((engine(images, targets, [1] * (count + 1)) - fewer).norm())


def _by_points(axes: int, channels: int, filters: int, side: int, groups: int) -> nn.Module:
    """Convolutions by filters of one position."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    return nn.Sequential(
        conv(channels, filters, 1, groups=groups),
        nn.ReLU(),
        conv(filters, channels, 1, groups=groups),
        nn.Flatten(),
        nn.Linear(channels * side**axes, 10),
    )


class _SomeChannels(nn.Module):
    """A depthwise filter on a part of the channels, which do not lie side by side in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = (
            nn.Conv2d(16, 16, 3, padding=1),
            nn.Conv2d(8, 8, 1, groups=8),
            nn.Linear(128, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.two(torch.relu(self.one(x))[:, 4:12])).flatten(1))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (_SomeChannels, (16, 4, 4)),
        (lambda: nn.Sequential(nn.Linear(64, 1), nn.ReLU(), nn.Linear(1, 10)), (64,)),
        (lambda: _by_points(1, 8, 8, 64, 8), (8, 64)),
        (lambda: _by_points(2, 8, 8, 4, 8), (8, 4, 4)),
        (lambda: _by_points(2, 480, 8, 8, 1), (480, 8, 8)),
        (lambda: _by_points(3, 8, 8, 4, 1), (8, 4, 4, 4)),
    ],
    ids=["some channels", "narrow", "1-d", "depthwise", "many channels", "3-d"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_gradients_of_others_have_the_same_bits(
    make: Callable[[], nn.Module], shape: tuple[int, ...], threads: int, any_threads: None
) -> None:
    """Kernels that round by the size of the batch: behind a ReLU that was 16 bounds."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model, images, targets = make(), torch.randn(70, *shape), torch.randint(0, 10, (70,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    alone = engine.gradients(images, targets, [1] * 70)
    for count in (1, 2, 3, 7, 15, 16, 17, 31, 33, 47, 48, 63, 65):
        gradients = engine.gradients(images[:count], targets[:count], [1] * count)
        assert torch.equal(gradients, alone[:count]), count
    for count in (15, 47, 63):
        assert _moved_by_one_more(model, shape, count) <= 1.0001


def test_a_person_with_two_images_does_not_change_how_others_are_rounded() -> None:
    torch.manual_seed(0)
    model, others = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 200
    images, targets = torch.randn(others + 2, 784), torch.randint(0, 10, (others + 2,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    with_one = engine(images, targets, [1] * others + [2]) - engine(images[others:], targets[others:], [2])
    assert torch.equal(with_one, engine(images[:others], targets[:others], [1] * others))
    promised = ClippedSum(model, each_loss, clip=1.0, one_view=True)
    with pytest.raises(ConfigError, match="one_view"):
        promised(images, targets, [1] * others + [2])


@pytest.mark.parametrize(("name", "shape", "classes"), [("linear", (1, 8, 8), 2), ("scatter-cnn", (1, 8, 8), 5)])
@pytest.mark.parametrize("more", [[1], [3], [1, 5, 40]])
def test_persons_with_other_numbers_of_images_do_not_move_others(
    name: str, shape: tuple[int, int, int], classes: int, more: list[int]
) -> None:
    """Small products were made at once only where all units had as many images: one person more was up to 1.04 C."""
    torch.manual_seed(0)
    model, count = build(name, shape, classes=classes, seed=0), 200 + sum(more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    engine = ClippedSum(model, each_loss, clip=0.01)
    images, targets = torch.rand(count, *shape) * 2 - 1, torch.randint(0, classes, (count,))
    alone = engine.gradients(images[:200], targets[:200], [2] * 100)
    with_more = engine.gradients(images, targets, [2] * 100 + more)
    assert torch.equal(with_more[:100], alone)
    first = engine.gradients(images[200:], targets[200:], more)
    assert torch.equal(with_more[100:], first)


def test_sums_of_products_are_exact_however_large() -> None:
    """12,000 units of one direction, then as many of the other: partial sums of thousands of bounds."""
    model = nn.Sequential(nn.Linear(64, 10, bias=False))
    nn.init.zeros_(model[0].weight)
    torch.manual_seed(0)
    images, targets = torch.randn(24000, 64), torch.arange(24000) // 12000
    images[:, 0] += 100.0
    results = []
    for order in (torch.arange(24000), torch.arange(23999, -1, -1), torch.randperm(24000)):
        for physical in (100, 1000, None):
            engine = ClippedSum(model, each_loss, clip=1.0, physical=physical, one_view=True)
            results.append(engine(images[order], targets[order], [1] * 24000))
    assert all(torch.equal(f, results[0]) for f in results)


def test_rounding_of_many_layers_stays_within_the_slack() -> None:
    from dpvision.private.engine.exact import rounding_of_products
    from dpvision.private.engine.slots import MAX_ROUNDING, Slots

    for count, size in ((1, 2048), (256, 128), (1024, 32)):
        matrices = {f"{i}.weight": torch.zeros(size, size) for i in range(count)}
        kept = [n for n, slot in Slots(matrices, 1, dict.fromkeys(matrices, 1.0)).items() if slot.factored]
        assert len(kept) ** 0.5 * rounding_of_products(size, size) <= MAX_ROUNDING < 1e-4 - 2.0**-15
        assert kept


class _Activated(nn.Module):
    def __init__(self, which: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.head, self.which = nn.Linear(5, 7), nn.Linear(7, 10), which
        self.silu = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        if self.which == "silu in place":
            self.silu(y)  # what it gives back is not used: the input itself must have changed
        elif self.which == "sigmoid in place":
            y.sigmoid_()
        elif self.which == "expit":
            y = torch.special.expit(y)
        else:
            y = (y.abs() + 0.1) ** 1.3
        return self.head(y)


@pytest.mark.parametrize("which", ["silu in place", "sigmoid in place", "expit", "power"])
def test_activations_have_the_same_bits_and_gradients_in_any_batch(which: str) -> None:
    torch.manual_seed(1)
    model, images, targets = _Activated(which), torch.randn(64, 5), torch.randint(0, 10, (64,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    together = engine.gradients(images, targets, [1] * 64)
    for count in (1, 9, 31, 63):
        assert torch.equal(engine.gradients(images[:count], targets[:count], [1] * count), together[:count])
    expected = unit_gradients(model, images[:8], targets[:8], [1] * 8)
    assert torch.allclose(together[:8].double(), expected, atol=1e-5)
