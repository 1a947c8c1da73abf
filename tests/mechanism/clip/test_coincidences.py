"""What once went wrong, or nearly: sizes that happen to agree, reused memory, failures half-way, frozen layers."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.mechanism.clip import Automatic, ClippedSum, Public, verify
from tests.mechanism.clip.oracle import each_loss, unit_gradients


class _Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.t = nn.Linear(5, 10), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * self.t.expand(10)


class _Shared(nn.Module):
    """One row for all 16 outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.s = nn.Parameter(torch.randn(1, 5)), nn.Parameter(torch.randn(1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w.expand(16, 5)) + F.linear(x, self.w * self.s.expand(16, 5).sin())


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 15, 16, 17])
@pytest.mark.parametrize("kind", [_Temperature, _Shared])
def test_an_axis_as_long_as_the_batch_is_not_the_batch(kind: type[nn.Module], count: int) -> None:
    torch.manual_seed(0)
    model = kind()
    images, targets = torch.randn(count, 5), torch.randint(0, 10, (count,))
    found = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [1] * count)
    assert torch.allclose(found.double(), unit_gradients(model, images, targets, [1] * count), atol=1e-5)


class _ForPlaces(nn.Module):
    """A value for each of four places in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.places = nn.Linear(5, 10), nn.Parameter(torch.zeros(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + self.places


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_parameter_for_places_in_the_batch_is_refused(count: int) -> None:
    engine = ClippedSum(_ForPlaces(), each_loss, clip=1.0)
    with pytest.raises(UnsafeLayer, match="places"):
        engine(torch.randn(count, 5), torch.zeros(count, dtype=torch.int64), [1] * count)


def test_a_batch_buffer_may_be_used_again() -> None:
    buffer = torch.empty(4, 64)
    engine = ClippedSum(nn.Sequential(nn.Linear(64, 64)), each_loss, clip=1.0)

    def batches():
        for size in (1e-3, 1e-3, 1e4):
            buffer.copy_(torch.randn(4, 64) * size)
            yield buffer, torch.zeros(4, dtype=torch.int64), [1] * 4

    assert float(engine.sum(batches()).norm()) <= 12.01


@pytest.mark.parametrize("physical", [1, 2, 3, None])
def test_units_with_different_numbers_of_views_in_different_groups(physical: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    views = [1, 1, 2, 1, 3, 1, 1]
    images, targets = torch.randn(10, 64), torch.randint(0, 10, (10,))
    engine = ClippedSum(model, each_loss, clip=0.5, physical=physical)
    expected = unit_gradients(model, images, targets, views)
    wanted = (expected * (0.5 / expected.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    for _ in range(2):
        assert float((engine(images, targets, views) - wanted).norm()) <= 1e-5 * float(wanted.norm())


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_of_a_sum_that_failed_is_left(threads: int) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            if bool((x[0, 0] > 50).item()):
                time.sleep(0.05)
                raise OSError("broken")
            time.sleep(0.1)
            return self.head(x)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = ClippedSum(Fails(), each_loss, clip=1.0, physical=2)
        images, targets = torch.randn(8, 8), torch.zeros(8, dtype=torch.int64)
        images[2] = 100.0
        with pytest.raises(OSError):
            engine(images, targets, [1] * 8)
        assert torch.count_nonzero(engine.sum([])) == 0
        torch.set_num_threads(1)  # another number than before
        assert float(engine(images[:1], targets[:1], [1]).norm()) <= 1.0001
    finally:
        torch.set_num_threads(before)


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


def test_a_filter_that_is_used_in_two_ways() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.head = nn.Parameter(torch.randn(4, 4, 3, 3) * 0.2), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(F.conv2d(x, self.w, stride=2))
            return self.head(torch.tanh(F.conv2d(x, 2 * self.w)).flatten(2).mean(2))

    torch.manual_seed(0)
    model = Both()
    images, targets = torch.randn(3, 4, 9, 9), torch.randint(0, 10, (3,))
    found = ClippedSum(model, each_loss, clip=1.0).gradients(images, targets, [1] * 3)
    assert torch.allclose(found.double(), unit_gradients(model, images, targets, [1] * 3), atol=1e-5)


class _Hides(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self.how = nn.Linear(6, 10), how
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "by the largest":
            x = x / x.abs().max().clamp(min=1)
        elif self.how == "in a buffer":
            self.mean.copy_(x.detach().mean(0))
        return self.head(x)


@pytest.mark.parametrize("how", ["by the largest", "in a buffer"])
def test_mixing_by_magnitude_and_keeping_in_buffers_are_found(how: str) -> None:
    with pytest.raises(UnsafeLayer):
        verify(_Hides(how), each_loss, (6,), 10)
    verify(_Hides("not"), each_loss, (6,), 10)


def test_half_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match="half precision"):
        ClippedSum(nn.Linear(4, 10).bfloat16(), each_loss, clip=1.0)


def test_products_of_the_tiny_and_the_huge_keep_the_bound() -> None:
    model = nn.Linear(64, 130, bias=False)
    loss = lambda output, _: (output * 5e17).sum(1)  # noqa: E731
    total = ClippedSum(model, loss, clip=1e-3)(torch.full((1, 64), 2.6e-23), torch.zeros(1), [1])
    assert float(total.norm()) <= 1.001e-3


def _moved_by_one_more(model: nn.Module, shape: tuple[int, ...], count: int) -> float:
    """How far the sum moves when one unit is added at the end, relative to the bound."""
    torch.manual_seed(1)
    images, targets = torch.randn(count + 1, *shape), torch.randint(0, 10, (count + 1,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    fewer = engine(images[:count], targets[:count], [1] * count)
    return float((engine(images, targets, [1] * (count + 1)) - fewer).norm())


class _Pooled(nn.Module):
    """A 1x1 convolution of pooled features (squeeze and excite)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.head = nn.Conv2d(8, 64, 1), nn.Conv2d(64, 64, 1), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(F.relu(self.one(x.mean((2, 3), keepdim=True))))
        return self.head(F.relu(y).flatten(1))


