"""The Inception score of probabilities whose score is known."""

from __future__ import annotations

import math

import pytest
import torch

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.measures import inception_score


def test_it_is_the_number_of_classes_at_best_and_one_at_worst() -> None:
    sure = torch.eye(7).repeat(20, 1)
    assert inception_score(sure, parts=1) == pytest.approx((7.0, 0.0))
    assert inception_score(sure, parts=10) == pytest.approx((7.0, 0.0))
    assert inception_score(torch.full((30, 7), 1 / 7)) == pytest.approx((1.0, 0.0))
    assert inception_score(torch.eye(7)[:1].repeat(30, 1)) == pytest.approx((1.0, 0.0)), "one class alone"


def test_by_its_definition() -> None:
    p = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
    mean = [0.65, 0.35]
    kl = [sum(a * math.log(a / b) for a, b in zip(row, mean, strict=True)) for row in p.tolist()]
    assert inception_score(p, parts=1)[0] == pytest.approx(math.exp(sum(kl) / 2), rel=1e-12)


def test_parts_have_a_mean_and_a_deviation() -> None:
    p = torch.cat([torch.eye(4).repeat(5, 1), torch.full((20, 4), 0.25)])
    assert inception_score(p, parts=2) == pytest.approx(((4 + 1) / 2, 1.5))


def test_invalid_probabilities_are_refused() -> None:
    for wrong in (torch.ones(5, 3), torch.tensor([[1.5, -0.5]]), torch.ones(4)):
        with pytest.raises(ConfigError, match="probabilities"):
            inception_score(wrong, parts=1)
    with pytest.raises(DataError, match="10 parts"):
        inception_score(torch.eye(5))
