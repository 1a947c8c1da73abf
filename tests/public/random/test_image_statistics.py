"""The statistics that define spectrum, colour, wmm and their combination."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.fft import rfft2
from scipy.special import gammaincinv

from dpvision.public.random import Process, image_statistics
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.image_statistics import pyramid

SIDE = 64
RNGS = [ImageRandom("test", 0, index) for index in range(12)]


def kurtosis(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.mean((-2, -1), keepdims=True)
    return (x**4).mean((-2, -1)) / (x**2).mean((-2, -1)) ** 2


def drawn(process: Process) -> NDArray[np.floating]:
    return np.stack([process(image_rng, SIDE) for image_rng in RNGS])


def channels(image: NDArray[np.float64]) -> NDArray[np.float64]:
    return image.transpose(2, 0, 1)


def test_matching_keeps_the_order_of_values() -> None:
    rng = np.random.default_rng(0)
    arrays, values = rng.normal(size=(3, 9, 9)), np.sort(rng.random((3, 81)))
    matched = image_statistics.match_histograms(arrays, values).reshape(3, 81)
    np.testing.assert_array_equal(np.sort(matched), values)
    np.testing.assert_array_equal(matched.argsort(), arrays.reshape(3, 81).argsort())


# Spectrum


def test_magnitudes_fall_as_a_power_of_the_frequency() -> None:
    f, slopes = np.log(np.arange(1, SIDE // 2)), []
    for image in drawn(image_statistics.draw_spectrum):
        magnitudes = np.abs(rfft2(channels(image)))
        np.testing.assert_allclose(magnitudes[1:, 0, 1:], magnitudes[:1, 0, 1:].repeat(2, 0), rtol=1e-6)
        for line in (magnitudes[0, 0, 1 : SIDE // 2], magnitudes[0, 1 : SIDE // 2, 0]):
            (slope, _), miss, *_ = np.polyfit(f, np.log(line), 1, full=True)
            assert miss < 1e-9
            slopes.append(-slope)
        assert image.min() == 0 and image.max() == 1
    across, down = np.array(slopes).reshape(-1, 2).T
    mean = (across + down) / 2
    assert 0.5 < mean.min() < 1.2 and 2.8 < mean.max() < 3.5
    assert 0.01 < (across - down).std() / 2 < 0.1


def test_magnitudes_add_up_across_and_down() -> None:
    m = image_statistics.draw_magnitudes(RNGS[0].generator(), 33)
    np.testing.assert_allclose(1 / m[1:, 1:], 1 / m[1:, :1] + 1 / m[:1, 1:])
    assert m[0, 0] == 0


def test_channels_of_a_spectrum_are_independent() -> None:
    images = [image_statistics.draw_spectrum(ImageRandom("test", 1, index), 16) for index in range(100)]
    related = [np.corrcoef(image.reshape(-1, 3).T)[np.triu_indices(3, 1)] for image in images]
    assert abs(np.mean(related)) < 0.1


# Pyramid


@pytest.mark.parametrize("side", [8, 9, 33, 34, 64, 100, 128])
def test_merging_a_pyramid_restores_the_image(side: int) -> None:
    wavelets = pyramid(side)
    half = rfft2(np.random.default_rng(0).normal(size=(side, side)), norm="forward")
    subbands = wavelets.split(half)
    assert [bands.shape for bands in subbands] == [
        (4, -(-side // 2**scale), -(-side // 2**scale)) for scale in range({128: 3, 64: 2, 100: 2}.get(side, 1))
    ]
    np.testing.assert_allclose(wavelets.merge(half, subbands), half, atol=1e-15)
    np.testing.assert_allclose(wavelets.merge(half, [0 * bands for bands in subbands]), half * wavelets.residuals)


@pytest.mark.parametrize("scale", [0, 1, 2])
@pytest.mark.parametrize("orientation", range(4))
def test_a_wave_is_in_the_subband_of_its_scale_and_orientation(scale: int, orientation: int) -> None:
    x, y = np.meshgrid(np.arange(128), np.arange(128))
    f, angle = 32 / 2**scale, orientation * np.pi / 4
    wave = np.sin(2 * np.pi / 128 * (np.rint(f * np.cos(angle)) * x + np.rint(f * np.sin(angle)) * y))
    power = np.array([(bands**2).mean((1, 2)) for bands in pyramid(128).split(rfft2(wave, norm="forward"))])
    assert power[scale, orientation] > 0.75 * power.sum() > 0.35  # of 0.5


# Wavelet marginal model


@pytest.mark.parametrize("r", [0.4, 0.6, 0.8])
@pytest.mark.parametrize("count", [64, 33 * 33, 64 * 64])
def test_quantiles_are_those_of_the_density(r: float, count: int) -> None:
    share = (2 * np.arange(count) + 1) / count - 1
    exact = np.sign(share) * gammaincinv(1 / r, np.abs(share)) ** (1 / r)
    np.testing.assert_allclose(image_statistics.quantiles(r, count), exact, rtol=2e-3, atol=2e-3)


def test_wavelet_marginals_are_matched() -> None:
    strength, peakedness = [], []
    for image_rng, image in zip(RNGS, drawn(image_statistics.draw_wavelet_marginals), strict=True):
        goals = image_statistics.draw_marginals(image_rng.generator(), SIDE)
        subbands = pyramid(SIDE).split(rfft2(image[..., 0], norm="forward"))
        goal = np.concatenate([g.std(1) for g in goals]), np.concatenate([kurtosis(g[:, None]) for g in goals])
        have = np.concatenate([b.std((1, 2)) for b in subbands]), np.concatenate([kurtosis(b) for b in subbands])
        strength.append(np.corrcoef(np.log(goal[0]), np.log(have[0]))[0, 1])
        peakedness.append(np.median(have[1] / goal[1]))
    assert np.mean(strength) > 0.7
    assert 0.5 < np.mean(peakedness) < 1.5, "noise would have 0.15"


def test_more_rounds_come_closer() -> None:
    goals = image_statistics.draw_marginals(RNGS[0].generator(), SIDE)
    half = rfft2(RNGS[0].generator().random((SIDE, SIDE)), norm="forward")
    misses = []
    for _ in range(4):
        half = image_statistics.approach_marginals(half, goals)
        values = [np.sort(bands.reshape(4, -1)) for bands in pyramid(SIDE).split(half)]
        misses.append(sum(((f - g) ** 2).mean() for f, g in zip(values, goals, strict=True)))
    assert misses == sorted(misses, reverse=True)


# Colour


def test_colours_cover_their_shares_of_the_area() -> None:
    rng = np.random.default_rng(0)
    area, colours, shares = np.full((100, 100, 3), np.nan), rng.random((7, 3)), rng.random(7)
    image_statistics._divide(area, colours, shares)
    areas = [(area == colour).all(-1).mean() for colour in colours]
    np.testing.assert_allclose(areas, shares / shares.sum(), atol=0.02)


def test_from_3_to_22_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_statistics, "uniform_filter", lambda image, *_, **__: image)
    images = [image_statistics.draw_colours(ImageRandom("test", 0, index), SIDE) for index in range(100)]
    counts = [len(np.unique(image[..., 0])) for image in images]
    assert min(counts) == 3 and max(counts) == 22


def test_a_palette_is_its_image_along_principal_axes() -> None:
    image = image_statistics._colour_image(RNGS[0].generator(), 33)
    mean, axes, ascending = image_statistics.principal_palette(image)
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
    along = (image.reshape(-1, 3) - mean) @ axes.T
    np.testing.assert_allclose(np.sort(along.T), ascending, atol=1e-12)
    np.testing.assert_allclose(np.corrcoef(along.T), np.eye(3), atol=1e-9)


# All of them


def test_a_combination_has_the_spectrum_and_the_colours() -> None:
    falls, misses = [], []
    for image_rng, image in zip(RNGS, drawn(image_statistics.draw_combined), strict=True):
        rng = image_rng.generator()
        mean, axes, ascending = image_statistics.principal_palette(image_statistics._colour_image(rng, SIDE))
        falling = image_statistics.draw_magnitudes(rng, SIDE)
        along = np.einsum("yxc,ac->ayx", image - mean, axes)
        magnitudes = np.abs(rfft2(along[2]))
        falls.append(np.corrcoef(np.log(magnitudes.ravel()[1:]), np.log(falling.ravel()[1:]))[0, 1])
        misses.append(np.abs(np.sort(along.reshape(3, -1)) - ascending).mean())
    assert np.median(falls) > 0.75
    assert np.mean(misses) < 0.02, "the difference is due to clipping alone"


def test_a_combination_has_sparser_subbands_than_without_wavelets(monkeypatch: pytest.MonkeyPatch) -> None:
    def sparsity() -> float:
        images = drawn(image_statistics.draw_combined).mean(-1)
        return float(np.median([kurtosis(x) for image in images for x in pyramid(SIDE).split(rfft2(image))]))

    have = sparsity()
    monkeypatch.setattr(image_statistics, "approach_marginals", lambda half, _: half)
    assert have > 1.2 * sparsity()
