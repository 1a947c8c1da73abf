"""Gradients with known directions: the gradient of a linear loss is the image itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from dpvision.audit.gradient_plane import AT_A_TIME, Concentration, Group, measure_concentration
from dpvision.errors import ConfigError, DataError

SIZE = 30


def _output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


def _measure(first: Tensor, second: Tensor) -> Concentration:
    groups: list[Group] = [(g.float(), torch.zeros(len(g), dtype=torch.int64)) for g in (first, second)]
    return measure_concentration(nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 1, bias=False)), _output, groups)


def _vectors(*entries: dict[int, float]) -> Tensor:
    rows = torch.zeros(len(entries), SIZE)
    for vector, entry in zip(rows, entries, strict=True):
        for place, value in entry.items():
            vector[place] = value
    return rows


def test_points_computed_by_hand() -> None:
    """Means (2, 0) and (0, 3) in the first two weights; components outside the plane shorten the direction."""
    measured = _measure(
        _vectors({0: 1.0}, {0: 3.0, 5: 4.0}, {0: 2.0, 5: -4.0}), _vectors({1: 3.0, 0: 4.0}, {1: 3.0, 0: -4.0})
    )
    assert measured.first.points.flatten().tolist() == pytest.approx([1, 0, 3, 0, 2, 0])
    assert measured.first.norms.tolist() == pytest.approx([1, 5, 20**0.5])
    assert measured.first.directions.flatten().tolist() == pytest.approx([1, 0, 0.6, 0, 2 / 20**0.5, 0])
    assert measured.second.directions.flatten().tolist() == pytest.approx([0.8, 0.6, -0.8, 0.6])
    assert measured.first.mean == pytest.approx((2, 0)) and measured.second.mean == pytest.approx((0, 3))
    assert measured.means == pytest.approx(0, abs=1e-12)


def test_cosines_are_means_over_pairs_for_any_chunking() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2 * AT_A_TIME + 3, SIZE) + 0.5, torch.randn(AT_A_TIME, SIZE) - 0.2
    measured = _measure(first, second)
    one, two = (g / g.norm(dim=1, keepdim=True) for g in (first.double(), second.double()))
    for cloud, rows in ((measured.first, one), (measured.second, two)):
        pairs = [float(a @ b) for a, b in itertools.permutations(rows, 2)]
        assert cloud.within == pytest.approx(sum(pairs) / len(pairs), rel=1e-5)
        assert (cloud.directions.norm(dim=1) <= 1 + 1e-9).all()
    assert measured.between == pytest.approx(float((one @ two.T).mean()), rel=1e-5)
    means = first.double().mean(0), second.double().mean(0)
    assert measured.means == pytest.approx(float(torch.cosine_similarity(*means, dim=0)), rel=1e-5)
    # The plane preserves angles and lengths of vectors in it.
    a, b = (torch.tensor(cloud.mean) for cloud in (measured.first, measured.second))
    assert float(a.norm()) == pytest.approx(float(means[0].norm()), rel=1e-5)
    assert float(a @ b) == pytest.approx(float(means[0] @ means[1]), rel=1e-4)


def test_the_contribution_to_its_own_mean_affects_points_but_not_cosines() -> None:
    """Orthogonal gradients have a mean cosine of 0, and lie 1 / sqrt(n) from the centre."""
    rows = torch.eye(SIZE)
    plane = _measure(rows[:16], rows[16:20])
    assert plane.first.within == pytest.approx(0, abs=1e-9) and plane.between == pytest.approx(0, abs=1e-9)
    assert plane.first.directions[:, 0].tolist() == pytest.approx([0.25] * 16)


def test_a_zero_gradient_is_at_the_centre_and_in_no_pair() -> None:
    plane = _measure(_vectors({0: 1.0}, {}, {0: 2.0}), _vectors({1: 1.0}, {1: 1.0}))
    assert plane.first.directions[1].tolist() == [0, 0] and plane.first.within == pytest.approx(1)


def test_gradients_that_span_no_plane_are_refused() -> None:
    one = _vectors({0: 1.0}, {0: 2.0})
    with pytest.raises(DataError, match="parallel"):
        _measure(one, -3 * one)
    with pytest.raises(DataError, match="parallel or zero"):
        _measure(_vectors({0: 1.0}, {0: -1.0}), one)
    with pytest.raises(DataError, match="fewer than 2 images"):
        _measure(one, _vectors({}, {1: 1.0}))
    with pytest.raises(DataError, match="not finite"):
        _measure(one, _vectors({1: float("inf")}, {1: 1.0}))
    with pytest.raises(ConfigError, match="at least 2 images"):
        _measure(one, one[:1])
