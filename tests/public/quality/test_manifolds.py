"""Distances in blocks, and precision and recall of sets for which they are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality import measures
from dpvision.public.quality.measures import nearest, precision_recall, squared_distances


def normal(n: int, width: int, seed: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("numbers", [1, 100, 1 << 24])
def test_blocks_are_the_plain_distances(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "BLOCK_DISTANCES", numbers)
    x, y = normal(33, 7, 0) + 50, normal(21, 7, 1) + 50
    result = torch.cat([block for _, block in squared_distances(x, y)])
    plain = (x.double()[:, None] - y.double()).square().sum(2)
    assert torch.allclose(result, plain, rtol=1e-9)
    near, places = nearest(x, y, count=4)
    assert torch.equal(places, plain.topk(4, largest=False).indices)
    assert torch.allclose(near, plain.sort(dim=1).values[:, :4], rtol=1e-9)


def test_a_row_is_not_its_own_neighbour_and_equal_rows_have_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "BLOCK_DISTANCES", 200)
    x = torch.cat([normal(40, 300, 2), normal(40, 300, 2)[:5]]) * 100 + 1e4
    near, places = nearest(x, count=1)
    assert not (places[:, 0] == torch.arange(45)).any()
    assert (near[:5] == 0).all() and (near[40:] == 0).all() and (near[5:40] > 0).all()
    assert torch.equal(places[40:, 0], torch.arange(5))
    assert (nearest(x, x, count=1)[0] == 0).all()


def test_a_set_is_precise_and_complete_against_itself() -> None:
    x = normal(100, 5, 3)
    result = precision_recall(x, x)
    assert (result.precision, result.recall, result.neighbours) == (1.0, 1.0, 3)


def test_sets_that_are_far_apart_share_nothing() -> None:
    result = precision_recall(normal(100, 5, 4), normal(100, 5, 5) + 1000)
    assert (result.precision, result.recall) == (0.0, 0.0)


def two_modes(n: int, seed: int) -> Tensor:
    x = normal(2 * n, 4, seed)
    x[n:, 0] += 100
    return x


def test_a_mode_that_is_missing_lowers_recall_alone() -> None:
    real, collapsed = two_modes(200, 6), two_modes(400, 7)[:400]
    fair, result = precision_recall(two_modes(200, 7), real), precision_recall(collapsed, real)
    assert result.precision > 0.8 and fair.precision > 0.8 and fair.recall > 0.8
    assert 0.4 < result.recall <= 0.5, "one of two modes, and nearly all of it"


def test_meaningless_images_lower_precision_alone() -> None:
    real, fresh = two_modes(200, 8), two_modes(200, 9)
    nothing = normal(400, 4, 10) * 10 + 1000
    result = precision_recall(torch.cat([fresh, nothing]), real)
    fair = precision_recall(fresh, real)
    assert result.precision == pytest.approx(fair.precision / 2) and result.recall == fair.recall


def test_balls_by_hand() -> None:
    """On a line with k = 1: real 0, 1, 10 have balls of 1, 1, 9; synthetic 2, 2.5, 30 have 0.5, 0.5, 27.5."""
    real, synthetic = torch.tensor([[0.0], [1.0], [10.0]]), torch.tensor([[2.0], [2.5], [30.0]])
    result = precision_recall(synthetic, real, neighbours=1)
    assert result.precision == pytest.approx(2 / 3), "2 is on the edge of the ball of 1, 2.5 in that of 10, 30 in none"
    assert result.recall == pytest.approx(1 / 3), "10 is in the ball of 30"


def test_too_few_are_refused() -> None:
    with pytest.raises(DataError, match="more than 3 images"):
        precision_recall(torch.zeros(3, 2), torch.zeros(9, 2))
    with pytest.raises(ConfigError, match="at least 1"):
        precision_recall(torch.zeros(3, 2), torch.zeros(9, 2), neighbours=0)
    with pytest.raises(ConfigError, match="among 2"):
        nearest(torch.zeros(3, 2), count=3)
