"""Private gradient descent with the curvature of PUBLIC features: few, long steps.

Böhning 1992: the Hessian of multinomial logistic regression is at most 1/2 (I - 11^T/k) kron C for all weights, where
C = mean of x x^T. Here C is that of public rows, prepared as the private ones, so a step is

    w <- w - rate * 2 (C + q tr(C)/d I)^(-1) g (I - 11^T/k)        g the noisy gradient

Formal guarantee: the same releases as in gd.py, Gaussian(sigma, steps). The matrix is public and multiplies what is
noisy already: post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpvision.core.rows import Floats, Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics.logistic import Noisy, descend, require_descent
from dpvision.private.statistics.second_moment import second_moment
from dpvision.private.statistics.whitening import require_ridge, ridged


@dataclass(frozen=True)
class Newton:
    """`ridge` is q: the larger, the nearer to plain descent, and the less noise in directions that are rare."""

    steps: int = 20
    rate: float = 1.0
    ridge: float = 0.3
    momentum: float = 0.0
    clip: float = 1.0
    keep: str = "average"

    def __post_init__(self) -> None:
        require_descent(steps=self.steps, momentum=self.momentum, clip=self.clip, keep=self.keep)
        require_ridge(self.ridge)
        if not (isinstance(self.rate, int | float) and 0 < self.rate <= 1e6):
            raise ConfigError(f"rate is {self.rate!r}: it must be above 0 and at most 1e6; 1 is a full step.")

    @property
    def releases(self) -> int:
        return self.steps

    @property
    def needs_public(self) -> bool:
        return True

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        assert public is not None  # setup.py refuses without, before anything is charged
        weight = descend(
            rows,
            steps=self.steps,
            rate=self.rate,
            momentum=self.momentum,
            clip=self.clip,
            keep=self.keep,
            n=n,
            noisy=noisy,
            direction=newton_direction(public, classes=rows.classes, ridge=self.ridge),
        )
        return weight, None


def newton_direction(public: Rows, *, classes: int, ridge: float) -> Callable[[Floats], Floats]:
    """g -> 2 (C + q tr(C)/d I)^(-1) g (I - 11^T/k)."""
    c = second_moment(public) / len(public.x)
    inverse = 2.0 * np.linalg.inv(ridged(c, ridge))
    centre = np.eye(classes) - 1.0 / classes
    return lambda gradient: inverse @ gradient @ centre