class _Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.head = nn.Linear(64, 1), nn.Linear(1, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.one(x)))


@pytest.mark.parametrize(("kind", "shape"), [(_Pooled, (8, 4, 4)), (_Narrow, (64,))])
def test_the_gradients_of_others_have_the_same_bits(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    """Kernels that round by the size of the batch: behind a ReLU that was 16 bounds."""
    torch.manual_seed(1)
    model, images, targets = kind(), torch.randn(70, *shape), torch.randint(0, 10, (70,))
    engine = ClippedSum(model, each_loss, clip=1.0)
    alone = engine.gradients(images, targets, [1] * 70)
    for count in (1, 2, 3, 7, 15, 16, 17, 31, 33, 47, 48, 63, 65):
        found = engine.gradients(images[:count], targets[:count], [1] * count)
        assert torch.equal(found, alone[:count]), count
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


def test_sums_of_products_are_exact_however_large() -> None:
    """6,000 units of one direction, then as many of the other: partial sums of thousands of bounds."""
    model = nn.Sequential(nn.Linear(256, 10, bias=False))
    nn.init.zeros_(model[0].weight)
    torch.manual_seed(0)
    images, targets = torch.rand(6000, 256) * 0.001, (torch.arange(6000) // 3000) % 2
    images[:, 0] = 10.0
    found = []
    for order in (torch.arange(6000), torch.arange(5999, -1, -1), torch.randperm(6000)):
        for physical in (100, 1000, None):
            engine = ClippedSum(model, each_loss, clip=1.0, physical=physical, one_view=True)
            found.append(engine(images[order], targets[order], [1] * 6000))
    assert all(torch.equal(f, found[0]) for f in found)


def test_rounding_of_many_layers_stays_within_the_slack() -> None:
    from dpvision.mechanism.clip.exact import rounding_of_products
    from dpvision.mechanism.clip.slots import MOST_ROUNDING, Slots

    for count, size in ((1, 2048), (256, 128), (1024, 32)):
        matrices = {f"{i}.weight": torch.zeros(size, size) for i in range(count)}
        kept = [n for n, slot in Slots(matrices, 1, dict.fromkeys(matrices, 1.0)).items() if slot.factored]
        assert len(kept) ** 0.5 * rounding_of_products(size, size) <= MOST_ROUNDING < 1e-4 - 2.0**-15
        assert kept


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_sum_leaves_nothing(threads: int) -> None:
    """Ctrl-C while threads are at work: what they still finish must not enter the next sum."""
    import _thread
    import threading

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return self.head(x)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = ClippedSum(Slow(), each_loss, clip=1.0, physical=1)
        timer = threading.Timer(0.12, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            engine(torch.randn(40, 8), torch.zeros(40, dtype=torch.int64), [1] * 40)
        timer.join()
        for _ in range(3):
            assert float(engine(torch.randn(1, 8), torch.zeros(1, dtype=torch.int64), [1]).norm()) <= 1.0001
            assert float(engine(torch.empty(0, 8), torch.zeros(0, dtype=torch.int64), []).norm()) == 0.0
            time.sleep(0.1)
    finally:
        torch.set_num_threads(before)


class _Remembers(nn.Module):
    """A moving mean in a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 10)
        self.mean = nn.Parameter(torch.zeros(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.data.mul_(0.9)
            torch.Tensor.add_(self.mean, 0.1 * x.detach().as_subclass(Tensor).double().mean(0).to(self.mean))
        return self.head(x)


def test_frozen_parameters_that_remember_images_are_refused() -> None:
    with pytest.raises(UnsafeLayer, match=r"mean|changed"):
        verify(_Remembers(), each_loss, (5,), 10)
    with pytest.raises(UnsafeLayer, match="changed its own"):
        ClippedSum(_Remembers(), each_loss, clip=1.0)(torch.randn(4, 5), torch.zeros(4, dtype=torch.int64), [1] * 4)


def test_an_embedding_that_rescales_itself_is_refused_also_when_frozen() -> None:
    model = nn.Sequential(nn.Embedding(30, 4, max_norm=1.0), nn.Flatten(), nn.Linear(20, 10))
    model[0].weight.requires_grad_(False)
    with pytest.raises(UnsafeLayer, match="max_norm"):
        ClippedSum(model, each_loss, clip=1.0)(torch.randint(0, 30, (4, 5)), torch.zeros(4, dtype=torch.int64), [1] * 4)


def test_stability_below_what_norms_can_show_is_refused() -> None:
    with pytest.raises(ConfigError, match="stability"):
        Automatic(1.0, stability=1e-24)


def test_parts_that_are_computed_again_use_the_moved_weights() -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(checkpoint(lambda v: torch.tanh(self.inner(v)), x, use_reentrant=False))

    class Once(Again):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(x)))

    torch.manual_seed(0)
    again, images, targets = Again(), torch.randn(4, 6), torch.randint(0, 10, (4,))
    once = Once()
    once.load_state_dict(again.state_dict())
    moves = Public(perturbations=[torch.randn(112), torch.randn(112)])
    a, b = (ClippedSum(m, each_loss, clip=1.0)(images, targets, [2, 2], moves) for m in (again, once))
    assert float((a - b).norm()) <= 1e-6 * float(b.norm())


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
