"""Runs a function over a stream in threads, in order, with bounded memory.

Pillow, zlib and hashlib release the interpreter's lock while they work, so threads decode in parallel.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

_AT_A_TIME = 8  # inputs per task: the overhead of a task would dominate if it had one
_MAX_THREADS = 32

Input = TypeVar("Input")
Output = TypeVar("Output")


def count_threads() -> int:
    """Return the number of threads: the cores of this process, divided among the worker processes on this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, min(_MAX_THREADS, cores // max(1, int(workers) if workers.isdigit() else 1)))


def in_order(
    work: Callable[[Input], Output], inputs: Iterable[Input], *, threads: int | None = None
) -> Iterator[Output]:
    """Yield work(input) for each input, in order. Inputs are read only a few tasks ahead of the outputs."""
    threads = threads or count_threads()
    if threads == 1:
        yield from map(work, inputs)
        return

    def run(group: list[Input]) -> list[Output]:
        return [work(value) for value in group]

    stream, pending = iter(inputs), deque[Future[list[Output]]]()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="dpvision-reading")
    try:
        while group := list(islice(stream, _AT_A_TIME)):
            pending.append(pool.submit(run, group))
            if len(pending) > 2 * threads:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Budget:
    """A limit on the total that all threads may use at once. A thread that needs more than the limit runs alone."""

    def __init__(self, limit: int) -> None:
        self._limit, self._spent = limit, 0
        self._changed = threading.Condition()

    @contextmanager
    def spend(self, amount: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._spent or self._spent + amount <= self._limit)
            self._spent += amount
        try:
            yield
        finally:
            with self._changed:
                self._spent -= amount
                self._changed.notify_all()
