"""What makes the fractals."""

from __future__ import annotations

import numpy as np
import pytest

from dpvision.public.random.fractals import LEAST, MAPS, attractor, system
from dpvision.public.random.image_random import ImageRandom

NUMBERS = range(30)


@pytest.mark.parametrize("number", NUMBERS)
def test_singular_values_add_up_to_what_spreads_a_fractal_well(number: int) -> None:
    maps = system(ImageRandom("test", 0, number).own())
    s = np.linalg.svd(maps[:, :, :2], compute_uv=False)
    assert MAPS[0] <= len(maps) <= MAPS[1] and s.max() < 1, "contractions"
    assert (5 + len(maps)) / 2 <= (s @ [1, 2]).sum() <= (6 + len(maps)) / 2
    assert np.abs(maps[:, :, 2]).max() <= 1


@pytest.mark.parametrize("number", NUMBERS)
def test_points_are_spread_as_the_maps_leave_them(number: int) -> None:
    """The mean and the second moments of p_1 w_1 + p_2 w_2 + ... are those of the points themselves."""
    rng = ImageRandom("test", 0, number).own()
    maps = system(rng)
    x, y, _ = attractor(rng, maps, 100_000)
    points = np.stack([x, y, np.ones_like(x)]).astype(np.float64)
    area = np.maximum(np.abs(np.linalg.det(maps[:, :, :2])), LEAST)
    share = area / area.sum()
    ours, moved = points[:2], maps @ points
    spread = ours.std()
    np.testing.assert_allclose(np.tensordot(share, moved.mean(2), 1), ours.mean(1), atol=0.03 * spread)
    second = np.einsum("m,mip,mjp->ij", share, moved, moved) / len(x)
    np.testing.assert_allclose(second, ours @ ours.T / len(x), atol=0.05 * np.square(ours).mean())


def test_fractals_are_more_than_curves_and_less_than_areas() -> None:
    dimensions = []
    for number in NUMBERS:
        rng = ImageRandom("test", 0, number).own()
        x, y, _ = attractor(rng, system(rng), 50_000)
        u, v = ((a - a.min()) / (a.max() - a.min()) for a in (x, y))
        boxes = [len(np.unique((n * u).astype(int) * 1000 + (n * v).astype(int))) for n in (8, 64)]
        dimensions.append(np.log(boxes[1] / boxes[0]) / np.log(8))
    assert min(dimensions) > 0.7 and max(dimensions) < 2 and 1.2 < np.mean(dimensions) < 1.8
