"""The Fréchet distance compared with closed forms, for sets with exactly the given moments."""

from __future__ import annotations

import pytest
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality import measures
from dpvision.public.quality.measures import frechet_distance, moments


def white(n: int, width: int, seed: int) -> Tensor:
    """Rows whose mean is exactly 0 and whose covariance is exactly 1."""
    x = torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q = torch.linalg.qr(x - x.mean(0)).Q
    return q * (n - 1) ** 0.5


def test_gaussians_along_the_axes_have_the_closed_form() -> None:
    """|m1 - m2|^2 + sum (s1 - s2)^2"""
    mean, s1, s2 = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([1.0, 3.0, 0.2]), torch.tensor([2.0, 0.5, 0.2])
    x, y = white(40, 3, 0) * s1, white(25, 3, 1) * s2 + mean
    assert frechet_distance(x, y) == pytest.approx(float(mean.square().sum() + (s1 - s2).square().sum()), rel=1e-12)


def test_gaussians_that_are_turned_agree_with_the_matrix_root() -> None:
    rng = torch.Generator().manual_seed(3)
    a, b = (torch.randn(6, 6, dtype=torch.float64, generator=rng) for _ in range(2))
    x, y = white(50, 6, 4) @ a, white(70, 6, 5) @ b + 1
    c1, c2 = (a.T @ a).numpy(), (b.T @ b).numpy()
    wanted = 6 + c1.trace() + c2.trace() - 2 * sqrtm(c1 @ c2).trace().real
    assert frechet_distance(x, y) == pytest.approx(wanted, rel=1e-9)
    assert frechet_distance(y, x) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("n", "width"), [(200, 12), (20, 64), (2, 5)])
def test_a_set_has_no_distance_to_itself_whatever_its_rank(n: int, width: int) -> None:
    x = torch.randn(n, width, generator=torch.Generator().manual_seed(6)) * 10 + 100
    spread = float(moments(x)[1].square().sum())
    assert frechet_distance(x, x) <= 1e-12 * spread
    assert frechet_distance(x, x[torch.randperm(n)]) <= 1e-11 * spread, "the order of the rows is no matter"


def test_small_variances_next_to_large_ones_are_not_lost() -> None:
    """The root of a product of covariances would have an error of about 1e-8 for each direction here."""
    large = torch.tensor([1.0] + [1e-7] * 9, dtype=torch.float64)
    doubled = torch.tensor([1.0] + [2e-7] * 9, dtype=torch.float64)
    x, y = white(60, 10, 7) * large, white(60, 10, 7) * doubled
    assert frechet_distance(x, y) == pytest.approx(9e-14, abs=5e-15)


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(8)
    x, y = torch.randn(101, 5, generator=rng), torch.randn(64, 5, generator=rng) * 2
    whole = frechet_distance(x, y)
    monkeypatch.setattr(measures, "COVARIANCE_ROWS", 7)
    assert frechet_distance(x, y) == pytest.approx(whole, rel=1e-12)
    mean, root = moments(x)
    assert torch.allclose(mean, x.double().mean(0)) and torch.allclose(root.T @ root, x.double().T.cov())


def test_invalid_sets_of_rows_are_refused() -> None:
    with pytest.raises(DataError, match="at least 2 images"):
        frechet_distance(torch.zeros(1, 3), torch.zeros(4, 3))
    with pytest.raises(ConfigError, match="the same width"):
        frechet_distance(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="not finite"):
        frechet_distance(torch.zeros(4, 3), torch.full((4, 3), torch.nan))
