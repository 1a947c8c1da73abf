"""AUC: of all pairs, in how many the member's loss is smaller."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpvision.audit.losses import cross_entropies, membership_auc
from dpvision.errors import ConfigError

LOSSES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, float("inf")]), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(LOSSES, LOSSES)
def test_pair_by_pair(members: list[float], others: list[float]) -> None:
    pairs = [1.0 if a < b else 0.5 if a == b else 0.0 for a in members for b in others]
    assert membership_auc(members, others) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_ends_and_middle() -> None:
    assert membership_auc([0, 1], [2, 3]) == 1 and membership_auc([2, 3], [0, 1]) == 0
    assert membership_auc([1, 1, 1], [1]) == 0.5
    for bad in ([], [float("nan")], [[1.0]]):
        with pytest.raises(ConfigError, match="others"):
            membership_auc([1.0], bad)


def test_cross_entropies_are_torchs() -> None:
    scores, labels = torch.randn(20, 5, dtype=torch.double) * 300, torch.arange(20) % 5
    wanted = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
    assert np.allclose(cross_entropies(scores.numpy(), labels.numpy()), wanted.numpy())


def test_it_finds_who_was_learned_by_heart() -> None:
    """Random labels: only memory can make a loss small."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(120, 80)), rng.integers(0, 2, 120)
    w = np.linalg.lstsq(x[:60], 2.0 * labels[:60] - 1, rcond=None)[0]
    losses = cross_entropies(np.stack([-x @ w, x @ w], axis=1), labels)
    assert membership_auc(losses[:60], losses[60:]) > 0.7
    assert abs(membership_auc(losses[60:90], losses[90:]) - 0.5) < 0.2
