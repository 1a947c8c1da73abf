"""Contrastive losses by their definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from dpvision.public.contrastive import align_uniform, alignment, info_nce, uniformity


def rows(seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(6, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), dim=1)


def test_alignment_and_uniformity_by_hand() -> None:
    x, y = rows(0), rows(1)
    near = sum(float((a - b) @ (a - b)) for a, b in zip(x, y, strict=True)) / 6
    spread = [math.exp(-2 * float((x[i] - x[j]) @ (x[i] - x[j]))) for i in range(6) for j in range(i)]
    assert float(alignment(x, y)) == pytest.approx(near)
    assert float(uniformity(x)) == pytest.approx(math.log(sum(spread) / 15))
    assert float(align_uniform(x, y)) == pytest.approx(near + float(uniformity(x) + uniformity(y)) / 2)


def test_info_nce_by_hand() -> None:
    x, y = rows(0), rows(1)
    both, total = [*x, *y], 0.0
    for i, a in enumerate(both):
        others = {j: math.exp(float(a @ b) / 0.1) for j, b in enumerate(both) if j != i}
        total -= math.log(others[(i + 6) % 12] / sum(others.values()))
    assert float(info_nce(x, y)) == pytest.approx(total / 12)


@pytest.mark.parametrize("loss", [align_uniform, info_nce])
def test_partners_that_agree_are_better_than_strangers(loss: object) -> None:
    x = rows(0)
    assert callable(loss)
    assert loss(x, x) < loss(x, x.roll(1, 0))
