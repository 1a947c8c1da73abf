"""How often any membership test can be right: the guarantee as the errors of the best attack there is.

A test that reports a share f of the units outside finds a share t of those inside. For every epsilon, both directions
of (epsilon, delta(epsilon))-differential privacy bound t:

    t <= e^epsilon f + delta(epsilon)                       what is likely with the unit is not rare without it
    t <= 1 - e^-epsilon (1 - delta(epsilon) - f)            the same for the test's opposite answer

All epsilons hold at once, so the least of the bounds holds too. A coarser grid of epsilons only loosens it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpvision.core import accountant, quick
from dpvision.core.events import Event, given_up

# Errors at which the card states the bound.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)
GRID_POINTS = 2001
# The grid of epsilons ends where delta is this small: beyond, no shown false positive rate has its best bound.
LEAST_DELTA = 1e-9


def most_true_positives(event: Event, false_positive_rates: Sequence[float]) -> NDArray[np.float64]:
    """For each false positive rate, what no test's true positive rate exceeds."""
    f = np.asarray(false_positive_rates, dtype=np.float64)[:, None]
    epsilons = np.linspace(0.0, furthest(event), GRID_POINTS)
    deltas = accountant.profile(event, epsilons.tolist())
    forward = np.exp(epsilons) * f + deltas
    backward = 1.0 - np.exp(-epsilons) * (1.0 - deltas - f)
    return np.clip(np.minimum(forward, backward).min(axis=1), f[:, 0], 1.0)


def furthest(event: Event) -> float:
    """The epsilon at which a curve of the event may end."""
    return min(accountant.epsilon(event, given_up(event) + LEAST_DELTA), quick.MOST_LOSS)
