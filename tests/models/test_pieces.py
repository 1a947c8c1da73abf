"""A function of images in pieces."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from dpvision.models.pieces import in_pieces


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 11])
def test_pieces_have_one_size_and_one_thread(threads: int, count: int) -> None:
    torch.set_num_threads(threads)
    seen: list[tuple[int, int, bool]] = []

    def squares(x: Tensor) -> Tensor:
        seen.append((len(x), torch.get_num_threads(), torch.is_grad_enabled()))
        return x * x

    x = torch.rand(count, 3)
    with torch.no_grad():
        assert torch.equal(in_pieces(squares, x, size=4), x * x)
    assert seen == [(4, 1, False)] * max(1, -(-count // 4)) and torch.get_num_threads() == threads


def test_pieces_run_side_by_side_and_gradients_pass_through() -> None:
    torch.set_num_threads(2)
    meet = threading.Barrier(2, timeout=30)  # broken if one piece had to wait for the other

    def squares(x: Tensor) -> Tensor:
        meet.wait()
        return x * x

    x = torch.rand(8, 3, requires_grad=True)
    in_pieces(squares, x, size=4).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, 2 * x.detach())


def test_a_failure_is_told_and_leaves_the_threads_as_they_were() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no")

    torch.set_num_threads(2)
    with pytest.raises(ValueError, match="no"):
        in_pieces(fails, torch.rand(9, 3), size=4)
    assert torch.get_num_threads() == 2


def test_pieces_lie_in_memory_in_one_way() -> None:
    """With one channel two orders are the same, but their strides are not, and kernels are chosen by strides."""
    seen: list[tuple[int, ...]] = []

    def note(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return x

    for channels in (1, 3):
        plain = torch.rand(8, channels, 5, 5)
        strides = (channels * 25, 1, 5 * channels, channels)
        other = plain.contiguous(memory_format=torch.channels_last).as_strided(plain.shape, strides)
        for x in (plain, other, other[:3]):
            assert torch.equal(in_pieces(note, x, size=4), x)
        assert set(seen) == {(channels * 25, 25, 5, 1)}
        seen.clear()
