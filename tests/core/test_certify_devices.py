"""The certificate on an accelerator: what it refuses there, before anything is charged, and that it names the device."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpvision.core.certify import Batch, certify, require_exact_sums
from dpvision.core.clipping import Flat, Public
from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.private.engine import ClippedSum
from dpvision.private.engine.rules import linear
from dpvision.private.training.prepare import sizes_on_a_device
from tests.private.engine.oracle import each_loss

standin = pytest.importorskip("tests.standin")
SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    """Ignore the warnings about what is computed once per unit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _network(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), *(more or (nn.MaxPool2d(2),)), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(64, 10))


def _certify(model: nn.Module, *, views: tuple[int, ...] = (2,), public: tuple[str, ...] = (), **options: Any) -> None:
    engine = partial(ClippedSum, **{"physical": 8, **options})
    far = copy.deepcopy(model).to("standin")
    certify(far, each_loss, SHAPE, 10, engine=engine, style=Flat(1.0), views=views, public=public)


@pytest.mark.parametrize("views", [(1,), (2,), (2, 4, 6)])
@pytest.mark.parametrize("rounding", [{}, {"bits": 10}, {"bits": 7}, {"by_size": 1e-3}], ids=str)
def test_kernels_that_treat_all_units_alike_pass(views: tuple[int, ...], rounding: dict[str, float]) -> None:
    with standin.asked(**rounding):
        _certify(_network(), views=views)


def test_public_vectors_precision_and_one_view_pass() -> None:
    _certify(_network(), public=("scale", "shift", "perturbations"))
    _certify(_network(), precision="bf16")
    _certify(_network(), views=(1,), one_view=True)


@pytest.mark.parametrize(
    ("option", "message"),
    [("jitter", "different bits when computed again"), ("by_place", "different bits at another position")],
)
def test_kernels_that_round_by_chance_or_place_are_refused(option: str, message: str) -> None:
    with standin.asked(**{option: 1e-6}), pytest.raises(UnsafeLayer, match=f"device standin:0: .*{message}"):
        _certify(_network())


class _Mixes(nn.Module):
    """Images see each other, from a number on that float64 trials do not reach."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-3 * x.nan_to_num(0, 0, 0).mean(0) if len(x) > 32 else x


def test_layers_that_mix_images_in_full_passes_are_refused() -> None:
    with pytest.raises(UnsafeLayer):
        _certify(_network(_Mixes(), nn.MaxPool2d(2)), physical=64)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_norms_that_are_wrong_in_float32_alone_are_refused(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = torch.linalg.vector_norm

    def wrong(x: Tensor, *args: Any, **options: Any) -> Tensor:
        result: Tensor = norm(x, *args, **options)
        return result * factor if x.dtype == torch.float32 and x.device.type == "standin" else result

    monkeypatch.setattr(torch.linalg, "vector_norm", wrong)
    with pytest.raises(UnsafeLayer, match=r"a random unit contributes .* times the sensitivity"):
        _certify(_network())


class _WrongInFullPasses(ClippedSum):
    """Adds up wrongly where a pass of four units has no blank one."""

    def sum(self, batches: Iterable[Batch], public: Public | None = None) -> Tensor:
        batches = list(batches)
        total = super().sum(batches, public)
        full = len(batches[0][2]) == 4 and batches[0][0].dtype == torch.float32
        return total * (1 + 1e-3) if full else total


def test_contributions_that_depend_on_the_place_in_a_full_pass_are_refused() -> None:
    engine = partial(_WrongInFullPasses, physical=8)
    with pytest.raises(UnsafeLayer, match="different bits in a sum, at the last position"):
        certify(_network().to("standin"), each_loss, SHAPE, 10, engine=engine, style=Flat(1.0), views=(2,))


def test_every_size_of_a_person_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for 8 rows or more that rounds by the place of a unit."""
    assert sizes_on_a_device([1, 2, 3], 16) == [1, 2, 3, 4, 8, 16, 17]
    assert sizes_on_a_device([3, 6, 9], 48) == [3, 6, 9, 12, 24, 48, 49]
    assert sizes_on_a_device([3, 6, 9], 2) == [3, 6, 9, 4]
    multiply = linear.multiply

    def wrong(a: Tensor, b: Tensor, bf16: bool) -> Tensor:
        y = multiply(a, b, bf16)
        if a.dim() == 3 and a.shape[-1] >= 8 and a.dtype == torch.float32:
            y = y * (1 + 1e-2 * (torch.arange(len(y), device=y.device) % 3).to(y).view(-1, 1, 1))
        return y

    monkeypatch.setattr(linear, "multiply", wrong)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    with pytest.raises(UnsafeLayer, match="different bits"):
        _certify(model, views=tuple(sizes_on_a_device([1, 2, 3], 32)), physical=32)


def test_memory_that_a_full_pass_needs_is_tried() -> None:
    torch.standin.reset_peak_memory_stats() if hasattr(torch.standin, "reset_peak_memory_stats") else None
    used = torch.standin.memory_allocated()
    with standin.asked(limit=used + (3 << 20)):
        _certify(_network(), physical=8)
        with pytest.raises(ConfigError, match=r"standin:0: its memory is too small .* smaller --physical"):
            _certify(_network(), physical=1024)


def test_a_layer_without_a_deterministic_kernel_is_named() -> None:
    with pytest.raises(UnsafeLayer, match=r"3 \(AdaptiveAvgPool2d\) has no kernel on standin:0 that gives the same"):
        _certify(_network(nn.AdaptiveAvgPool2d(4)))


def test_float64_must_add_exactly() -> None:
    require_exact_sums(torch.device("standin"))
    with standin.asked(bits64=40), pytest.raises(ConfigError, match="device standin: its float64 does not add"):
        require_exact_sums(torch.device("standin"))
