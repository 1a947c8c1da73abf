"""A run on the screen: a bar for features, then one for steps; Ctrl-C saves the state and stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpvision.cli import screen
from dpvision.private.training.train import Face, Progress


class Screen(Face):
    def __init__(self, epsilon: float, *, shown: bool) -> None:
        self._epsilon, self._shown = epsilon, shown

    @contextmanager
    def features(self) -> Iterator[Callable[[int, int], None]]:
        with screen.counting_bar("features") as progress:
            yield progress

    @contextmanager
    def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
        with screen.stoppable() as stop, screen.training_bar(self._epsilon, shown=self._shown) as watch:
            yield watch, stop
