"""Epsilon by phase: what each stretch of a run adds to what was told before it.

Phases follow each other: what the first weights told already, the mean of features, the head alone, everything; and a
run that was resumed with other settings has one more for each branch.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from dpvision.config import Config
from dpvision.privacy import adaptive
from dpvision.privacy.events import Event, PoissonGaussian, parts
from dpvision.report import guarantee

MOST_PHASES = 12


def phases(event: Event, config: Config, *, before: bool) -> list[dict[str, Any]]:
    """In their order: name, steps, and epsilon of all up to the end of each. `before`: the first event is earlier."""
    own = list(parts(event))
    told: list[dict[str, Any]] = []
    done: list[Event] = []
    if before:
        done.append(own.pop(0))
        told.append(_phase("weights to start from, trained privately", None, done, config.delta))
    step = 0
    for part in own:
        if not isinstance(part, PoissonGaussian):
            return []
        cuts = sorted({step, step + part.steps, *(c for c in _cuts(config) if step < c < step + part.steps)})
        for first, end in pairwise(cuts):
            done.append(replace(part, steps=end - first))
            told.append(_phase(_name(config, first), end - first, done, config.delta))
        step += part.steps
    return told if len(told) <= MOST_PHASES else []


def _phase(name: str, steps: int | None, done: list[Event], delta: float) -> dict[str, Any]:
    return {
        "name": name,
        "steps": steps,
        "epsilon_so_far": guarantee.proven(adaptive.compose(_joined(done), delta), delta),
    }


def _joined(done: list[Event]) -> tuple[Event, ...]:
    """Stretches of one mechanism as one: the account of the whole is then that of the card."""
    joined: list[Event] = []
    for each in done:
        last = joined[-1] if joined else None
        if (
            isinstance(each, PoissonGaussian)
            and isinstance(last, PoissonGaussian)
            and (last.rate, last.sigma) == (each.rate, each.sigma)
        ):
            joined[-1] = replace(last, steps=last.steps + each.steps)
        else:
            joined.append(each)
    return tuple(joined)


def _cuts(config: Config) -> list[int]:
    return [config.probe_steps, 1 if config.part == "centred-head" else 0]


def _name(config: Config, first: int) -> str:
    if first < config.probe_steps:
        return "the head first"
    if config.part == "centred-head":
        return "mean of the features" if first < 1 else "the head"
    return {"all": "all weights", "head": "the head", "probe": "head and norm", "bias": "biases"}[config.part]
