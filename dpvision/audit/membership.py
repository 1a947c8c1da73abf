"""Membership attacks on a run or a release: was a record in the training data?

    loss threshold   "in" if the loss is small (Yeom et al. 2018): a model that memorises has smaller losses on members
    LiRA             (online; Carlini et al. 2022, arXiv 2112.03570) compares a record's phi = log p_y - log(1 - p_y)
                     with its phi under models that were trained with it and without it:

                     log N(phi; mean_in, spread_in) - log N(phi; mean_out, spread_out)

With few shadow models, the standard deviation of one record's phi cannot be estimated, so all records share one, as in
the paper. All results are computed from private images without noise, so they are not for release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from scipy.stats import rankdata

from dpvision.core.rows import Rows
from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import predict_scores
from dpvision.private.features.public_map import features_of
from dpvision.private.statistics.mechanism import Description
from dpvision.private.statistics.release import mechanism_of
from dpvision.released.folder import FinishedRelease, read_rows
from dpvision.released.learners import DiscriminantLearner
from dpvision.released.model import load_model

Floats = NDArray[np.float64]
Curve = tuple[Floats, Floats]  # false positive rates and true positive rates, ascending
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
# A class gets its own AUC if it has at least this number of members and of non-members.
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
        """Return plain values for files in operator/, with classes by name."""
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
    """Measure the success of an attack from the scores of members and others, and by class if classes are given."""
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


def require_classes(task: str) -> None:
    """Refuse models with several labels and graded models: these attacks compare the losses of classes."""
    if task != "classes":
        raise ConfigError(
            f"this attack compares the losses of classes, but the model answers {task}. Fix: leave the data out, "
            "for the audit with canaries."
        )


def attack_run(
    folder: Path, source: str, *, most: int = 10_000, device: torch.device | str = "cpu"
) -> tuple[Membership, dict[str, Floats]]:
    """Attack a run's model by loss threshold, training against test images; return the success and the scores."""
    model = load_model(folder, device=device)
    require_classes(model.kind)
    data = model.load(source, size=None)
    if data.test is None:
        raise DataError(f"{source}: it has no test split, so there are no images to compare with.")
    splits = (data.train, data.test)
    return _attack_losses(*((predict_scores(model.model, model.inputs(s), most=most), s.labels[:most]) for s in splits))


def attack_release(
    release: FinishedRelease,
    source: str,
    *,
    weights: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[Membership, dict[str, Floats]]:
    """Attack a classifier trained on released rows by loss threshold; return the success and the scores."""
    classes = len(release.classes)
    balanced = release.settings.objective == "balanced"
    learner = DiscriminantLearner(classes=classes, balanced=balanced, **describe(release).noise)
    learner.fit(*read_rows(release.folder))
    parts = []
    for split in ("train", "test"):
        rows = features_of(release.folder, source, split=split, weights=weights, progress=progress)
        parts.append((learner.scores(rows["features"]), rows["labels"]))
    return _attack_losses(*parts)


def describe(release: FinishedRelease) -> Description:
    """Return the description of a release's mechanism, such as the noise that it adds to rows."""
    return mechanism_of(Rows.none(len(release.classes)), release.settings).describe(release.settings)


def _attack_losses(*parts: tuple[ArrayLike, Any]) -> tuple[Membership, dict[str, Floats]]:
    """Attack by loss threshold, given a model's outputs and the labels of members and then of non-members."""
    inside, outside = (-cross_entropies(*part) for part in parts)
    success = evaluate_attack(inside, outside, classes=(parts[0][1], parts[1][1]))
    return success, {"members": inside, "others": outside}


def roc_curve(members: ArrayLike, others: ArrayLike) -> Curve:
    """Return the false and true positive rates of "score >= t" for every t, ascending, from (0, 0) to (1, 1)."""
    inside, outside = (np.sort(np.asarray(x, dtype=np.float64)) for x in (members, others))
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    rates = [(len(x) - np.searchsorted(x, thresholds, side="left")) / len(x) for x in (outside, inside)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def membership_auc(members: ArrayLike, others: ArrayLike) -> float:
    """Return the AUC, P[member's loss < non-member's loss] + P[equal] / 2, exactly; 1/2 if losses reveal nothing."""
    inside, outside = _checked_losses("members", members), _checked_losses("others", others)
    ranks = rankdata(np.concatenate([outside, inside]))[: len(outside)]  # ties get their mean rank
    pairs = ranks.sum() - len(outside) * (len(outside) + 1) / 2
    return float(pairs / (len(inside) * len(outside)))


def _checked_losses(name: str, values: ArrayLike) -> Floats:
    losses = np.asarray(values, dtype=np.float64)
    if losses.ndim != 1 or not len(losses) or np.isnan(losses).any():
        raise ConfigError(f"{name} has shape {losses.shape}: it must be a list of losses, one per record, without NaN.")
    return losses


def cross_entropies(scores: Any, labels: Any) -> Floats:
    """Return -log softmax(scores)[label] of each record, from (N, K) scores and N labels."""
    z, y = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    return np.asarray(logsumexp(z, axis=1)) - z[np.arange(len(z)), y]


def logit_confidences(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """Return phi = log p_y - log(1 - p_y) of each record, from (N, K) scores and N labels."""
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

    `fit` trains a model on the given records and returns phi of all records. Each record is in half of the models: one
    model is trained on one half of each class, the next on the other half. `units` identifies records that belong
    together, such as those of one person, which are in or out together.
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
        phi[number] = fit(np.flatnonzero(inside[number]))
    return phi, inside


def lira_scores(target: ArrayLike, shadow: ArrayLike, inside: ArrayLike) -> Floats:
    """Return LiRA scores, from (N,) phi of the attacked model, (S, N) phi of shadow models, and their membership."""
    phi, shadows, members = np.asarray(target, np.float64), np.asarray(shadow, np.float64), np.asarray(inside, np.bool_)
    if shadows.shape != members.shape or shadows.shape[1:] != phi.shape:
        raise ConfigError(
            f"phi has shape {phi.shape}, phi of shadow models {shadows.shape}, and membership {members.shape}: they "
            "must be (N,), (S, N) and (S, N)."
        )
    if members.all(0).any() or not members.any(0).all():
        raise ConfigError("every record must be inside one shadow model and outside another. Fix: train more models.")
    inside_fit, outside_fit = (_mean_and_spread(shadows, which) for which in (members, ~members))
    return _log_normal(phi, *inside_fit) - _log_normal(phi, *outside_fit)


def _mean_and_spread(phi: Floats, which: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Return each record's mean over the models chosen for it, and one standard deviation for all records."""
    counts = which.sum(0)
    mean = np.where(which, phi, 0.0).sum(0) / counts
    squares = (np.where(which, phi - mean, 0.0) ** 2).sum()
    return mean, float(np.sqrt(squares / max(1, (counts - 1).sum()))) + 1e-9


def _log_normal(x: Floats, mean: Floats, spread: float) -> Floats:
    return np.asarray(-0.5 * ((x - mean) / spread) ** 2 - np.log(spread))
