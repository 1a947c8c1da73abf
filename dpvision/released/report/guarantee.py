"""What an event guarantees, in numbers: everything that a card claims, be it of a training, a release or a head.

    claims               status, epsilon with its cross-checks, and how often any membership test can be right
    most_true_positives  the guarantee as the errors of the best attack there is
    epsilon_by_phase     what each stretch of a run adds to what was revealed before it

A test that reports a share f of the units outside finds a share t of those inside. For every epsilon, both directions
of (epsilon, delta(epsilon))-differential privacy bound t:

    t <= e^epsilon f + delta(epsilon)                       what is likely with the unit is not rare without it
    t <= 1 - e^-epsilon (1 - delta(epsilon) - f)            the same for the test's opposite answer

All epsilons hold at once, so the least of the bounds holds too. A coarser grid of epsilons only loosens it.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.core import accountant, adaptive
from dpvision.core.events import Adaptive, Capped, Event, PoissonGaussian, given_up, parts
from dpvision.errors import DataError
from dpvision.released.report import wording
from dpvision.settings import cross_checks, gdp
from dpvision.settings.training import Config

APPROXIMATE = "approximate: central limit, not a bound"
PROFILE_POINTS = 25
# Errors at which the card states the bound on attacks.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)
GRID_POINTS = 2001
# The grid of epsilons ends where delta is this small: beyond, no shown false positive rate has its best bound.
LEAST_DELTA = 1e-9
MOST_PHASES = 12
# Which composition a figure rests on, as cards and the ledger on the screen state it.
PLANNED = "privacy loss distributions of events that were fixed before the first result"
CHOSEN_LATER = (
    "the first event's privacy loss distribution, and a Gaussian filter for later ones, which were chosen after "
    "results were seen; over all choices the budget is what holds"
)
CAPPED = (
    "the budget of the account: settings changed during the run, and results may have decided how often; the meter is "
    "what the parts there are add up to"
)


@dataclass(frozen=True)
class Claims:
    """All of a card that follows from what was charged, and from whether the noise is secret; plain JSON values."""

    status: str
    noise: str
    guarantee: dict[str, Any]
    attack_success: list[dict[str, float]]


def claims(event: Event, delta: float, *, secret: bool) -> Claims:
    """What may be claimed of results of this event. Where the noise is not secret, that is nothing."""
    figures, bounds = _figures(event, delta_of(event, delta)), [1.0] * len(FALSE_POSITIVE_RATES)
    if not secret:
        status, figures = wording.FIXED_KEY, {**_no_figures(delta), "if_the_noise_were_secret": figures}
    elif figures["epsilon"] is None:
        status = wording.TOO_LITTLE_NOISE
    else:
        status, bounds = "private", most_true_positives(event, FALSE_POSITIVE_RATES).tolist()
    attacks = [
        {"false_positive_rate": f, "true_positive_rate_at_most": t}
        for f, t in zip(FALSE_POSITIVE_RATES, bounds, strict=True)
    ]
    return Claims(status, wording.NOISE if secret else wording.FIXED_NOISE, figures, attacks)


def delta_of(event: Event, delta: float) -> float:
    """The delta at which epsilon is stated: an account's budget holds at its own delta and no smaller one."""
    return max(delta, event.delta) if isinstance(event, Capped) else delta


def _figures(event: Event, delta: float) -> dict[str, Any]:
    """The bound that counts, its cross-check, and the approximation. None where nothing finite can be said."""
    epsilon = proven(event, delta)
    limit = gdp.central_limit_mu(event)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "mu": None if epsilon is None else _finite(gdp.mu(event, delta)),
        "profile": [] if epsilon is None else _profile(event),
        "rdp_epsilon": _finite(cross_checks.rdp_epsilon(event, delta)),
        "approximate": {
            "gdp_central_limit_mu": _finite(limit),
            "gdp_central_limit_epsilon": _finite(gdp.gaussian_epsilon(limit, delta)) if math.isfinite(limit) else None,
            "label": APPROXIMATE,
        },
        "composition": composition(event),
        "meter": proven(event.event, delta) if isinstance(event, Capped) else None,
        **_accounting(),
    }


def _no_figures(delta: float) -> dict[str, Any]:
    """The same keys where there is no guarantee."""
    return {
        "epsilon": None,
        "delta": delta,
        "mu": None,
        "profile": [],
        "rdp_epsilon": None,
        "approximate": {"gdp_central_limit_mu": None, "gdp_central_limit_epsilon": None, "label": APPROXIMATE},
        "composition": None,
        "meter": None,
        **_accounting(),
    }


def composition(event: Event) -> str:
    """Which composition the figures of an event rest on."""
    if isinstance(event, Capped):
        return CAPPED
    return CHOSEN_LATER if isinstance(event, Adaptive) else PLANNED


