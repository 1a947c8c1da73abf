"""A second privacy-loss-distribution accountant in plain numpy: also an upper bound, and ready in 0.1 s.

dp-accounting (core/accountant.py) decides what a run may do and what a card states; just importing it takes a second.
This one answers `dpvision plan`, drives every calibration search, and serves as an independent check in tests.

For one step of rate q and noise sigma, the worst-case pair is P = (1-q) N(0, sigma^2) + q N(1, sigma^2) against
Q = N(0, sigma^2), with the loss l(x) = log(dP/dQ)(x) = log(1 - q + q exp((2x-1) / (2 sigma^2))), increasing in x.
The mass between two points of the loss grid is moved to these points such that the total mass of both P and Q is
preserved ("connect the dots", Doroshenko et al. 2022). The resulting pair dominates the true one, so every composition
of it is an upper bound. Steps are composed by the Fourier transform; mass outside the window counts as infinite loss.

A point (epsilon, delta) is represented by the pair that dominates every mechanism satisfying it (Kairouz, Oh, Viswanath
2015): with probability delta everything is revealed, and else one bit, correct with probability e^epsilon / (1 +
e^epsilon).

Two more bounds, `rdp_epsilon` and `lower_bound`, are only for comparison with the accountant; nothing depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from dpvision.core.accountant import (
    GRID,
    MAX_LOSS,
    STEP_TAIL_SIGMAS,
    Floats,
    compose_losses,
    grid_width,
    hidden_by_rounding,
    join_unsampled,
    loss,
)
from dpvision.core.events import Capped, Event, Kind, Point, exposures, split_kind

# Mass that the composed window may omit on each side; it counts as infinite loss.
WINDOW_TAIL = 1e-14
# Integer orders only: the series for fractional orders does not always converge, and without them it is still a bound.
RDP_ORDERS = [*range(2, 65), *range(72, 257, 8), 320, 512, 1024]


class _Losses(NamedTuple):
    """The mass of P on the loss grid, starting at index `low`, and at infinity."""

    mass: Floats
    low: int
    infinite: float


class _Total(NamedTuple):
    """Composed losses above 0 with their cumulative sums from the top, from which epsilon and delta are computed."""

    losses: Floats
    above: Floats  # P-mass at this loss or above, including infinity
    above_q: Floats  # Q-mass at this loss or above


def epsilon(event: Event, delta: float) -> float:
    """Return the least epsilon that this accountant proves at `delta`; never too low."""
    if isinstance(event, Capped):
        return event.epsilon if delta >= event.delta else math.inf
    return max((_epsilon(kind, delta) for kind in exposures(event)), default=0.0)


def delta(event: Event, epsilon: float) -> float:
    """Return the least delta that this accountant proves at `epsilon`; never too low."""
    return float(profile(event, [epsilon])[0])


def profile(event: Event, epsilons: Sequence[float]) -> Floats:
    """Return the privacy profile: delta at each given epsilon."""
    points = np.asarray(epsilons, dtype=np.float64)
    curves = [np.maximum(*(_deltas(t, points) for t in _both_ways(kind))) for kind in exposures(event) if kind]
    return np.max(curves, axis=0) if curves else np.zeros_like(points)


@lru_cache(maxsize=4096)
def _epsilon(kind: Kind, delta: float) -> float:
    return max((_epsilon_at(t, delta) for t in _both_ways(kind)), default=0.0) if kind else 0.0


def _epsilon_at(total: _Total, delta: float) -> float:
    deltas = total.above - np.exp(total.losses) * total.above_q  # delta at each grid loss, decreasing
    j = int(np.searchsorted(-deltas, -delta))  # the first loss whose delta is at most `delta`
    if j == len(deltas):
        return math.inf
    # Between loss j-1 and loss j: delta(epsilon) = above_j - exp(epsilon) * above_q_j.
    excess = total.above[j] - delta
    if excess <= 0:  # cancellation in the two lines above: the previous grid loss is safe
        return float(total.losses[j - 1]) if j else 0.0
    return max(0.0, math.log(excess / total.above_q[j]))


def _deltas(total: _Total, epsilons: Floats) -> Floats:
    j = np.minimum(np.searchsorted(total.losses, epsilons), len(total.losses) - 1)
    return np.clip(total.above[j] - np.exp(np.minimum(epsilons, total.losses[j])) * total.above_q[j], 0.0, 1.0)


@lru_cache(maxsize=64)
def _both_ways(kind: Kind) -> tuple[_Total, _Total]:
    """Return the losses of P against Q (a record is removed) and of Q against P (a record is added)."""
    kind = join_unsampled(kind)
    h = grid_width(kind)
    steps, points = split_kind(kind)
    remove = [(_step_losses(q, sigma, h, added=False), n) for q, sigma, n in steps]
    add = [(_step_losses(q, sigma, h, added=True), n) for q, sigma, n in steps]
    both = [(_point_losses(point, h), 1) for point in points]
    return _compose([*remove, *both], h), _compose([*add, *both], h)


def _step_losses(q: float, sigma: float, h: float, *, added: bool) -> _Losses:
    """Return a dominating loss of one step on the grid: of P against Q or, if `added`, of Q against P."""
    edge = STEP_TAIL_SIGMAS * sigma
    ends = loss(np.array([-edge, edge + 1.0]), q, sigma)
    ends = np.clip(ends, -MAX_LOSS, MAX_LOSS)
    low, high = math.floor(ends[0] / h), math.ceil(ends[1] / h)
    grid = np.arange(low, high + 1) * h
    p_mass, q_mass = _masses(q, sigma, h, low, high)
    if added:
        # In the other direction the losses change sign: mirror the grid and swap P and Q.
        grid, low, p_mass, q_mass = -grid[::-1], -high, q_mass[::-1], p_mass[::-1]
    # Between grid points a and a+h, let p and r be the masses of P and Q. Put p-u at a and u at a+h such that
    # (p-u) e^-a + u e^-(a+h) = r, which gives u = (p - r e^a) / (1 - e^-h).
    p, r = p_mass[1:-1], q_mass[1:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        up = np.where(r > 0, (p - r * np.exp(grid[:-1])) / -math.expm1(-h), p)
    up = np.clip(up, 0.0, p)
    mass = np.zeros_like(grid)
    mass[:-1] += p - up
    mass[1:] += up
    mass[0] += p_mass[0]  # a loss below the grid is rounded up
    return _Losses(mass, low, float(p_mass[-1]))


@lru_cache(maxsize=8)
def _masses(q: float, sigma: float, h: float, low: int, high: int) -> tuple[Floats, Floats]:
    """Return the masses of P and Q below, between and above the grid points, for both directions."""
    grid = np.arange(low, high + 1) * h
    # The x at which the loss is a grid value; there is none for losses below log(1-q).
    gain = np.expm1(grid) / q + 1.0
    x = np.full_like(grid, -np.inf)
    ok = gain > 0
    x[ok] = sigma**2 * np.log(gain[ok]) + 0.5
    q_mass = _normal_mass(x / sigma)
    return (1 - q) * q_mass + q * _normal_mass((x - 1.0) / sigma), q_mass


def _point_losses(point: Point, h: float) -> _Losses:
    """Return the losses of a point, rounded up to the grid; they are the same for adding and removing a record."""
    high, low = math.ceil(point.epsilon / h), -math.floor(point.epsilon / h)
    mass = np.zeros(high - low + 1)
    mass[-1] += (1 - point.delta) / (1 + math.exp(-point.epsilon))
    mass[0] += (1 - point.delta) / (1 + math.exp(point.epsilon)) if point.epsilon < MAX_LOSS else 0.0
    return _Losses(mass, low, point.delta)


def _normal_mass(z: Floats) -> Floats:
    """Return the mass of N(0, 1) below z[0], between neighbours, and above z[-1], each from the more precise tail."""
    upper = np.array([math.erfc(v) for v in np.abs(z) * math.sqrt(0.5)]) / 2  # mass beyond |z|
    right = z > 0
    below, above = np.where(right, 1 - upper, upper), np.where(right, upper, 1 - upper)
    inner = np.where(right[:-1], above[:-1] - above[1:], below[1:] - below[:-1])
    return np.concatenate([below[:1], np.maximum(inner, 0.0), above[-1:]])


def _compose(steps: list[tuple[_Losses, int]], h: float) -> _Total:
    low, high = _window(steps, h)
    size = _fast_length(max(high - low + 1, *(len(s.mass) for s, _ in steps)))
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    start, log_finite = 0, 0.0
    for losses, n in steps:
        spectrum *= np.fft.rfft(losses.mass, size) ** n
        start += losses.low * n
        log_finite += n * math.log1p(-losses.infinite) if losses.infinite < 1 else -math.inf
    # The transform is periodic: entry i holds the loss (start + i) modulo size. Rotate it so that entry 0 is `low`.
    mass = np.roll(np.fft.irfft(spectrum, size), -((low - start) % size))[: high - low + 1]
    infinite = -math.expm1(log_finite) + 2 * WINDOW_TAIL + hidden_by_rounding(sum(n for _, n in steps))
    # Only losses of at least 0 matter, since epsilon >= 0; those from MAX_LOSS up count as infinite.
    last = min(high, int(MAX_LOSS / h))
    mass = np.maximum(mass, 0.0)
    infinite += float(mass[max(last + 1 - low, 0) :].sum())
    mass = mass[max(0, -low) : max(last + 1 - low, 0)] if last >= low else np.zeros(1)
    losses_up: Floats = (max(low, 0) + np.arange(len(mass), dtype=np.float64)) * h
    if last < low:
        losses_up = np.array([MAX_LOSS])
    above = np.cumsum(mass[::-1])[::-1] + infinite
    above_q = np.cumsum((mass * np.exp(-losses_up))[::-1])[::-1]
    return _Total(losses_up, above, above_q)


def _window(steps: list[tuple[_Losses, int]], h: float) -> tuple[int, int]:
    """Return the indices of a window that contains all but WINDOW_TAIL of the composed loss on each side (Chernoff)."""
    points: list[tuple[_Losses, int, Floats]] = [
        (s, n, (np.arange(len(s.mass), dtype=np.float64) + s.low) * h) for s, n in steps
    ]
    mean = sum(n * float(s.mass @ l) for s, n, l in points)
    spread = math.sqrt(sum(n * max(float(s.mass @ l**2) - float(s.mass @ l) ** 2, 0.0) for s, n, l in points)) + h
    low, high = sum(n * float(l[0]) for _, n, l in points), sum(n * float(l[-1]) for _, n, l in points)
    budget = -math.log(WINDOW_TAIL)
    # Orders near 1/spread suit nearly normal sums; small orders suit the rare large losses at small sampling rates.
    sizes = np.geomspace(min(0.5, 0.5 / spread), 10 / spread, 24).tolist()

    def at(order: float) -> float:
        return (sum(n * _log_mgf(s.mass, order * l) for s, n, l in points) + budget) / order

    def below(order: float) -> float:
        return -at(-order)

    high, low = min(high, _least(at, sizes)), max(low, -_least(below, sizes))
    low = min(low, mean)
    return math.floor(low / h) - 1, math.ceil(max(high, mean, 0.0) / h) + 1


def _least(bound: Callable[[float], float], orders: Sequence[float]) -> float:
    """Return the least bound among the orders, of which few are tried, since bounds fall and then rise.

    Chernoff's bound does so because a cumulant generating function is convex. Any of them is a bound.
    """
    at = cache(bound)
    first, last = 0, len(orders) - 1
    while first < last:
        middle = (first + last) // 2
        falls = at(orders[middle]) > at(orders[middle + 1])
        first, last = (middle + 1, last) if falls else (first, middle)
    return at(orders[first])


def _log_mgf(mass: Floats, exponent: Floats) -> float:
    top = float(exponent.max())
    value = float(mass @ np.exp(exponent - top))
    return top + math.log(value) if value > 0 else -math.inf


def _fast_length(n: int) -> int:
    """Return the smallest 2^a, 3*2^a or 5*2^a that is at least n: the transform is fast at these lengths."""
    power = 1 << max(n - 1, 1).bit_length()
    return min(k for k in (power, power // 4 * 3, power // 8 * 5) if k >= n)


def rdp_epsilon(event: Event, delta: float) -> float:
    """Return epsilon by Rényi DP. It needs no discretisation, so a PLD epsilon above it indicates an error."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    worst = 0.0
    for kind in exposures(event):
        exposed, points = split_kind(kind)
        if points:  # with probability delta all is revealed, so no Rényi divergence is finite
            return math.inf
        accountant = RdpAccountant(RDP_ORDERS)
        for rate, sigma, steps in exposed:
            step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
            accountant.compose(step, steps)
        worst = max(worst, float(accountant.get_epsilon(delta)))
    return worst


def lower_bound(event: Event, delta: float) -> float:
    """Return dp-accounting's optimistic epsilon: the true epsilon is between this and `accountant.epsilon`.

    No lower bound is known for a tuning run, so it counts as 0.
    """
    kinds: list[Kind] = [steps for kind in exposures(event) if (steps := split_kind(kind)[0])]
    return max(
        (float(compose_losses(k, grid=GRID / 8, optimistic=True).get_epsilon_for_delta(delta)) for k in kinds),
        default=0.0,
    )
