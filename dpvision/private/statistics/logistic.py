"""Multinomial logistic regression by full-batch private gradient descent: what gd.py and newton.py share.

Formal guarantee of `clipped_gradient`: the gradient of row x with class y at weights w is x (p - y)^T with
p = softmax(w^T x), a matrix of rank one, so its Frobenius norm is exactly |x| |p - y|. Each is multiplied by
min(1, clip / (|x| |p - y|)) before they are summed, so one row more or less moves the sum by at most `clip`; and by at
most sqrt(2) in any case, for |x| <= 1 and |p - y| <= sqrt(2). No gradient of one row is ever formed.

Formal guarantee of `descend`: it reads the rows in `clipped_gradient` alone, once in each of the `steps`, and what it
gets is noisy; the weights, their average and any preconditioner are computed from noisy values and public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpvision.core.rows import BoundedSum, Floats, Rows, lengths
from dpvision.errors import ConfigError

# Which iterate is kept. It is chosen before anything is seen.
KEEPS = ("average", "ema", "last")
EMA_DECAY = 0.9
# Beyond, a score's last bits decide on classes, and those may depend on the rows that are computed beside.
LARGEST_SCORE = 1e9

Noisy = Callable[[BoundedSum], Floats]


def clipped_gradient(rows: Rows, weight: Floats, *, clip: float) -> BoundedSum:
    """sum_i x_i (p_i - y_i)^T min(1, clip / (|x_i| |p_i - y_i|))."""
    total = np.zeros_like(weight)
    for x, y in rows.blocks():
        scores = x @ weight
        error = softmax(scores) - y
        norm = lengths(x) * lengths(error)
        sound = np.isfinite(norm) & (np.abs(scores).max(1, keepdims=True) < LARGEST_SCORE)
        share = np.where(sound, clip / np.maximum(norm, clip), 0.0)
        total += x.T @ np.where(share > 0, error * share, 0.0)  # a row without a sound score adds nothing
    return BoundedSum(total, min(clip, math.sqrt(2.0)))


def descend(
    rows: Rows,
    *,
    steps: int,
    rate: float,
    momentum: float,
    clip: float,
    keep: str,
    n: int,
    noisy: Noisy,
    direction: Callable[[Floats], Floats] = lambda gradient: gradient,
) -> Floats:
    """The weights after `steps` noisy steps from zero. Sums are divided by the public n."""
    weight = np.zeros((rows.width, rows.classes))
    velocity, average, averaged = np.zeros_like(weight), np.zeros_like(weight), 0
    ema, ema_mass = np.zeros_like(weight), 0.0
    for step in range(steps):
        gradient = noisy(clipped_gradient(rows, weight, clip=clip)) / n
        velocity = momentum * velocity + direction(gradient)
        weight = weight - rate * velocity
        if step >= steps // 2:
            averaged += 1
            average += (weight - average) / averaged
        ema = EMA_DECAY * ema + (1 - EMA_DECAY) * weight
        ema_mass = EMA_DECAY * ema_mass + (1 - EMA_DECAY)
    return {"average": average, "ema": ema / ema_mass, "last": weight}[keep]


def softmax(scores: Floats) -> Floats:
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def require_descent(*, steps: int, momentum: float, clip: float, keep: str) -> None:
    """Refuse, by their names, settings with which there is no descent."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps is {steps!r}: it must be a whole number above 0.")
    if not (isinstance(momentum, int | float) and 0 <= momentum < 1):
        raise ConfigError(f"momentum is {momentum!r}: it must be from 0 to below 1.")
    if not (isinstance(clip, int | float) and 0 < clip < math.inf):
        raise ConfigError(f"clip is {clip!r}: the most length of one row's gradient must be a finite number above 0.")
    if keep not in KEEPS:
        raise ConfigError(f"keep is {keep!r}: it must be one of {', '.join(KEEPS)}.")
