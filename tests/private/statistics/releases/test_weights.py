"""Random weights: their law, their bound, what cutting them costs, and noise in proportion to the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpvision.core.keys import Key
from dpvision.core.sampling import Poisson
from dpvision.errors import ConfigError
from dpvision.private.statistics.mixtures import WEIGHT_BITS, Mixtures, RandomWeights
from tests.private.statistics.releases.charged import KEY, WIDTH, N, data, mixed, rows_of

COUNT = 100_000


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 20.0, 10_000.0])
@pytest.mark.parametrize("most", [1.0, 0.1, 1 / 64])
def test_weights_are_gammas_cut_at_the_most(alpha: float, most: float) -> None:
    """Moments of min(G / (alpha m), C_w) by numerical integration; and those that are not cut have Gamma's law."""
    degree, weights = 64.0, RandomWeights(alpha, most)
    shares = weights.shares(KEY.stream(f"weights {alpha} {most}", step=0), COUNT, degree=degree)
    assert shares.min() >= 0 and shares.max() <= 1 and np.isfinite(shares).all()
    assert np.array_equal(shares * 2.0**WEIGHT_BITS, np.rint(shares * 2.0**WEIGHT_BITS)), "on the grid"
    law = stats.gamma(alpha, scale=1 / (alpha * degree))
    quantiles = law.ppf((np.arange(100_000) + 0.5) / 100_000)
    first, second = (np.minimum(quantiles, most) ** power for power in (1, 2))
    assert weights.mean(degree=degree) == pytest.approx(first.mean(), rel=2e-3)
    result = shares * most
    for wanted, moment in ((first, result), (second, result**2)):
        assert abs(moment.mean() - wanted.mean()) < 5 * wanted.std() / np.sqrt(COUNT) + most * 2.0**-WEIGHT_BITS
    cut = law.sf(most)
    assert stats.binomtest(int((shares == 1).sum()), COUNT, min(cut, 1.0)).pvalue > 1e-6
    for level in (0.25, 0.5, 0.75):
        below = law.cdf(level * most)
        assert stats.binomtest(int((shares < level).sum()), COUNT, below).pvalue > 1e-6


def test_uncut_weights_of_a_row_add_up_to_one_on_average() -> None:
    for alpha in (0.3, 0.5, 5.0):
        assert RandomWeights(alpha, 1.0).mean(degree=64) == pytest.approx(1 / 64, rel=1e-3)
    means = [RandomWeights(0.1, most).mean(degree=64) for most in (0.02, 0.1, 0.5, 1.0)]
    assert means == sorted(means) and means[0] < 0.5 / 64, "a low bound cuts much"


def test_equal_weights_are_the_limit() -> None:
    """alpha to infinity, C_w = 1 / m: Avg-Mix, but for those a little below."""
    shares = RandomWeights(10_000.0, 1 / 64).shares(KEY.stream("limit", step=0), COUNT, degree=64)
    assert shares.min() > 0.93 and (shares == 1).mean() == pytest.approx(0.5, abs=0.01)


def test_every_member_of_every_row_has_its_own_weight() -> None:
    shares = RandomWeights(1.0, 1.0).shares(KEY.stream("own", step=0), COUNT, degree=1.0)
    inside = shares[shares < 1]
    assert abs(np.corrcoef(inside[:-1], inside[1:])[0, 1]) < 5 / np.sqrt(COUNT)
    other = RandomWeights(1.0, 1.0).shares(KEY.stream("own", step=1), COUNT, degree=1.0)
    assert abs(np.corrcoef(shares, other)[0, 1]) < 5 / np.sqrt(COUNT)


def test_noise_and_means_of_weighted_rows(tmp_path: Path) -> None:
    """Noise of sigma C_w / a, and rows of the records' mean times m E w."""
    sampler, weights = Poisson(9, N, 2000), RandomWeights(0.5, 0.25)
    nobody = rows_of(np.full((1, WIDTH), np.nan), np.array([0]))
    features, labels = mixed(tmp_path / "a", Mixtures(nobody, sampler, degree=9, balance=2.0, weights=weights), sigma=3)
    assert features.std() == pytest.approx(3 * 0.25 * np.sqrt(5) / 2, rel=0.02)
    assert labels.std() == pytest.approx(3 * 0.25 * np.sqrt(5), rel=0.04)
    x, y = data()
    features, labels = mixed(tmp_path / "b", Mixtures(rows_of(x, y), sampler, degree=9, weights=weights), sigma=0.05)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    share = 9 * weights.mean(degree=9)
    assert share < 0.9
    assert np.allclose(features.mean(0), share * unit.mean(0), atol=0.02)
    assert np.allclose(labels.mean(0), share * np.bincount(y) / N, atol=0.02)
    equal, _ = mixed(tmp_path / "c", Mixtures(rows_of(x, y), sampler, degree=9), sigma=0.05)
    assert features.var(0).sum() > 1.15 * equal.var(0).sum(), "few records weigh more than the others"


def test_records_that_are_not_numbers_are_in_no_weighted_row(tmp_path: Path) -> None:
    """Nor do they use a draw or a weight: rows are as without them, to the last bit, under the same streams."""
    x, y = data()
    sampler, weights = Poisson(9, N, 40), RandomWeights(0.5, 0.25)
    with_nan = rows_of(np.vstack([np.full(WIDTH, np.nan), x, np.full(WIDTH, np.inf)]), np.r_[0, y, 1])
    results = []
    for rows in (with_nan, rows_of(x, y)):
        mixtures = Mixtures(rows, sampler, degree=9, weights=weights)
        mixtures.name = lambda key, event: "same"  # type: ignore[method-assign]
        results.append(mixed(tmp_path / str(len(results)), mixtures, sigma=1.0)[0])
    assert np.array_equal(*results) and np.isfinite(results[0]).all()


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf, np.nan])
def test_no_law_for_such_an_alpha(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        RandomWeights(alpha, 0.1)


@pytest.mark.parametrize("most", [0.0, -1.0, 1.5, np.nan])
def test_no_such_bound(most: float) -> None:
    with pytest.raises(ConfigError, match="largest weight"):
        RandomWeights(0.5, most)


def test_weights_are_secret() -> None:
    """Another key, other weights: they come from the cipher and not from a seed."""
    draws = [RandomWeights(0.5, 1.0).shares(Key.fresh().stream("w", step=0), 100, degree=9) for _ in range(2)]
    assert not np.array_equal(*draws)


@pytest.mark.parametrize("count", [1, 30, N, 4 * N])
def test_weights_depend_on_their_own_words_and_public_numbers(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records there are: a weight that follows the number drawn would move when one record more is."""
    from dpvision.private.statistics import mixtures as module

    used: list[np.ndarray] = []
    sum_chosen = module.sum_chosen
    monkeypatch.setattr(
        module, "sum_chosen", lambda z, chosen, shares: (used.append(shares), sum_chosen(z, chosen, shares))[1]
    )
    x, y = data()
    rows = rows_of(np.tile(x, (4, 1))[:count], np.tile(y, 4)[:count])
    weights = RandomWeights(0.5, 0.25)
    mixtures = Mixtures(rows, Poisson(9, N, 40), degree=9, weights=weights)
    mixtures.name = lambda key, event: "same"  # type: ignore[method-assign]
    mixed(tmp_path, mixtures, sigma=1.0)
    assert used
    for number, shares in enumerate(used):
        words = KEY.stream("weights", step=number, branch="same")
        assert np.array_equal(shares, weights.shares(words, len(shares), degree=9))
