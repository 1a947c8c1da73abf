"""Membership attacks: was a record in the training data? By a loss threshold, or by LiRA with a few shadow models.

    loss threshold   "in" if the loss is small (Yeom et al. 2018): a model that memorises has smaller losses on members
    LiRA             (Carlini et al. 2022, arXiv 2112.03570) phi = log p_y - log(1 - p_y) of a record, compared with its
                     phi under models trained without it and, online, under models trained with it:

        offline      (phi - mean_out) / spread_out
        online       log N(phi; mean_in, spread_in) - log N(phi; mean_out, spread_out)

With a few shadow models the standard deviation of a single record is unknown: one is used for all records, as in the
paper. What matters is the true positive rate at a very small false positive rate, so curves have logarithmic axes.

All results are computed from private images without noise: they are not for release.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata

from dpvision.errors import ConfigError

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]  # false positive rates and true positive rates, ascending
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
# The smallest number of members, and of others, for which a class gets an AUC of its own.
FEWEST = 10


@dataclass(frozen=True)
class Membership:
    """The success of an attack whose high scores mean "in"."""

    auc: float
    true_positive_rates: dict[float, float]  # by false positive rate
    by_class: dict[int, float]  # AUC of classes with enough records
    members: int
    others: int

    def as_json(self, classes: tuple[str, ...]) -> dict[str, Any]:
        """Plain values for files in operator/, with classes by name."""
        return {
            "auc": self.auc,
            "found": {f"{rate:g}": share for rate, share in self.true_positive_rates.items()},
            "by_class": {classes[k]: auc for k, auc in self.by_class.items()},
            "members": self.members,
            "others": self.others,
        }


def evaluate_attack(
    members: ArrayLike, others: ArrayLike, *, classes: tuple[ArrayLike, ArrayLike] | None = None
) -> Membership:
    """The success of an attack, from the scores of members and of others; by class if their classes are given."""
    inside, outside = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    auc = membership_auc(-inside, -outside)  # it takes losses, which are small for members
    false, true = roc_curve(inside, outside)
    rates = {rate: float(true[np.searchsorted(false, rate, side="right") - 1]) for rate in FALSE_POSITIVE_RATES}
    by_class = {}
    if classes is not None:
        inside_classes, outside_classes = (np.asarray(c) for c in classes)
        for k in np.intersect1d(inside_classes, outside_classes).tolist():
            class_inside, class_outside = inside[inside_classes == k], outside[outside_classes == k]
            if min(len(class_inside), len(class_outside)) >= FEWEST:
                by_class[int(k)] = membership_auc(-class_inside, -class_outside)
    return Membership(auc, rates, by_class, len(inside), len(outside))


def roc_curve(members: ArrayLike, others: ArrayLike) -> Curve:
    """False and true positive rates of "score >= t" for every t, ascending, from (0, 0) to (1, 1)."""
    inside, outside = (np.sort(np.asarray(x, dtype=np.float64)) for x in (members, others))
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    rates = [(len(x) - np.searchsorted(x, thresholds, side="left")) / len(x) for x in (outside, inside)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def membership_auc(members: ArrayLike, others: ArrayLike) -> float:
    """AUC = P[loss of a member < loss of another] + P[equal] / 2, exactly, by ranks: 1/2 if losses reveal nothing."""
    inside, outside = _checked_losses("members", members), _checked_losses("others", others)
    ranks = rankdata(np.concatenate([outside, inside]))[: len(outside)]  # ties share their mean rank
    pairs = ranks.sum() - len(outside) * (len(outside) + 1) / 2
    return float(pairs / (len(inside) * len(outside)))


def _checked_losses(name: str, values: ArrayLike) -> Floats:
    losses = np.asarray(values, dtype=np.float64)
    if losses.ndim != 1 or not len(losses) or np.isnan(losses).any():
        raise ConfigError(f"{name} has shape {losses.shape}: it must be a list of losses, one for each record, no NaN.")
    return losses


def cross_entropies(scores: Any, labels: Any) -> Floats:
    """-log softmax(scores)[label] of each record, from (N, K) scores and N labels."""
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    return np.asarray(logsumexp(z, axis=1)) - z[np.arange(len(z)), y]


def logit_confidences(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """phi = log p_y - log(1 - p_y) of each record, from (N, K) scores and N labels."""
    z, y = np.array(scores, dtype=np.float64), np.asarray(labels)
    rows = np.arange(len(z))
    own = z[rows, y].copy()
    z[rows, y] = -np.inf
    return np.asarray(own - logsumexp(z, axis=1))


def train_shadows(
    fit: Callable[[NDArray[np.int64]], ArrayLike],
    labels: ArrayLike,
    *,
    count: int,
    units: ArrayLike | None = None,
    seed: int = 0,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Train `count` shadow models and return two (count, N) arrays: phi of each record, and whether it was trained on.

    `fit` trains a model on the given records and returns its (N, K) scores of all records. Each record is in half of
    the models: one half of each class trains a model, the other half the next. `units` identifies records that belong
    together, such as those of one person: they are in or out together.
    """
    if count < 2 or count % 2:
        raise ConfigError(f"{count} shadow models: it must be an even number, so that every record is in half of them.")
    y, rng = np.asarray(labels), np.random.default_rng(seed)
    _, first, of = np.unique(np.arange(len(y)) if units is None else units, return_index=True, return_inverse=True)
    phi, inside = np.empty((count, len(y))), np.zeros((count, len(y)), dtype=np.bool_)
    for number in range(count):
        if number % 2:
            inside[number] = ~inside[number - 1]
        else:
            chosen = np.zeros(len(first), dtype=np.bool_)
            chosen[np.lexsort((rng.random(len(first)), y[first]))[::2]] = True
            inside[number] = chosen[of]
        phi[number] = logit_confidences(fit(np.flatnonzero(inside[number])), y)
    return phi, inside


