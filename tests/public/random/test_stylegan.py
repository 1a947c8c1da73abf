"""Untrained StyleGAN2 networks: their parts against plain convolutions, and the statistics of their images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import conv2d, conv_transpose2d

from dpvision.public.random import draw, stylegan
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.stylegan import (
    GAIN,
    Plain,
    TiedMaps,
    convolve,
    double,
    draw_blotches,
    filter_bank,
    pink_noise,
    relu,
)

Floats = NDArray[np.float64]
VARIANTS = ("stylegan-random", "stylegan-high-freq", "stylegan-sparse", "stylegan-oriented")
KERNEL = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=torch.float64)


def _fir(x: torch.Tensor, pad: int) -> torch.Tensor:
    kernel = (torch.outer(KERNEL, KERNEL) / 16)[None, None]
    return conv2d(x[:, None], kernel, padding=pad)[:, 0]


def test_the_filters_are_forty_and_edges_and_bars_ignore_brightness() -> None:
    filters = filter_bank()
    assert len(np.unique(filters.round(12), axis=0)) == len(filters) == 40
    np.testing.assert_array_equal(filters[20:], -filters[:20])
    np.testing.assert_allclose(filters[:16].sum((1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(filters[0], [[-1, 0, 1]] * 3, atol=1e-12)
    np.testing.assert_allclose(np.rot90(filters[8:16], 1, (1, 2)), np.roll(filters[8:16], 4, 0), atol=1e-12)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_pink_noise_falls_with_its_exponent(exponent: float) -> None:
    power = np.mean([abs(np.fft.fft2(pink_noise(np.random.default_rng(i), 64, exponent))) ** 2 for i in range(40)], 0)
    f = np.hypot(*np.meshgrid(*[np.fft.fftfreq(64) * 64] * 2))
    band = (f > 1) & (f < 30)
    assert np.polyfit(np.log(f[band]), np.log(power[band]) / 2, 1)[0] == pytest.approx(-exponent, abs=0.03)
    assert power[0, 0] == pytest.approx(0, abs=1e-12)


def test_blotches_are_smooth_and_heavy_tailed() -> None:
    maps = np.stack([draw_blotches(np.random.default_rng(i), 64) for i in range(200)])
    assert (maps**4).mean() / (maps**2).mean() ** 2 > 4, "Gaussian ones have 3"
    assert (np.diff(maps) ** 2).mean() < 0.02 * maps.var()


def test_tied_maps_equal_the_maps_they_represent() -> None:
    rng = np.random.default_rng(0)
    y, noise, biases = rng.normal(size=(16, 16)), 0.1 * rng.normal(size=(16, 16)), rng.uniform(-0.2, 0.2, 70)
    signs, weights = np.sign(rng.normal(size=70)), rng.normal(size=(4, 3, 70))
    maps = Plain(relu(signs[:, None, None] * y + noise + biases[:, None, None]))
    tied = TiedMaps(y, noise, signs=signs, biases=biases)
    np.testing.assert_allclose([*tied.mix(weights)], [*maps.mix(weights)], atol=1e-12)


def test_convolutions_are_those_of_stylegan2() -> None:
    rng = np.random.default_rng(0)
    maps, weights = rng.normal(size=(5, 8, 8)), rng.normal(size=(4, 5, 3, 3))
    x, w = torch.tensor(maps), torch.tensor(weights).transpose(0, 1)
    same = conv_transpose2d(x[None], w, padding=1)[0]
    twice = _fir(conv_transpose2d(x[None], w, stride=2)[0], pad=1)
    np.testing.assert_allclose(convolve(Plain(maps), weights, upsample=False), same, atol=1e-12)
    np.testing.assert_allclose(convolve(Plain(maps), weights, upsample=True), twice, atol=1e-12)
    np.testing.assert_allclose(double(np.ones((2, 8, 8)))[:, 1:-1, 1:-1], 1, atol=1e-12)


def test_one_map_represents_all_outputs_of_tied_weights() -> None:
    """Compared with a layer with all its weights a_o f_i, modulated, demodulated and convolved one by one."""
    rng = np.random.default_rng(0)
    maps, style, a = rng.normal(size=(30, 8, 8)), 1 + rng.normal(size=30), rng.normal(size=20)
    filters, biases, noise = (
        filter_bank()[rng.integers(40, size=30)],
        rng.uniform(-0.2, 0.2, 20),
        rng.normal(size=(16, 16)),
    )
    full = stylegan._modulate(a[:, None, None, None] * filters, style)
    y = convolve(Plain(maps), full, upsample=True)
    full_maps = Plain(GAIN * np.maximum(0, y + noise + biases[:, None, None]))
    (one,) = convolve(Plain(maps), stylegan._modulate(filters[None], style), upsample=True)
    tied = TiedMaps(one, noise, signs=np.sign(a), biases=biases)
    weights = rng.normal(size=(1, 3, 20))
    np.testing.assert_allclose(next(tied.mix(weights)), next(full_maps.mix(weights)), atol=1e-10)


def test_demodulation_keeps_the_variance_from_layer_to_layer() -> None:
    rng = np.random.default_rng(0)
    x = relu(rng.normal(size=(64, 32, 32)))
    y = convolve(Plain(x), stylegan._modulate(rng.normal(size=(64, 64, 3, 3)), np.ones(64)), upsample=False)
    assert (y[:, 1:-1, 1:-1] ** 2).mean() == pytest.approx(1, abs=0.1)


def test_400_images_share_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stylegan, "W_STD", 0.0)
    rngs = [ImageRandom("stylegan-random", 0, index) for index in (0, 399, 400)]
    first, last, other = (stylegan._synthesise(image_rng, *_network(image_rng), stylegan.RANDOM) for image_rng in rngs)
    np.testing.assert_array_equal(first, last)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.8


def _network(image_rng: ImageRandom) -> tuple[Floats, list[stylegan.Block]]:
    return stylegan._network(image_rng.group_start(400), 32, stylegan.RANDOM)


def test_networks_are_drawn_as_described() -> None:
    _, blocks = stylegan._network(ImageRandom("stylegan-oriented", 0, 0), 256, stylegan.ORIENTED)
    layers = [layer for block in blocks for layer in block.convolutions]
    assert len(layers) == 13 and [block.rgb.shape[1] for block in blocks] == [512] * 5 + [256, 128]
    kinds = [len(np.unique(layer.weights[0], axis=0)) for layer in layers]
    assert min(kinds) >= 5 and max(kinds) <= 40 and len(set(kinds)) > 5
    assert all(0 < layer.strength < 0.3 and abs(layer.biases).max() < 0.2 for layer in layers)
    assert all(0.4 < (layer.signs > 0).mean() < 0.6 for layer in layers)


def test_styles_are_one_plus_512_leaky_numbers_through_an_affine_layer() -> None:
    rng = np.random.default_rng(0)
    w, affine = rng.normal(size=(2000, 512)), rng.normal(size=(512, 300)) / np.sqrt(512)
    there = 1 + np.where(w < 0, 0.2 * w, w) @ affine
    mean = stylegan._mean_style(rng, 300)
    here = np.stack([stylegan._draw_style(rng, mean) for _ in range(2000)])
    assert here.mean() == pytest.approx(there.mean(), abs=0.05)
    assert here.mean(0).std() == pytest.approx(there.mean(0).std(), rel=0.15)
    assert here.std(0).mean() == pytest.approx(there.std(0).mean(), rel=0.03)


def test_colours_have_the_means_and_deviations_of_photographs() -> None:
    rng = np.random.default_rng(0)
    images = np.stack([stylegan._normalise_colours(rng, rng.normal(size=(3, 16, 16))) for _ in range(2000)])
    np.testing.assert_allclose(images.mean((0, 2, 3)), [0.483, 0.455, 0.401], atol=0.02)
    np.testing.assert_allclose(images.mean((2, 3)).std(0), [0.145, 0.142, 0.161], atol=0.02)
    np.testing.assert_allclose(images.std((2, 3)).mean(0), [0.219, 0.213, 0.213], atol=0.025)


def _gray(process: str) -> Floats:
    """(24, 32, 32) from 12 networks."""
    indices = [400 * network + k for network in range(12) for k in range(2)]
    return draw(process, indices, side=32).mean(-1)


def test_each_variant_adds_what_it_is_named_for() -> None:
    random, noisy, sparse, oriented = (_gray(process) for process in VARIANTS)
    assert _detail(random) < 0.5 * _detail(noisy)
    assert _tails(sparse) > 1.2 * _tails(noisy)
    assert _agreement(oriented) > 2 * _agreement(sparse)


def _detail(images: Floats) -> float:
    """Variance of differences of neighbours, relative to the variance of pixels."""
    return float((np.diff(images) ** 2).mean() / images.var((1, 2)).mean())


def _tails(images: Floats) -> float:
    """Median kurtosis of differences of neighbours."""
    steps = np.diff(images).reshape(len(images), -1)
    return float(np.median((steps**4).mean(1) / (steps**2).mean(1) ** 2))


def _agreement(images: Floats) -> float:
    """How much the gradients in the images of a network agree in direction, from 0 to 1."""
    dy, dx = np.gradient(images, axis=(1, 2))
    double_angle = ((dx + 1j * dy) ** 2).reshape(12, -1)
    return float(np.median(abs(double_angle.mean(1)) / abs(double_angle).mean(1)))


def test_images_do_not_depend_on_the_batch() -> None:
    for process in VARIANTS:
        alone = [draw(process, [index], side=16)[0] for index in range(398, 402)]
        for batch in (2, 3, 4):
            np.testing.assert_array_equal(draw(process, range(398, 398 + batch), side=16), alone[:batch])


def test_the_largest_side() -> None:
    assert draw("stylegan-oriented", [0], side=1024).std() > 10
