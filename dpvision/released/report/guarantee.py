"""What an event guarantees, in figures: the bound that counts, its cross-check, and the approximation beside it."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import numpy as np

from dpvision.core import accountant, adaptive, gdp, quick
from dpvision.core.events import Adaptive, Capped, Event
from dpvision.released.report import attack

APPROXIMATE = "approximate: central limit, not a bound"
PROFILE_POINTS = 25


def figures(event: Event, delta: float) -> dict[str, Any]:
    """The figures of the card. A figure is None where nothing finite can be said."""
    epsilon = proven(event, delta)
    limit = gdp.central_limit_mu(event)
    return {
        "epsilon": epsilon,
        "delta": delta,
        "mu": None if epsilon is None else _finite(accountant.mu(event, delta)),
        "profile": [] if epsilon is None else _profile(event),
        "rdp_epsilon": _finite(accountant.rdp_epsilon(event, delta)),
        "approximate": {
            "gdp_central_limit_mu": _finite(limit),
            "gdp_central_limit_epsilon": _finite(gdp.gaussian_epsilon(limit, delta)) if math.isfinite(limit) else None,
            "label": APPROXIMATE,
        },
        "composition": composition(event),
        "meter": proven(event.event, delta) if isinstance(event, Capped) else None,
        **accounting(),
    }


def composition(event: Event) -> str:
    """Which composition the figures rest on."""
    if isinstance(event, Capped):
        return adaptive.CAPPED
    return adaptive.CHOSEN_LATER if isinstance(event, Adaptive) else adaptive.PLANNED


def no_figures(delta: float) -> dict[str, Any]:
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
        **accounting(),
    }


def accounting() -> dict[str, str]:
    return {"accountant": accountant.NAME, "dp_accounting_version": version("dp-accounting")}


def proven(event: Event, delta: float) -> float | None:
    """Epsilon, or None where it is so large that it says nothing."""
    epsilon = accountant.epsilon(event, delta)
    return epsilon if epsilon < quick.MOST_LOSS else None


def _profile(event: Event) -> list[list[float]]:
    epsilons = np.linspace(0.0, attack.furthest(event), PROFILE_POINTS).tolist()
    return [[e, d] for e, d in zip(epsilons, accountant.profile(event, epsilons).tolist(), strict=True)]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
