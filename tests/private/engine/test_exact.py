"""Sums on a grid: no rounding but of each contribution, in any order, for any range that contributions can have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.private.engine import exact
from dpvision.private.engine.exact import GRID_BITS, ExactSum


def _rows(units: int, size: int) -> torch.Tensor:
    """Rows of norm 1 whose numbers span many powers of two."""
    generator = torch.Generator().manual_seed(units)
    rows = torch.randn(units, size, generator=generator) * 10 ** (
        torch.rand(units, size, generator=generator) * 12 - 12
    )
    return rows / rows.norm(dim=1, keepdim=True)


def _taken(total: ExactSum, size: int) -> torch.Tensor:
    result = total.take()
    return torch.zeros(size, dtype=torch.float64) if result is None else result


@pytest.mark.parametrize("size", [16, 1 << 10, (1 << 15) + 1024])
@pytest.mark.parametrize("bound", [1e-6, 0.3, 1.0, 5e4])
def test_order_and_grouping_do_not_matter(size: int, bound: float) -> None:
    rows = _rows(40, size)
    factors = torch.rand(40, dtype=torch.float64).mul_(bound).view(torch.int64).bitwise_or_(1).view(torch.float64)
    results = []
    for order in (torch.arange(40), torch.arange(39, -1, -1), torch.randperm(40)):
        for group in (1, 7, 40):
            total = ExactSum(size, bound, torch.device("cpu"))
            for part in order.split(group):
                total.add(rows[part], factors[part])
            results.append(_taken(total, size))
    assert all(torch.equal(r, results[0]) for r in results)
    naive = (rows.double() * factors.unsqueeze(1)).sum(0)
    grid = 2.0 ** (np.ceil(np.log2(bound)) - GRID_BITS)
    assert float((results[0] - naive).abs().max()) <= 40 * grid / 2 * (1 + 1e-6)
    assert torch.equal((results[0] / grid).round() * grid, results[0])


def test_many_units_do_not_leave_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (1 << 14) + 1024
    rows = torch.zeros(64, size)
    rows[:, 0] = 1.0
    monkeypatch.setattr(exact, "MAX_UNITS", 128)
    total = ExactSum(size, 1.0, torch.device("cpu"))
    ones = torch.ones(64, dtype=torch.float64)
    for _ in range(100):
        total.add(rows, ones)
    assert float(_taken(total, size)[0]) == 6400.0
    assert torch.count_nonzero(_taken(total, size)) == 0


@pytest.mark.parametrize("bound", [1.0, 2.0, 0.75, 1e-30])
def test_the_grid_is_a_power_of_two_at_most_the_bounds_share(bound: float) -> None:
    total = ExactSum(16, bound, torch.device("cpu"))
    total.add(torch.full((1, 16), 1.0), torch.full((1,), bound / 3, dtype=torch.float64))
    grid = float(np.exp2(np.ceil(np.log2(bound)) - GRID_BITS))
    value = float(_taken(total, 16)[0])
    assert value == round(bound / 3 / grid) * grid


def _factors(units: int, inputs: int, outputs: int, bound: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows X and scaled D of many sizes, |d||x| at most the bound; some at it, all in one direction; some are zero."""
    generator = torch.Generator().manual_seed(inputs)
    x = torch.randn(units, inputs, generator=generator)
    x[::3] = 1.0  # the largest sums that can be
    x *= 10 ** (torch.rand(units, 1, generator=generator) * 30 - 15)
    x[4::11] = 0.0
    norms = exact.squares(x).sqrt()
    d = torch.randn(units, outputs, generator=generator, dtype=torch.float64)
    d[::3] = 1.0
    d *= bound / d.norm(dim=1, keepdim=True) / norms.clamp(min=1e-30).unsqueeze(1)
    return x, torch.where(norms.unsqueeze(1) > 0, d, 1.0), norms


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 2), (512, 10), (1100, 3)])
@pytest.mark.parametrize("bound", [1e-6, 0.3, 1.0, 5e4])
def test_products_of_factors_do_not_depend_on_order_or_grouping(inputs: int, outputs: int, bound: float) -> None:
    units = 700
    x, d, norms = _factors(units, inputs, outputs, bound)
    results = []
    for order in (torch.arange(units), torch.arange(units - 1, -1, -1), torch.randperm(units)):
        for group in (1, 100, 256, units):
            total = ExactSum(inputs * outputs, bound, torch.device("cpu"))
            for part in order.split(group):
                total.add_products(x[part], d[part], norms[part])
            results.append(_taken(total, inputs * outputs))
    assert all(torch.equal(r, results[0]) for r in results)
    for e in (0, 1, 4, 5):  # what one contribution is moved by
        total = ExactSum(inputs * outputs, bound, torch.device("cpu"))
        total.add_products(x[e : e + 1], d[e : e + 1], norms[e : e + 1])
        off = _taken(total, inputs * outputs) - torch.outer(d[e], x[e].double()).flatten()
        assert float(off.norm()) <= 1.1 * 2 * (inputs * outputs) ** 0.25 * 2.0**-21.5 * 2 * bound