def _accounting() -> dict[str, str]:
    return {"accountant": accountant.NAME, "dp_accounting_version": version("dp-accounting")}


def software() -> dict[str, str]:
    """What made the card."""
    packages = {name: version(name) for name in ("dpvision", "dp-accounting", "numpy")}
    return {**packages, "python": platform.python_version()}


def proven(event: Event, delta: float) -> float | None:
    """Epsilon, or None where it is so large that it says nothing."""
    epsilon = accountant.epsilon(event, delta)
    return epsilon if epsilon < accountant.MOST_LOSS else None


def _profile(event: Event) -> list[list[float]]:
    epsilons = np.linspace(0.0, _furthest(event), PROFILE_POINTS).tolist()
    return [[e, d] for e, d in zip(epsilons, accountant.profile(event, epsilons).tolist(), strict=True)]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def most_true_positives(event: Event, false_positive_rates: Sequence[float]) -> NDArray[np.float64]:
    """For each false positive rate, what no test's true positive rate exceeds."""
    f = np.asarray(false_positive_rates, dtype=np.float64)[:, None]
    epsilons = np.linspace(0.0, _furthest(event), GRID_POINTS)
    deltas = accountant.profile(event, epsilons.tolist())
    forward = np.exp(epsilons) * f + deltas
    backward = 1.0 - np.exp(-epsilons) * (1.0 - deltas - f)
    return np.clip(np.minimum(forward, backward).min(axis=1), f[:, 0], 1.0)


def _furthest(event: Event) -> float:
    """The epsilon at which a curve of the event may end."""
    return min(accountant.epsilon(event, given_up(event) + LEAST_DELTA), accountant.MOST_LOSS)


def epsilon_by_phase(event: Event, config: Config, *, before: int) -> list[dict[str, Any]]:
    """Phases in their order: name, steps, and epsilon of all up to the end of each.

    First comes what the weights to start from revealed, the first `before` events; then the mean of features, the head
    alone, everything. A run that was resumed with other settings has one more for each branch.
    """
    own = list(parts(event))
    phases: list[dict[str, Any]] = []
    done: list[list[Event]] = []
    if before:
        done += [[own.pop(0)] for _ in range(before)]
        phases.append(_phase("weights to start from, trained privately", None, done, config.delta))
    step, heads = 0, [config.probe_steps, 1 if config.part == "centred-head" else 0]
    for part in own:
        if not isinstance(part, PoissonGaussian):
            return []
        cuts = sorted({step, step + part.steps, *(c for c in heads if step < c < step + part.steps)})
        done.append([])
        for first, end in pairwise(cuts):
            done[-1].append(replace(part, steps=end - first))
            phases.append(_phase(_phase_from(config, first), end - first, done, config.delta))
        step += part.steps
    return phases if len(phases) <= MOST_PHASES else []


def _phase(name: str, steps: int | None, done: list[list[Event]], delta: float) -> dict[str, Any]:
    so_far = proven(adaptive.compose([_joined(part) for part in done], delta), delta)
    return {"name": name, "steps": steps, "epsilon_so_far": so_far}


def _joined(stretches: list[Event]) -> Event:
    """Stretches of one part: of one mechanism, so they are one again, as the card counts it."""
    first = stretches[0]
    if not isinstance(first, PoissonGaussian):
        return first
    return replace(first, steps=sum(each.steps for each in stretches if isinstance(each, PoissonGaussian)))


def _phase_from(config: Config, first: int) -> str:
    """The name of the phase that begins with this step."""
    if first < config.probe_steps:
        return "the head first"
    if config.part == "centred-head":
        return "mean of the features" if first < 1 else "the head"
    return {"all": "all weights", "head": "the head", "probe": "head and norm", "bias": "biases"}[config.part]


def epsilon_of_probe(own: tuple[Event, ...], config: Config, whole: float | None) -> dict[str, Any] | None:
    """What the steps that learn the head alone are charged for, and its share of the whole run's epsilon.

    None where settings changed on the way: the steps of a branch that were never done are charged, too.
    """
    if not config.probe_steps:
        return None
    alone = proven(_first_steps(own[0], config.probe_steps), config.delta) if len(own) == 1 else None
    share = alone / whole if alone is not None and whole else None
    return {"steps": config.probe_steps, "epsilon": alone, "share_of_epsilon": share}


def _first_steps(event: Event, steps: int) -> Event:
    """The first of its steps alone."""
    if not isinstance(event, PoissonGaussian):
        raise DataError("the run's event is not one of steps, so what the first of them revealed is not known.")
    return replace(event, steps=min(event.steps, steps))
