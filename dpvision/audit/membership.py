"""Who was in the data, by a model's answers: loss threshold, and LiRA with a few shadow models.

    loss threshold   "in" where the loss is small (Yeom et al. 2018); audit/losses.py has its AUC
    LiRA             (Carlini et al. 2022, arXiv 2112.03570) phi = log p_y - log(1 - p_y) of a record, against what
                     models give it that were trained without it, and, online, against those trained with it:

        offline      (phi - mean_out) / spread_out
        online       log N(phi; mean_in, spread_in) - log N(phi; mean_out, spread_out)

With a few shadow models a record's own spread is not known: one is taken for all records, as the paper does.

What matters is how many are found where hardly anybody is accused: curves are drawn on logarithmic axes. All of this is
computed from private images without noise: it is for the operator's eyes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from dpvision.audit.losses import membership_auc
from dpvision.errors import ConfigError

Floats = NDArray[np.float64]
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
# The fewest members and others of a class that a figure is told of.
FEWEST = 10


@dataclass(frozen=True)
class Membership:
    """What an attack's scores find; high scores say "in"."""

    auc: float
    found: dict[float, float]  # false positive rate -> true positive rate
    by_class: dict[int, float]  # AUC of classes with enough records
    members: int
    others: int


def attack_success(
    members: ArrayLike, others: ArrayLike, *, classes: tuple[ArrayLike, ArrayLike] | None = None
) -> Membership:
    """From a score of each member and of each other record, and, for the breakdown, their classes."""
    inside, outside = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    auc = membership_auc(-inside, -outside)  # it takes losses: small says "in"
    rates, found = roc(inside, outside)
    at = {f: float(found[np.searchsorted(rates, f, side="right") - 1]) for f in FALSE_POSITIVE_RATES}
    by_class = {}
    if classes is not None:
        of_inside, of_outside = (np.asarray(c) for c in classes)
        for k in np.intersect1d(of_inside, of_outside).tolist():
            ours, theirs = inside[of_inside == k], outside[of_outside == k]
            if min(len(ours), len(theirs)) >= FEWEST:
                by_class[int(k)] = membership_auc(-ours, -theirs)
    return Membership(auc, at, by_class, len(inside), len(outside))


def roc(members: ArrayLike, others: ArrayLike) -> tuple[Floats, Floats]:
    """(false positive rates, true positive rates) of "score >= t" for every t, ascending, from (0, 0) to (1, 1)."""
    inside, outside = (np.sort(np.asarray(x, dtype=np.float64)) for x in (members, others))
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    rates = [(len(x) - np.searchsorted(x, thresholds, side="left")) / len(x) for x in (outside, inside)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def confidences(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """phi of each record: log p_y - log(1 - p_y), from (N, K) scores and N classes."""
    z, y = np.array(scores, dtype=np.float64), np.asarray(labels)
    rows = np.arange(len(z))
    own = z[rows, y].copy()
    z[rows, y] = -np.inf
    return np.asarray(own - logsumexp(z, axis=1))


def shadows(
    fit: Callable[[NDArray[np.int64]], ArrayLike],
    labels: ArrayLike,
    *,
    count: int,
    units: ArrayLike | None = None,
    seed: int = 0,
) -> tuple[Floats, NDArray[np.bool_]]:
    """(count, N) of phi and of who was in: `fit` trains on some records and returns (N, K) scores of all of them.

    Each record is in half of the models: one half of each class trains a model, the other half the next. `units` says
    which records belong together, such as those of one person: they are in or out together.
    """
    if count < 2 or count % 2:
        raise ConfigError(f"{count} shadow models: it must be an even number, so that everyone is in half of them.")
    y, rng = np.asarray(labels), np.random.default_rng(seed)
    _, first, of = np.unique(np.arange(len(y)) if units is None else units, return_index=True, return_inverse=True)
    found, inside = np.empty((count, len(y))), np.zeros((count, len(y)), dtype=np.bool_)
    for number in range(count):
        if number % 2:
            inside[number] = ~inside[number - 1]
        else:
            chosen = np.zeros(len(first), dtype=np.bool_)
            chosen[np.lexsort((rng.random(len(first)), y[first]))[::2]] = True
            inside[number] = chosen[of]
        found[number] = confidences(fit(np.flatnonzero(inside[number])), y)
    return found, inside


def lira(target: ArrayLike, shadow: ArrayLike, inside: ArrayLike, *, online: bool) -> Floats:
    """Score of each record: (N,) phi of the audited model, (S, N) phi of shadow models and who was in which."""
    phi, others, there = np.asarray(target, np.float64), np.asarray(shadow, np.float64), np.asarray(inside, np.bool_)
    if others.shape != there.shape or others.shape[1:] != phi.shape:
        raise ConfigError(f"phi {phi.shape}, shadow models {others.shape}, who was in {there.shape}: they do not fit.")
    if there.all(0).any() or (online and not there.any(0).all()):
        raise ConfigError("every record must be out of one shadow model, and online also in one. Fix: more of them.")
    mean_out, spread_out = _mean_and_spread(others, ~there)
    if not online:
        return (phi - mean_out) / spread_out
    mean_in, spread_in = _mean_and_spread(others, there)
    return _log_normal(phi, mean_in, spread_in) - _log_normal(phi, mean_out, spread_out)


def _mean_and_spread(phi: Floats, which: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Of each record over the models chosen for it; one spread for all records."""
    counts = which.sum(0)
    mean = np.where(which, phi, 0.0).sum(0) / counts
    squares = (np.where(which, phi - mean, 0.0) ** 2).sum()
    return mean, float(np.sqrt(squares / max(1, (counts - 1).sum()))) + 1e-9


def _log_normal(x: Floats, mean: Floats, spread: float) -> Floats:
    return np.asarray(-0.5 * ((x - mean) / spread) ** 2 - np.log(spread))


def draw(
    curves: dict[str, tuple[Floats, Floats]], *, allowed: tuple[Sequence[float], ArrayLike] | None, title: str
) -> bytes:
    """The curves on logarithmic axes as SVG; `allowed` bounds what any attack can reach by the claim."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "audit", "svg.fonttype": "none", "text.parse_math": False})
        figure = Figure(figsize=(5.2, 4.6), layout="constrained")
        axes: Any = figure.subplots()
        least = 1e-4
        if allowed is not None:
            rates, most = np.asarray(allowed[0]), np.asarray(allowed[1])
            axes.fill_between(rates, least, most, color="#cfe3f5", label="what the claim allows")
            axes.plot(rates, most, color="#2b6ca3", linewidth=1)
        for name, (false, true) in curves.items():
            axes.step(np.maximum(false, least), np.maximum(true, least), where="post", linewidth=1.4, label=name)
        axes.plot([least, 1], [least, 1], color="#888888", linestyle=":", linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05), title=title)
        axes.set(xlabel="wrongly reported outside", ylabel="found inside")
        axes.legend(loc="lower right", fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
