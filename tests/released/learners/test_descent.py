"""The loss is the formula, its gradient what it should be; descent is deterministic, and leaves everything else alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dpvision.released.learners import LinearLearner, NetworkLearner
from dpvision.released.learners.descent import centre_and_spread, generalised_kl
from tests.one_thread import one_thread  # noqa: F401
from tests.released.learners.cases import digits, mixtures


def test_the_loss_is_the_formula_for_labels_that_do_not_add_up_to_1() -> None:
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(7, 4)), rng.random((7, 4)) * 0.9
    y[0, 1] = 0.0
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    own = np.where(y > 0, y * np.log(np.where(y > 0, y, 1.0)), 0.0)
    expected = (own - y * np.log(p) - y + p).sum(axis=1).mean()
    result = generalised_kl(torch.tensor(scores), torch.tensor(y))
    assert float(result) == pytest.approx(expected, rel=1e-12)
    assert float(generalised_kl(torch.tensor(np.log(p)), torch.tensor(p))) == pytest.approx(0.0, abs=1e-12)


def test_the_gradient_is_sum_y_p_less_y_also_below_0() -> None:
    rng = np.random.default_rng(1)
    scores, y = torch.tensor(rng.normal(size=(5, 3)), requires_grad=True), torch.tensor(rng.normal(size=(5, 3)))
    generalised_kl(scores, y).backward()
    expected = (y.sum(dim=1, keepdim=True) * torch.softmax(scores, dim=1) - y) / 5
    assert scores.grad is not None and torch.allclose(scores.grad, expected.detach())


@pytest.mark.parametrize("kind", [LinearLearner, NetworkLearner])
def test_the_same_seed_gives_the_same_weights_and_moves_no_one_elses_numbers(kind: type) -> None:
    release = mixtures()
    x, y = release.x[:600], release.y[:600]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    results = [kind(epochs=2, seed=seed).fit(x, y).scores(x[:20]) for seed in (1, 1, 2)]
    assert np.array_equal(results[0], results[1]) and not np.array_equal(results[0], results[2])
    assert torch.equal(before, torch.get_rng_state())


def test_without_noise_it_is_softmax_regression() -> None:
    """Both without a penalty, on classes that overlap, so that there is one best solution."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, 600)
    x = (np.eye(3)[y] * 1.5 + rng.normal(size=(600, 3))).astype(np.float32)
    peer = LogisticRegression(C=np.inf, tol=1e-8).fit(x, y)
    learner = LinearLearner(epochs=80, rate=0.05, batch=200).fit(x, y)
    assert np.abs(learner.predict_proba(x) - peer.predict_proba(x)).max() < 0.02


def test_rows_may_be_of_any_scale_and_anywhere() -> None:
    """Weights are those for rows as they are."""
    x, y, test_x, _ = digits()
    plain = LinearLearner(epochs=2).fit(x, y).scores(test_x)
    moved = LinearLearner(epochs=2).fit(x * 64 + 8, y).scores(test_x * 64 + 8)
    assert np.abs(plain - moved).max() < 1e-3 * np.abs(plain).max()
    mean, spread = centre_and_spread(x)
    assert np.allclose(mean, x.mean(axis=0), atol=1e-6) and spread == pytest.approx(x.std(axis=0).mean(), rel=0.5)
    assert centre_and_spread(np.ones((3, 2), np.float32))[1] == 1.0


def test_labels_below_0_count_as_0_unless_told_otherwise() -> None:
    release = mixtures(sigma=4.0)
    x, y = release.x[:500], release.y[:500]
    cut = LinearLearner(epochs=2).fit(x, np.maximum(y, 0)).weight_
    assert np.array_equal(LinearLearner(epochs=2).fit(x, y).weight_, cut)
    assert not np.array_equal(LinearLearner(epochs=2, clamp=False).fit(x, y).weight_, cut)


def test_the_rate_falls_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def noted(self: torch.optim.Adam) -> None:
        rates.append(self.param_groups[0]["lr"])
        step(self)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    x, y, *_ = digits()
    LinearLearner(epochs=10, rate=1.0, batch=2000).fit(x, y)
    assert rates == pytest.approx([1] * 4 + [0.1] * 2 + [0.01] * 2 + [0.001] * 2)


@pytest.mark.parametrize("kind", [LinearLearner, NetworkLearner])
def test_rows_on_the_disk_are_learned_from_and_not_changed(kind: type, tmp_path: Path) -> None:
    x, y, *_ = digits()
    np.save(tmp_path / "x.npy", x)
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r", allow_pickle=False)
    kept = x.copy()
    results = [kind(epochs=1).fit(rows, y).scores(x[:9]) for rows in (x, on_disk)]
    assert np.array_equal(*results) and np.array_equal(x, kept)
