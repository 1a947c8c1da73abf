"""Private gradient descent for a linear classifier: every row in each of the steps, from zero weights.

Formal guarantee: `steps` releases of the clipped gradient (logistic.py), each of which every row is in: the event is
Gaussian(sigma, steps). All else is made of their noisy results.

What counts is the total rate r = rate * steps: with sigma growing like sqrt(steps), the noise in the last weights has a
standard deviation of r / (1 - momentum) * (sigma / sqrt(steps)) * clip / n in each coordinate, whatever the number of
steps. Panda et al. 2022 (A New Linear Scaling Rule for Private Adaptive Hyperparameter Optimization, arXiv 2212.04486)
find that the best r grows linearly in epsilon, so two of them, found at small epsilons or on public rows, give the
others: `scaled_rate`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpvision.core.rows import Floats, Rows
from dpvision.errors import ConfigError
from dpvision.private.statistics.logistic import Noisy, descend, require_descent

# Without a total rate: the noise that the weights may have at the end, where a row has length 1 and scores are logits.
NOISE_OF_SCORES = 0.5
# And the most of one step. The loss bends by at most 1/2 along a row of length 1, so plain descent is stable up to 4.
MOST_RATE = 4.0
# No total rate that makes sense is larger; with it all scores stay within the range of numbers.
MOST_TOTAL = 1e9


def scaled_rate(epsilon: float, *, at: tuple[tuple[float, float], tuple[float, float]]) -> float:
    """The total rate at `epsilon` on the line through two given points (epsilon, total rate).

    Table 15 of DP-RandP (linear probing of CIFAR-10, 100 steps) follows such a line: (0.2, 220), (1, 1000), (2, 2000).
    The points must be public: rates that were tried on the private rows have a cost of their own.
    """
    (e1, r1), (e2, r2) = at
    if e1 == e2 or min(e1, e2, r1, r2) <= 0 or not epsilon > 0:
        raise ConfigError(f"at is {at!r}: a line needs two points (epsilon, total rate) above 0, at two epsilons.")
    rate = r1 + (r2 - r1) * (epsilon - e1) / (e2 - e1)
    if rate <= 0:
        raise ConfigError(f"the line through {at!r} is not above 0 at epsilon {epsilon:g}: there is no such rate.")
    return rate


@dataclass(frozen=True)
class GradientDescent:
    """`total_rate` is rate * steps; without it, it is set by the noise (see `rate`). Which weights are kept: `keep`."""

    steps: int = 100
    total_rate: float | None = None
    momentum: float = 0.9
    clip: float = 1.0
    keep: str = "average"

    def __post_init__(self) -> None:
        require_descent(steps=self.steps, momentum=self.momentum, clip=self.clip, keep=self.keep)
        r = self.total_rate
        if r is not None and not (isinstance(r, int | float) and 0 < r <= MOST_TOTAL):
            raise ConfigError(f"total_rate is {r!r}: it must be above 0 and at most {MOST_TOTAL:g}, or left out.")

    @property
    def releases(self) -> int:
        return self.steps

    @property
    def needs_public(self) -> bool:
        return False

    def rate(self, *, n: int, sigma: float) -> float:
        """The rate of a step: r / steps, or as much as leaves a noise of NOISE_OF_SCORES; from public numbers only."""
        if self.total_rate is not None:
            return self.total_rate / self.steps
        noise_of_sum = sigma * min(self.clip, math.sqrt(2.0)) * math.sqrt(self.steps) / n
        return min(MOST_RATE, (1 - self.momentum) * NOISE_OF_SCORES / noise_of_sum)

    def fit(
        self, rows: Rows, *, n: int, sigma: float, noisy: Noisy, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        weight = descend(
            rows,
            steps=self.steps,
            rate=self.rate(n=n, sigma=sigma),
            momentum=self.momentum,
            clip=self.clip,
            keep=self.keep,
            n=n,
            noisy=noisy,
        )
        return weight, None
