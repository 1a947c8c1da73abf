"""The stand-in accelerator: the numbers of the CPU, in the manner of a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

standin = pytest.importorskip("tests.standin")

FAR = torch.device("standin:0")
X = torch.linspace(-1, 3, 24).reshape(2, 3, 4)


def _network(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm, nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 5),
    )  # fmt: skip


def _train(device: str, norm: nn.Module, optimiser: type[torch.optim.Optimizer]) -> list[Tensor]:
    """Three steps; what the network is afterwards, on the host."""
    model = _network(norm).to(device)
    step, rng = optimiser(model.parameters(), lr=0.05), torch.Generator().manual_seed(1)
    for _ in range(3):
        images, labels = torch.randn(6, 3, 10, 10, generator=rng), torch.randint(5, (6,), generator=rng)
        step.zero_grad()
        with torch.autograd.set_multithreading_enabled(False):  # a thread of the device may divide sums differently
            F.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        step.step()
    assert all(value.device == torch.device(device) for value in model.state_dict().values())
    return [value.cpu() for value in model.state_dict().values()]


# What it computes


@pytest.mark.parametrize("place", ["standin:0", "standin:1"])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(2, 8), lambda: nn.BatchNorm2d(8)])
def test_training_gives_the_bits_of_the_host(norm: Callable[[], nn.Module], optimiser: Any, place: str) -> None:
    expected, result = _train("cpu", norm(), optimiser), _train(place, norm(), optimiser)
    assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))


OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "einsum": lambda x: torch.einsum("abc,dbc->ad", x, x),
    "product of a transposed matrix": lambda x: x.mT @ x,
    "sum in float64": lambda x: x.double().sum((0, 2)),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "index by a list": lambda x: x[:, [0, 2]],
    "index by a mask": lambda x: x[x > 1],
    "index_put": lambda x: x.clone().index_put_((torch.tensor([1], device=x.device),), x[:1]),
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2], device=x.device)),
    "scatter_add": lambda x: x.scatter_add(2, torch.zeros(2, 3, 4, dtype=torch.int64, device=x.device), x),
    "where with a number": lambda x: torch.where(x > 1, x, torch.tensor(0.0)),
    "concatenation": lambda x: torch.cat([x, x[:1]]),
    "stack of a list of views": lambda x: torch.stack(x.unbind(1)),
    "sort": lambda x: x.sort(-1, descending=True),
    "largest": lambda x: x.topk(2),
    "windows": lambda x: x.unfold(2, 2, 1),
    "patches": lambda x: F.unfold(x[None], 2),
    "padding": lambda x: F.pad(x, (1, 2)),
    "other type": lambda x: x.to(torch.bfloat16).float(),
    "bits": lambda x: x.view(torch.int32),
    "frexp": torch.frexp,
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "interpolation": lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear"),
    "grid": lambda x: F.grid_sample(x[None], x.new_zeros(1, 2, 2, 2), align_corners=False),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x[0] @ x[0].T),
    "Fourier transform": lambda x: torch.fft.rfft(x).abs(),
    "conjugate": lambda x: torch.complex(x, x).conj() * 2,
    "one hot": lambda x: F.one_hot(x.long().clamp(0), 9),
    "range": lambda x: torch.arange(5, device=x.device),
    "in place on a view": lambda x: x.clone()[:, 1].mul_(2).add_(1),
    "written into an empty tensor": lambda x: torch.add(x, 1, out=x.new_empty(0)),
    "losses": lambda x: F.cross_entropy(x[:, :, 0], torch.tensor([0, 1], device=x.device), reduction="none"),
    "sums by vmap": lambda x: torch.func.vmap(torch.sum)(x),
    "gradients by vmap": lambda x: torch.func.vmap(
        torch.func.grad(lambda w, v: F.conv2d(v[None], w).square().sum()), (None, 0)
    )(x.new_ones(5, 1, 2, 2), torch.stack([x[:1], 2 * x[:1]])),
}  # fmt: skip


# In one full run of the tests two calls of the host's own kernel rounded differently.
ROUNDED_BY_ADDRESS = {"interpolation"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_the_bits_of_the_host(name: str) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for expected, result in zip(leaves(OPERATIONS[name](X)), leaves(OPERATIONS[name](X.to(FAR))), strict=True):
        assert result.device == FAR and result.stride() == expected.stride()
        if name in ROUNDED_BY_ADDRESS:
            torch.testing.assert_close(result.cpu(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(result.cpu(), expected)


def test_second_derivatives_and_checkpoints() -> None:
    results = []
    for device in ("cpu", "standin"):
        weight = torch.linspace(0, 1, 9, device=device).reshape(3, 3).requires_grad_()
        (first,) = torch.autograd.grad((weight @ weight).tanh().sum(), weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), weight)
        checkpoint(lambda w: (w @ w).sum(), weight, use_reentrant=False).backward()
        results.append((second.cpu(), weight.grad.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_backward_pass_runs_in_a_thread_of_the_device() -> None:
    threads = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            threads.append(threading.get_ident())
            return 2 * gradient

    for device in ("cpu", "standin"):
        Twice.apply(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    assert threads[0] == threading.get_ident() != threads[1]


def test_modules_keep_their_ties_and_their_parameters_when_they_move() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = weight = model[0].weight
    model.to(FAR)
    assert model[0].weight is model[1].weight is weight and weight.device == FAR
    assert model.cpu()[1].weight is weight and weight.device.type == "cpu"
    assert not torch.__future__.get_swap_module_params_on_conversion(), "modules that stay are moved as always"


# What is refused

MIXED: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x + torch.ones(2, 3, 4),
    "sum, in the other order": lambda x: torch.ones(2, 3, 4) + x,
    "sum in place": lambda x: torch.ones(2, 3, 4).add_(x),
    "number in place": lambda x: torch.tensor(1.0).add_(x[0, 0, 0]),
    "two accelerators": lambda x: x + x.to("standin:1"),
    "product": lambda x: torch.ones(4, 4) @ x[0].T,
    "linear": lambda x: F.linear(x, torch.ones(2, 4)),
    "convolution": lambda x: F.conv1d(x, torch.ones(2, 3, 1)),
    "concatenation": lambda x: torch.cat([x, torch.ones(1, 3, 4)]),
    "stack with a number": lambda x: torch.stack([torch.zeros(()), x[0, 0, 0]]),
    "targets": lambda x: F.cross_entropy(x[:, :, 0], torch.tensor([0, 1])),
    "selected by the host": lambda x: x.index_select(0, torch.tensor([0])),
    "gathered by the host": lambda x: x.gather(0, torch.zeros(1, 1, 1, dtype=torch.int64)),
    "the host's numbers at its indices": lambda x: torch.ones(3)[torch.tensor([0, 1], device=FAR)],
    "masked by the host": lambda x: x.masked_fill(torch.ones(2, 3, 4) > 0, 1.0),
    "the host's generator": lambda x: torch.randn(2, device=FAR, generator=torch.Generator()),
    "the host's generator in place": lambda x: x.normal_(generator=torch.Generator()),
    "its generator on the host": lambda x: torch.randn(2, generator=torch.Generator(FAR)),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_devices_are_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"same device|two devices|device type|on the same|cpu"):
        MIXED[name](X.to(FAR))


ALLOWED: dict[str, Callable[[Tensor], Any]] = {
    "number without dimensions": lambda x: x + torch.tensor(1.0),
    "indices from the host": lambda x: x[torch.tensor([0])],
    "mask from the host": lambda x: x[torch.ones(2, 3, 4) > 0],
    "copies": lambda x: torch.ones(2, 3, 4).copy_(x),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_cuda_allows_is_allowed(name: str) -> None:
    ALLOWED[name](X.to(FAR))


def test_numpy_needs_a_copy_on_the_host() -> None:
    with pytest.raises(TypeError, match="can't convert standin"):
        X.to(FAR).numpy()


def test_the_host_cannot_read_its_memory() -> None:
    code = "import tests.standin, torch, ctypes; ctypes.string_at(torch.ones(4, device='standin').data_ptr(), 4)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -11


def test_fresh_memory_is_nan(tmp_path: Any) -> None:
    assert torch.empty(7, device=FAR).isnan().all() and torch.empty_strided((2,), (3,), device=FAR).isnan().all()
    grown = torch.ones(3, device=FAR).resize_(5)
    assert grown[:3].tolist() == [1, 1, 1] and grown[3:].isnan().all()
    assert len(repr(grown)) > 10
    torch.save(grown, tmp_path / "x.pt")
    with standin.available():
        assert torch.load(tmp_path / "x.pt").device == FAR
    assert torch.load(tmp_path / "x.pt", map_location="cpu").device.type == "cpu"


def test_what_cuda_cannot_do_deterministically_is_refused_where_that_is_asked_for() -> None:
    image = torch.rand(1, 1, 4, 4, device=FAR, requires_grad=True)
    pooled = nn.AdaptiveMaxPool2d(2)(image).sum()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="does not have a deterministic"):
            pooled.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="does not have a deterministic"):
            torch.ones(3, device=FAR).cumsum(0)
        torch.arange(3, device=FAR).cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)
    pooled.backward()


# What is counted


def test_kernels_copies_and_waits_are_counted() -> None:
    far = torch.ones(4, device=FAR)
    standin.reset()
    total = (far * 2).sum()
    counts = standin.counts()
    assert counts["kernels"] == {"aten::mul": 1, "aten::sum": 1} and not counts["waits"]
    assert total.item() == 8
    torch.ones(5, dtype=torch.float64).to(FAR)
    far.cpu()
    torch.standin.synchronize()
    counts = standin.counts()
    assert counts["waits"] == {
        "a number to the host": 1, "copy to the device": 1, "copy to the host": 1, "synchronize": 1,
    }  # fmt: skip
    assert (counts["to_device"], counts["bytes_to_device"]) == (1, 40)
    assert (counts["to_host"], counts["bytes_to_host"]) == (1, 16)


WAITING: dict[str, Callable[[Tensor], Any]] = {
    "number": lambda x: x.sum().item(),
    "condition": lambda x: bool(x.sum() > 1),
    "copy to the host": lambda x: x.cpu(),
    "copy to the device": lambda x: torch.tensor([1.0, 2.0], device=FAR),
    "list": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "comparison": lambda x: torch.equal(x, x),
    "indices from the host": lambda x: x[torch.tensor([0])],
    "repeated by counts": lambda x: x.repeat_interleave(torch.ones(4, dtype=torch.int64, device=FAR)),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_can_be_refused(name: str) -> None:
    far = torch.ones(4, device=FAR)
    with standin.asked(refuse_waits=1), pytest.raises(RuntimeError, match="the host waits"):
        WAITING[name](far)
    WAITING[name](far)


def test_memory_has_a_limit_and_a_peak() -> None:
    before, second = torch.standin.memory_allocated(), torch.standin.memory_allocated("standin:1")
    torch.standin.reset_peak_memory_stats("standin:1")
    total = torch.standin.get_device_properties(FAR).total_memory
    assert torch.standin.mem_get_info(FAR) == (total - before, total) and total == 8 << 30
    with standin.asked(limit=before + (1 << 20)):
        assert torch.standin.get_device_properties(FAR).total_memory == before + (1 << 20)
        half = torch.empty(1 << 17, device=FAR)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(1 << 18, device=FAR)
        torch.empty(1 << 17, device="standin:1")
    del half
    assert torch.standin.memory_allocated() == before
    assert torch.standin.max_memory_allocated() >= before + (1 << 19)
    assert torch.standin.max_memory_allocated("standin:1") == second + (1 << 19)
    torch.standin.reset_peak_memory_stats()
    assert torch.standin.max_memory_allocated() == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(3 << 30, device=FAR)


# Copies that arrive late


@pytest.mark.parametrize("wait", [torch.accelerator.synchronize, lambda: torch.ones(1, device=FAR).item()])
def test_a_copy_to_the_host_is_nan_until_the_host_waits(wait: Callable[[], object]) -> None:
    far = torch.ones(4, device=FAR)
    host = torch.zeros(4).pin_memory()
    assert host.is_pinned() and not torch.zeros(4).is_pinned()
    host.copy_(far, non_blocking=True)
    far.zero_()
    other = far.to("cpu", non_blocking=True)
    assert host.isnan().all() and other.isnan().all()
    wait()
    assert host.tolist() == [1, 1, 1, 1] and other.tolist() == [0, 0, 0, 0]


def test_overwriting_pinned_memory_too_early_is_a_hazard() -> None:
    far, pinned, plain = torch.ones(4, device=FAR), torch.zeros(4).pin_memory(), torch.zeros(4)
    standin.reset()
    far.copy_(pinned, non_blocking=True)
    far.copy_(plain, non_blocking=True)  # waits, for torch copies from memory that is not pinned at once
    pinned.fill_(5)
    plain.fill_(5)
    torch.standin.synchronize()
    assert standin.counts()["hazards"] == 0
    far.copy_(pinned, non_blocking=True)
    pinned.zero_()
    torch.standin.synchronize()
    assert standin.counts()["hazards"] == 1
    with standin.asked(late=1):
        far.copy_(pinned, non_blocking=True)
        pinned.fill_(1)
        with pytest.raises(RuntimeError, match="overwritten"):
            torch.standin.synchronize()
    torch.standin.synchronize()


# How it rounds


def test_products_round_their_inputs() -> None:
    x, one = torch.full((4, 4), 1 + 2.0**-11 + 2.0**-20, device=FAR), torch.eye(4, device=FAR)
    products: list[Callable[[], Tensor]] = [
        lambda: x @ one,
        lambda: F.conv2d(x[None, None], torch.ones(1, 1, 1, 1, device=FAR))[0, 0],
    ]
    for product in products:
        assert product()[0, 0].item() == x[0, 0].item()
        for bits, value in ((10, 1 + 2.0**-10), (7, 1.0), (20, 1 + 2.0**-11 + 2.0**-20)):
            with standin.asked(bits=bits):
                assert product()[0, 0].item() == value
                assert (x * 1)[0, 0].item() == x[0, 0].item() and (x.double() @ one.double())[0, 0] == x[0, 0].double()


def test_tf32_where_the_flags_for_cuda_allow_it() -> None:
    x, one = torch.full((4, 4), 1 + 2.0**-11 + 2.0**-20, device=FAR), torch.eye(4, device=FAR)
    kernel, flags = torch.ones(1, 1, 1, 1, device=FAR), (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    try:
        for product, convolution in ((True, False), (False, True)):
            flags[0].allow_tf32, flags[1].allow_tf32 = product, convolution
            with standin.asked(tf32=1):
                assert ((x @ one)[0, 0].item() == 1 + 2.0**-10) is product
                assert (F.conv2d(x[None, None], kernel)[0, 0, 0, 0].item() == 1 + 2.0**-10) is convolution
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


def test_ties_are_rounded_to_even_and_what_is_not_finite_stays() -> None:
    numbers = torch.tensor(
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 3 * 2.0**-11, float("inf"), float("nan"), 0.0], device=FAR
    )
    with standin.asked(bits=10):
        result = (numbers[:, None] @ torch.ones(1, 1, device=FAR))[:, 0].cpu()
    assert result[[0, 1, 2, 3, 5]].tolist() == [1.0, 1 + 2.0**-9, -1 - 2.0**-9, float("inf"), 0.0] and result[4].isnan()


def test_float64_may_be_rounded_or_missing() -> None:
    numbers = torch.tensor([2.0**52 + 1, -(2.0**52), 3.0], dtype=torch.float64)
    assert float(numbers.to(FAR).sum()) == 4
    with standin.asked(bits64=40):
        assert float(numbers.to(FAR).sum()) == 3
    with standin.asked(no_float64=1), pytest.raises(TypeError, match="no float64"):
        numbers.to(FAR)


def test_results_may_depend_on_chance_on_sizes_and_on_places() -> None:
    x, w = torch.rand(6, 4, device=FAR), torch.rand(4, 3, device=FAR)
    exact = x @ w
    with standin.asked(jitter=1e-6, chance=3):
        first, second = x @ w, x @ w
        assert not torch.equal(first, second) and torch.equal(x * 1, x)
        assert torch.allclose(first, exact, rtol=2e-6, atol=0)
    with standin.asked(by_size=1e-6):
        assert torch.equal((x.flip(0) @ w).flip(0), x @ w)
        assert not torch.equal((x @ w)[:5], x[:5] @ w)
    with standin.asked(by_place=1e-6):
        assert torch.equal(x @ w, x @ w) and not torch.equal((x.flip(0) @ w).flip(0), x @ w)
    assert torch.equal(x @ w, exact)


def test_it_describes_what_decides_its_rounding() -> None:
    plain = standin.describe(FAR)
    with standin.asked(bits=10, limit=1 << 30, late=1):
        assert torch.standin.describe(FAR) == f"{plain}, bits=10"
        with standin.asked(bits=7, by_place=1e-6):
            assert standin.describe() == f"{plain}, bits=7, by_place=1e-06"
        assert standin.describe() == f"{plain}, bits=10"
    assert standin.describe() == plain
    assert list(standin.OPTIONS) == torch.ops.standin.options()
    with pytest.raises(ValueError, match="no option"), standin.asked(speed=9):
        pass


# Random numbers


def test_generators() -> None:
    def draw(generator: torch.Generator) -> Tensor:
        return torch.randn(3, device=generator.device, generator=generator).cpu()

    first = draw(torch.Generator(FAR).manual_seed(3))
    assert torch.equal(first, draw(torch.Generator(FAR).manual_seed(3)))
    for other in (torch.Generator().manual_seed(3), torch.Generator("standin:1").manual_seed(3)):
        assert not torch.equal(first, draw(other)), "another device draws other numbers"
    torch.manual_seed(5)
    host = torch.random.get_rng_state()
    drawn = torch.rand(3, device=FAR)
    assert torch.equal(torch.random.get_rng_state(), host)
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[0], device_type="standin"):
        assert torch.equal(torch.rand(3, device=FAR), drawn)
    assert torch.equal(torch.rand(3, device=FAR), drawn)


# How it comes into a process


def test_importing_it_does_not_make_it_the_accelerator_of_the_process() -> None:
    from dpvision.models.device import find_device

    assert not torch.accelerator.is_available() and find_device("auto") == torch.device("cpu")
    with standin.available():
        assert torch.accelerator.is_available() and find_device("auto") == FAR
        with standin.asked(bits64=40):
            assert find_device("auto") == torch.device("cpu")
    assert not torch.accelerator.is_available() and find_device("auto") == torch.device("cpu")
    assert find_device("standin:1") == torch.device("standin:1"), "by its name it is always there"
