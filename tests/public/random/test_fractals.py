"""Iterated function systems and their attractors."""

from __future__ import annotations

import numpy as np
import pytest

from dpvision.public.random.fractals import MAPS, MIN_AREA, attractor, draw_maps
from dpvision.public.random.image_random import ImageRandom

NUMBERS = range(30)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_weighted_sum_of_singular_values_is_in_its_range(number: int) -> None:
    maps = draw_maps(ImageRandom("test", 0, number).generator())
    s = np.linalg.svd(maps[:, :, :2], compute_uv=False)
    assert MAPS[0] <= len(maps) <= MAPS[1] and s.max() < 1, "contractions"
    assert (5 + len(maps)) / 2 <= (s @ [1, 2]).sum() <= (6 + len(maps)) / 2
    assert np.abs(maps[:, :, 2]).max() <= 1


@pytest.mark.parametrize("number", NUMBERS)
def test_the_moments_of_the_points_are_invariant_under_the_maps(number: int) -> None:
    """The mixture of the mapped points has the mean and the second moments of the points."""
    rng = ImageRandom("test", 0, number).generator()
    maps = draw_maps(rng)
    x, y, _ = attractor(rng, maps, 100_000)
    points = np.stack([x, y, np.ones_like(x)]).astype(np.float64)
    area = np.maximum(np.abs(np.linalg.det(maps[:, :, :2])), MIN_AREA)
    share = area / area.sum()
    ours, moved = points[:2], maps @ points
    spread = ours.std()
    np.testing.assert_allclose(np.tensordot(share, moved.mean(2), 1), ours.mean(1), atol=0.03 * spread)
    second = np.einsum("m,mip,mjp->ij", share, moved, moved) / len(x)
    np.testing.assert_allclose(second, ours @ ours.T / len(x), atol=0.05 * np.square(ours).mean())


def test_box_dimensions_are_between_curves_and_areas() -> None:
    dimensions = []
    for number in NUMBERS:
        rng = ImageRandom("test", 0, number).generator()
        x, y, _ = attractor(rng, draw_maps(rng), 50_000)
        u, v = ((a - a.min()) / (a.max() - a.min()) for a in (x, y))
        boxes = [len(np.unique((n * u).astype(int) * 1000 + (n * v).astype(int))) for n in (8, 64)]
        dimensions.append(np.log(boxes[1] / boxes[0]) / np.log(8))
    assert min(dimensions) > 0.7 and max(dimensions) < 2 and 1.2 < np.mean(dimensions) < 1.8
