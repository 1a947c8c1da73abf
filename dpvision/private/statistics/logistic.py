"""Multinomial logistic regression by full-batch private gradient descent, plain ("gd") or preconditioned ("newton").

Formal guarantee of `clipped_gradient`: the gradient of row x with class y at weights w is x (p - y)^T with
p = softmax(w^T x), a matrix of rank one, so its Frobenius norm is exactly |x| |p - y|. Each gradient is multiplied by
min(1, clip / (|x| |p - y|)) before summation, so adding or removing one row changes the sum by at most `clip`; and by
at most sqrt(2) in any case, since |x| <= 1 and |p - y| <= sqrt(2). Gradients of single rows are never formed. With
several labels, or the thresholds of grades, p is a sigmoid for each output, and an unknown label has no error: the
gradient is still x (p - y)^T, each entry of p - y is at most 1, and |p - y| is at most the root of their number.

Formal guarantee of `descend`: it reads the rows only in `clipped_gradient`, once in each of the `steps`, and every row
takes part in every step, so the event is Gaussian(sigma, steps). The weights, their average and any preconditioner are
computed from noisy values and public numbers.

With `objective` "balanced", one more release gives the class counts. The logarithms of their shares are added to the
scores in the gradient (p = softmax(w^T x + log shares)) and left out of the result: weights that would predict the
classes as frequent as they are then predict them as if all were equally frequent (Menon et al. 2021, arXiv 2007.07314).
An offset that is the same for all rows changes neither |x| nor the bound on |p - y|, so the sensitivity is the same.

Plain descent: the setting that matters is the total rate r = rate * steps. Since sigma grows like sqrt(steps), the
noise in the last weights has a standard deviation of r / (1 - momentum) * (sigma / sqrt(steps)) * clip / n in each
coordinate, independent of the number of steps. Panda et al. 2022 (A New Linear Scaling Rule for Private Adaptive
Hyperparameter Optimization, arXiv 2212.04486) find that the best r grows linearly in epsilon, so two values, found at
small epsilons or on public rows, determine the others: `scaled_rate`.

Newton: a few long steps with the curvature of PUBLIC features. Böhning 1992: the Hessian of multinomial logistic
regression is at most 1/2 (I - 11^T/k) kron C for all weights, where C = mean of x x^T. Here C is computed from public
rows, prepared like the private ones, so a step is

    w <- w - rate * 2 (C + q tr(C)/d I)^(-1) g (I - 11^T/k)        g the noisy gradient

The matrix is public and is applied to a noisy gradient, which is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from dpvision.core.rows import BoundedSum, Floats, Rows, row_norms
from dpvision.errors import ConfigError
from dpvision.private.statistics.ranges import below_1, check_ranges, one_of, positive, whole
from dpvision.private.statistics.row_sums import AddNoise, log_shares, second_moment
from dpvision.private.statistics.whitening import add_ridge
from dpvision.settings.plan import LARGEST_RATE, NOISE_OF_SCORES
from dpvision.settings.setting import OBJECTIVES

EMA_DECAY = 0.9
# Above this, the last bits of a score decide the class, and they may depend on other rows in the same block.
MAX_SCORE = 1e9
# No useful total rate is larger, and up to this one no score overflows.
MAX_TOTAL_RATE = 1e9
# The iterate that becomes the result; it is chosen before anything is computed.
ITERATES = ("average", "ema", "last")


def clipped_gradient(
    rows: Rows, weight: Floats, *, clip: float, offset: Floats | float = 0.0, task: str = "classes"
) -> BoundedSum:
    """Return sum_i x_i (p_i - y_i)^T min(1, clip / (|x_i| |p_i - y_i|)); a person adds the mean of their summands."""
    total = np.zeros_like(weight)
    for x, y, share in rows.blocks():
        scores = x @ weight
        error = errors(scores + offset, y, task)
        norm = row_norms(x) * row_norms(error)
        valid = np.isfinite(norm) & (np.abs(scores).max(1, keepdims=True) < MAX_SCORE)
        clipped = np.where(valid, clip / np.maximum(norm, clip), 0.0)
        total += x.T @ (np.where(clipped > 0, error * clipped, 0.0) * share)  # a row without a valid score adds nothing
    return BoundedSum(total, min(clip, largest_error(weight.shape[1], task)))


def errors(scores: Floats, y: Floats, task: str) -> Floats:
    """Return p - y for each output: the derivative of the loss of models/tasks.py by the scores."""
    if task == "classes":
        return softmax(scores) - y
    if task == "labels":
        return np.where(y >= 0, expit(scores) - y, 0.0)
    above = y[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]  # whether the grade is above each threshold
    return np.asarray(expit(scores) - above)


def largest_error(outputs: int, task: str) -> float:
    """Return the largest norm of p - y: sqrt(2) for classes; otherwise each of the outputs adds at most 1 squared."""
    return math.sqrt(2.0 if task == "classes" else outputs)


def softmax(scores: Floats) -> Floats:
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class GradientDescent:
    """Plain descent from zero weights. `total_rate` is rate * steps; by default, `rate` computes it from the noise."""

    needs_public: ClassVar[bool] = False
    steps: int = whole(100)
    total_rate: float | None = positive(None, maximum=MAX_TOTAL_RATE)
    momentum: float = below_1(0.9)
    clip: float = positive(1.0)
    keep: str = one_of(*ITERATES)
    objective: str = one_of(*OBJECTIVES)
    task: str = one_of("classes", "labels", "grades")

    def __post_init__(self) -> None:
        check_ranges(self)
        require_classes(self)

    @property
    def releases(self) -> int:
        return self.steps + (self.objective == "balanced")

    def rate(self, *, n: int, sigma: float) -> float:
        """Return the rate of one step, from public numbers: r / steps, or the largest with noise NOISE_OF_SCORES."""
        if self.total_rate is not None:
            return self.total_rate / self.steps
        noise_of_sum = sigma * min(self.clip, math.sqrt(2.0)) * math.sqrt(self.steps) / n
        return min(LARGEST_RATE, (1 - self.momentum) * NOISE_OF_SCORES / noise_of_sum)

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        offset = offset_of(self, rows, n=n, add_noise=add_noise)
        return descend(rows, self, rate=self.rate(n=n, sigma=sigma), n=n, add_noise=add_noise, offset=offset), None


@dataclass(frozen=True)
class Newton:
    """Descent with public curvature. `ridge` is q: larger values are closer to plain descent, with less noise in rare
    directions."""

    needs_public: ClassVar[bool] = True
    steps: int = whole(20)
    rate: float = positive(1.0, maximum=1e6)  # 1 is a full step
    ridge: float = positive(0.3)
    momentum: float = below_1(0.0)
    clip: float = positive(1.0)
    keep: str = one_of(*ITERATES)
    objective: str = one_of(*OBJECTIVES)
    task: str = one_of("classes", "labels", "grades")

    def __post_init__(self) -> None:
        check_ranges(self)
        require_classes(self)

    @property
    def releases(self) -> int:
        return self.steps + (self.objective == "balanced")

    def fit(
        self, rows: Rows, *, n: int, sigma: float, add_noise: AddNoise, public: Rows | None = None
    ) -> tuple[Floats, Floats | None]:
        assert public is not None  # setup.py raises an error otherwise, before any charge
        direction = newton_direction(public, classes=rows.classes, ridge=self.ridge, task=self.task)
        offset = offset_of(self, rows, n=n, add_noise=add_noise)
        return descend(rows, self, rate=self.rate, n=n, add_noise=add_noise, offset=offset, direction=direction), None


def require_classes(method: GradientDescent | Newton) -> None:
    """Refuse balanced priors unless each row has one class: the counts of several labels have another sensitivity."""
    if method.objective == "balanced" and method.task != "classes":
        raise ConfigError(
            f"objective is 'balanced', which is about the frequencies of classes, but task is {method.task!r}. Fix: "
            "leave objective out."
        )


def offset_of(method: GradientDescent | Newton, rows: Rows, *, n: int, add_noise: AddNoise) -> Floats | float:
    """Return what is added to the scores in the gradient: by the objective, log shares of the classes or nothing."""
    return log_shares(rows, n=n, add_noise=add_noise) if method.objective == "balanced" else 0.0


def newton_direction(public: Rows, *, classes: int, ridge: float, task: str = "classes") -> Callable[[Floats], Floats]:
    """Return the function g -> 2 (C + q tr(C)/d I)^(-1) g (I - 11^T/k); for sigmoids 4 (C + q tr(C)/d I)^(-1) g."""
    c = second_moment(public) / len(public.x)
    if task != "classes":  # the Hessian of each output is at most C / 4
        of_outputs = 4.0 * np.linalg.inv(add_ridge(c, ridge))
        return lambda gradient: of_outputs @ gradient
    inverse = 2.0 * np.linalg.inv(add_ridge(c, ridge))
    centre = np.eye(classes) - 1.0 / classes
    return lambda gradient: inverse @ gradient @ centre


def descend(
    rows: Rows,
    method: GradientDescent | Newton,
    *,
    rate: float,
    n: int,
    add_noise: AddNoise,
    offset: Floats | float = 0.0,
    direction: Callable[[Floats], Floats] = lambda gradient: gradient,
) -> Floats:
    """Return the weights after `method.steps` noisy steps from zero. Sums are divided by the public n."""
    weight = np.zeros((rows.width, rows.classes - (method.task == "grades")))
    velocity, average, averaged = np.zeros_like(weight), np.zeros_like(weight), 0
    ema, ema_mass = np.zeros_like(weight), 0.0
    for step in range(method.steps):
        gradient = add_noise(clipped_gradient(rows, weight, clip=method.clip, offset=offset, task=method.task)) / n
        velocity = method.momentum * velocity + direction(gradient)
        weight = weight - rate * velocity
        if step >= method.steps // 2:
            averaged += 1
            average += (weight - average) / averaged
        ema = EMA_DECAY * ema + (1 - EMA_DECAY) * weight
        ema_mass = EMA_DECAY * ema_mass + (1 - EMA_DECAY)
    return {"average": average, "ema": ema / ema_mass, "last": weight}[method.keep]


def scaled_rate(epsilon: float, *, at: tuple[tuple[float, float], tuple[float, float]]) -> float:
    """Return the total rate at `epsilon` on the line through two given points (epsilon, total rate).

    Table 15 of DP-RandP (linear probing of CIFAR-10, 100 steps) follows such a line: (0.2, 220), (1, 1000), (2, 2000).
    The points must be public: trying rates on the private rows has a privacy cost.
    """
    (e1, r1), (e2, r2) = at
    if e1 == e2 or min(e1, e2, r1, r2) <= 0 or not epsilon > 0:
        raise ConfigError(
            f"at is {at!r}: it must be two points (epsilon, total rate) with positive values and different epsilons."
        )
    rate = r1 + (r2 - r1) * (epsilon - e1) / (e2 - e1)
    if rate <= 0:
        raise ConfigError(f"the line through {at!r} gives no positive rate at epsilon {epsilon:g}.")
    return rate
