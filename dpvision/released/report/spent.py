"""Epsilon by phase: what each stretch of a run adds to what was told before it.

Phases follow each other: what the first weights told already, the mean of features, the head alone, everything; and a
run that was resumed with other settings has one more for each branch.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from dpvision.core import adaptive
from dpvision.core.events import Event, PoissonGaussian, parts
from dpvision.released.report import guarantee
from dpvision.settings.training import Config

MOST_PHASES = 12


def phases(event: Event, config: Config, *, before: int) -> list[dict[str, Any]]:
    """In their order: name, steps, and epsilon of all up to the end of each. The first `before` events are earlier."""
    own = list(parts(event))
    told: list[dict[str, Any]] = []
    done: list[list[Event]] = []
    if before:
        done += [[own.pop(0)] for _ in range(before)]
        told.append(_phase("weights to start from, trained privately", None, done, config.delta))
    step = 0
    for part in own:
        if not isinstance(part, PoissonGaussian):
            return []
        cuts = sorted({step, step + part.steps, *(c for c in _cuts(config) if step < c < step + part.steps)})
        done.append([])
        for first, end in pairwise(cuts):
            done[-1].append(replace(part, steps=end - first))
            told.append(_phase(_name(config, first), end - first, done, config.delta))
        step += part.steps
    return told if len(told) <= MOST_PHASES else []


def _phase(name: str, steps: int | None, done: list[list[Event]], delta: float) -> dict[str, Any]:
    return {
        "name": name,
        "steps": steps,
        "epsilon_so_far": guarantee.proven(adaptive.compose([_joined(part) for part in done], delta), delta),
    }


def _joined(stretches: list[Event]) -> Event:
    """Stretches of one part: of one mechanism, so they are one again, as the card counts it."""
    first = stretches[0]
    if not isinstance(first, PoissonGaussian):
        return first
    return replace(first, steps=sum(each.steps for each in stretches if isinstance(each, PoissonGaussian)))


def _cuts(config: Config) -> list[int]:
    return [config.probe_steps, 1 if config.part == "centred-head" else 0]


def _name(config: Config, first: int) -> str:
    if first < config.probe_steps:
        return "the head first"
    if config.part == "centred-head":
        return "mean of the features" if first < 1 else "the head"
    return {"all": "all weights", "head": "the head", "probe": "head and norm", "bias": "biases"}[config.part]
