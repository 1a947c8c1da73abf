"""The parts of random programs, and their images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpvision.public.random import draw
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.program_fields import cells
from dpvision.public.random.program_warps import LATTICE, draw_noise, interpolate, kaleidoscope
from dpvision.public.random.programs import draw_palette, is_interesting, look_up_colours

RNG = ImageRandom("test", 0, 0).generator()


def roughness(image: NDArray[np.floating]) -> float:
    """Mean squared difference of neighbours, relative to that of any two pixels."""
    across, down = (np.square(np.diff(image, axis=axis)).sum(2).mean() for axis in (0, 1))
    return float((across + down) / 4 / image.var((0, 1)).sum())


def test_no_image_is_blank_or_noise_and_they_vary() -> None:
    images = draw("programs", range(60), side=64) / 255
    contrast, rough = images.std((1, 2)).mean(1), np.array([roughness(image) for image in images])
    assert contrast.min() > 0.04 and rough.max() < 0.75
    assert np.quantile(rough, 0.1) < 0.08 and np.quantile(rough, 0.9) > 0.2, "plain shapes and fine textures"
    assert images.mean((1, 2)).std(0).min() > 0.08 and contrast.std() > 0.03


def test_blank_uniform_and_noisy_images_are_not_interesting() -> None:
    x = np.linspace(0, 1, 32)
    grey, dot = np.full((32, 32, 3), 0.5), np.zeros((32, 32, 3))
    dot[10:15, 10:15] = 1
    even, stripes = (np.broadcast_to(row[:, None], (32, 32, 3)) for row in (x, np.sin(20 * x) / 2 + 0.5))
    assert [is_interesting(image) for image in (grey, dot, even, RNG.random((32, 32, 3)), stripes)] == [0, 0, 0, 0, 1]


def test_a_program_is_the_same_at_every_side() -> None:
    fine, coarse = (draw("programs", range(20), side=side).astype(float) for side in (96, 48))
    apart = np.abs(fine.reshape(20, 48, 2, 48, 2, 3).mean((2, 4)) - coarse).mean((1, 2, 3))
    assert np.median(apart) < 5 and apart.max() < 30, "of 255, as finer pixels show finer texture"


def test_noise_has_the_requested_slope() -> None:
    f = np.hypot(np.fft.fftfreq(LATTICE)[:, None], np.fft.fftfreq(LATTICE)) * LATTICE
    for slope in (1.0, 2.0):
        tables = np.stack([draw_noise(RNG, slope) for _ in range(50)]).reshape(-1, LATTICE, LATTICE)
        power = np.square(np.abs(np.fft.fft2(tables))).mean(0)
        band = (f > 0) & (f < LATTICE / 2)
        assert abs(np.polyfit(np.log(f[band]), np.log(power[band]), 1)[0] + 2 * slope) < 0.1
        assert np.allclose(tables.std((1, 2)), 0.5, rtol=1e-3)
    i, j = np.arange(-40, 40), np.arange(80)
    np.testing.assert_allclose(interpolate(tables[0].ravel(), i, j), tables[0][j % LATTICE, i % LATTICE], rtol=1e-6)


def test_the_wedges_of_a_kaleidoscope_are_alike() -> None:
    z = 2 * np.exp(2j * np.pi * RNG.random(50)) * RNG.random(50)
    warp = kaleidoscope(RNG)
    here = np.array(warp(z.real, z.imag))
    again = [
        np.allclose(warp((z * t).real, (z * t).imag), here, atol=1e-5) for t in np.exp(2j * np.pi / np.arange(2, 7))
    ]
    assert any(again), "after a turn by two wedges"
    np.testing.assert_allclose(warp(z.real, -z.imag), here, atol=1e-5)


def test_palettes_are_cyclic() -> None:
    t = RNG.random(100, np.float32)
    for _ in range(10):
        table = draw_palette(RNG)
        assert table.min() >= 0 and table.max() <= 1 and np.ptp(table) > 0.05
        np.testing.assert_array_equal(look_up_colours(table, t), look_up_colours(table, t + 2))


def test_cells_are_flat_or_meet_at_edges() -> None:
    x, kinds = np.linspace(-0.9, 0.9, 2001, dtype=np.float32), []
    for _ in range(20):
        value = cells(RNG)(x, x / 3)
        kinds.append(len(np.unique(value)) < 20)
        assert kinds[-1] or np.abs(np.diff(value)).max() < 0.05
    assert 0 < sum(kinds) < 20
