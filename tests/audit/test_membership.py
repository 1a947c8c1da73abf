"""Membership attacks: LiRA succeeds against a model that memorises, and no attack against one of other records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpvision.audit.membership import (
    cross_entropies,
    evaluate_attack,
    lira_scores,
    logit_confidences,
    membership_auc,
    roc_curve,
    train_shadows,
)
from dpvision.audit.pictures import plot_roc
from dpvision.errors import ConfigError

RECORDS, WIDTH, CLASSES = 400, 60, 3


def _data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes that are hard to learn, so that a model with many weights memorises its records instead."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, RECORDS)
    return rng.normal(size=(RECORDS, WIDTH)) + 0.4 * np.eye(WIDTH)[labels], labels


def _weights(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Weights by regularised least squares."""
    return np.linalg.solve(x.T @ x + np.eye(WIDTH), x.T @ np.eye(CLASSES)[labels])


def _attacks(seed: int, *, trained_on_them: bool = True) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, labels = _data(seed)
    members = np.zeros(RECORDS, bool)
    members[np.random.default_rng(100 + seed).permutation(RECORDS)[: RECORDS // 2]] = True
    weights = _weights(x[members], labels[members]) if trained_on_them else _weights(*_data(1000 + seed))
    target = 3 * x @ weights

    def fit(rows: np.ndarray) -> np.ndarray:
        return logit_confidences(3 * x @ _weights(x[rows], labels[rows]), labels)

    phi, inside = train_shadows(fit, labels, count=16, seed=seed)
    scores = {
        "loss": -cross_entropies(target, labels),
        "LiRA": lira_scores(logit_confidences(target, labels), phi, inside),
    }
    return {name: (attack[members], attack[~members]) for name, attack in scores.items()}


def test_lira_finds_more_members_than_the_loss_threshold() -> None:
    results = {name: [] for name in ("loss", "LiRA")}
    for seed in range(5):
        for name, scores in _attacks(seed).items():
            results[name].append(evaluate_attack(*scores))
    auc = {name: np.mean([r.auc for r in attacks]) for name, attacks in results.items()}
    rare = {name: np.mean([r.true_positive_rates[0.01] for r in attacks]) for name, attacks in results.items()}
    assert auc["loss"] > 0.7 and auc["LiRA"] > auc["loss"] + 0.03
    assert rare["LiRA"] > 2 * rare["loss"]


@pytest.mark.parametrize("name", ["loss", "LiRA"])
def test_no_attack_succeeds_against_a_model_of_other_records(name: str) -> None:
    aucs = [evaluate_attack(*_attacks(seed, trained_on_them=False)[name]).auc for seed in range(8)]
    assert abs(np.mean(aucs) - 0.5) < 0.04


def test_the_area_under_the_curve_is_the_auc() -> None:
    rng = np.random.default_rng(0)
    inside, outside = np.round(rng.normal(0.5, 1, 300), 1), np.round(rng.normal(0, 1, 200), 1)  # with ties
    false, true = roc_curve(inside, outside)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert (np.diff(false) >= 0).all() and (np.diff(true) >= 0).all()
    assert np.trapezoid(true, false) == pytest.approx(membership_auc(-inside, -outside))


def test_true_positive_rates_respect_the_false_positive_rate() -> None:
    success = evaluate_attack(np.arange(1000) + 500.0, np.arange(1000.0))
    assert success.true_positive_rates == {0.001: 0.501, 0.01: 0.51, 0.1: 0.6} and (
        success.members,
        success.others,
    ) == (
        1000,
        1000,
    )


def test_the_memorised_class_has_a_high_auc() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2], [500, 500, 5])
    members = rng.normal(size=1005) + 2.0 * (classes == 1)
    success = evaluate_attack(members, rng.normal(size=1005), classes=(classes, classes))
    assert success.by_class.keys() == {0, 1}, "5 records are too few"
    assert success.by_class[1] > 0.9 and abs(success.by_class[0] - 0.5) < 0.05


def test_confidences_are_logits_of_the_true_class() -> None:
    scores = np.array([[2.0, 0.0, -1.0], [800.0, -800.0, 0.0]])
    p = np.exp(2) / (np.exp(2) + 1 + np.exp(-1))
    assert logit_confidences(scores, [0, 1]) == pytest.approx([np.log(p / (1 - p)), -1600])


def test_each_record_is_in_half_of_the_shadow_models() -> None:
    phi, inside = train_shadows(lambda rows: np.zeros(50), np.zeros(50, int), count=6)
    assert phi.shape == (6, 50) and (inside.sum(0) == 3).all() and (inside.sum(1) == 25).all()


def test_shadow_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="even number"):
        train_shadows(lambda rows: np.zeros(4), [0, 0, 1, 1], count=3)
    with pytest.raises(ConfigError, match=r"they must be \(N,\)"):
        lira_scores(np.zeros(3), np.zeros((2, 4)), np.zeros((2, 4), bool))
    for inside in (np.ones, np.zeros):
        with pytest.raises(ConfigError, match="inside one shadow model and outside another"):
            lira_scores(np.zeros(3), np.zeros((2, 3)), inside((2, 3), bool))


def test_plots_are_reproducible() -> None:
    curve = roc_curve([1.0, 2.0], [0.0, 1.0])
    plots = [plot_roc({"losses": curve}, allowed=([0.01, 1.0], [0.05, 1.0]), title="a & b") for _ in range(2)]
    assert plots[0] == plots[1] and b"allowed by the claim" in plots[0] and b"a &amp; b" in plots[0]


LOSSES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, float("inf")]), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(LOSSES, LOSSES)
def test_the_auc_counts_pairs(members: list[float], others: list[float]) -> None:
    pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in members for b in others]
    assert membership_auc(members, others) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_the_auc_of_separated_and_of_equal_losses() -> None:
    assert membership_auc([0, 1], [2, 3]) == 1 and membership_auc([2, 3], [0, 1]) == 0
    assert membership_auc([1, 1, 1], [1]) == 0.5
    for bad in ([], [float("nan")], [[1.0]]):
        with pytest.raises(ConfigError, match="others"):
            membership_auc([1.0], bad)


def test_cross_entropies_equal_those_of_torch() -> None:
    scores, labels = torch.randn(20, 5, dtype=torch.double) * 300, torch.arange(20) % 5
    expected = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    assert np.allclose(cross_entropies(scores.numpy(), labels.numpy()), expected.numpy())


def test_losses_reveal_memorised_records() -> None:
    """Labels are random: only memorising makes a loss small."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(120, 80)), rng.integers(0, 2, 120)
    w = np.linalg.lstsq(x[:60], 2.0 * labels[:60] - 1, rcond=None)[0]
    losses = cross_entropies(np.stack([-x @ w, x @ w], axis=1), labels)
    assert membership_auc(losses[:60], losses[60:]) > 0.7
    assert abs(membership_auc(losses[60:90], losses[90:]) - 0.5) < 0.2