def lira_scores(target: ArrayLike, shadow: ArrayLike, inside: ArrayLike, *, online: bool) -> Floats:
    """The score of each record, from (N,) phi of the audited model, (S, N) phi of shadow models, and membership."""
    phi, shadows, members = np.asarray(target, np.float64), np.asarray(shadow, np.float64), np.asarray(inside, np.bool_)
    if shadows.shape != members.shape or shadows.shape[1:] != phi.shape:
        raise ConfigError(
            f"phi has shape {phi.shape}, that of shadow models {shadows.shape}, and membership {members.shape}: the "
            "shapes do not fit."
        )
    if members.all(0).any() or (online and not members.any(0).all()):
        raise ConfigError(
            "every record must be out of one shadow model at least, and online also in one. Fix: more shadow models."
        )
    mean_out, spread_out = _mean_and_spread(shadows, ~members)
    if not online:
        return (phi - mean_out) / spread_out
    mean_in, spread_in = _mean_and_spread(shadows, members)
    return _log_normal(phi, mean_in, spread_in) - _log_normal(phi, mean_out, spread_out)


def _mean_and_spread(phi: Floats, which: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Each record's mean over the models chosen for it, and one standard deviation for all records."""
    counts = which.sum(0)
    mean = np.where(which, phi, 0.0).sum(0) / counts
    squares = (np.where(which, phi - mean, 0.0) ** 2).sum()
    return mean, float(np.sqrt(squares / max(1, (counts - 1).sum()))) + 1e-9


def _log_normal(x: Floats, mean: Floats, spread: float) -> Floats:
    return np.asarray(-0.5 * ((x - mean) / spread) ** 2 - np.log(spread))


def plot_roc(curves: dict[str, Curve], *, allowed: tuple[Sequence[float], ArrayLike] | None, title: str) -> bytes:
    """The curves on logarithmic axes as SVG; `allowed` is the largest curve that the claim permits to any attack."""
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
            axes.fill_between(rates, least, most, color="#cfe3f5", label="allowed by the claim")
            axes.plot(rates, most, color="#2b6ca3", linewidth=1)
        for name, (false, true) in curves.items():
            axes.step(np.maximum(false, least), np.maximum(true, least), where="post", linewidth=1.4, label=name)
        axes.plot([least, 1], [least, 1], color="#888888", linestyle=":", linewidth=1, label="guessing")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05), title=title)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
        axes.legend(loc="lower right", fontsize=8)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
