"""A sum that fails or is interrupted leaves nothing behind."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from dpvision.private.engine import ClippedSum
from tests.private.engine.oracle import each_loss


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


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_sum_leaves_nothing(threads: int) -> None:
    """Ctrl-C while threads are at work: what they still finish must not enter the next sum."""
    import _thread
    import signal
    import threading

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell has it ignored

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
        signal.signal(signal.SIGINT, handler)
