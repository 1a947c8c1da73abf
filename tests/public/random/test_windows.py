"""Leaves are windows on textures that groups of images share, and what makes feature visualisations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.public.random import dead_leaves, draw, feature_textures
from dpvision.public.random.feature_textures import EDGE, SIDE, UNITS, Network, network, strengths
from dpvision.public.random.image_random import ImageRandom
from dpvision.public.random.windows import (
    FEATURES_EVERY,
    STATISTICS_EVERY,
    feature_visualisations,
    statistics_textures,
    textured_leaves,
)


@pytest.fixture(scope="module")
def filters() -> Network:
    return network(
        ImageRandom("test", 0, 0).own(), dead_leaves.mixed([ImageRandom("test", 0, i) for i in range(16)], 32)
    )


def test_a_texture_excites_its_own_unit(filters: Network) -> None:
    units, cores = np.array([3, 17, 40, 70]), torch.get_num_threads()
    with torch.inference_mode():
        made = feature_textures.textures(ImageRandom("test", 0, 1).own(), filters, units)
    assert torch.get_num_threads() == cores, "left as it was"
    assert made.shape == (4, SIDE, SIDE, 3) and made.std((1, 2, 3)).min() > 10
    response = strengths(filters, torch.from_numpy(made / 255.0).permute(0, 3, 1, 2)).numpy()
    assert response.shape == (4, UNITS)
    shares = response / response.mean(1, keepdims=True)  # what contrast alone does, it does to all units
    own = shares[:, units]
    assert (own.argmax(0) == np.arange(4)).all()
    assert (own.diagonal() > 2 * np.median(shares, 1)).all()


def test_the_network_sees_edges_of_dead_leaves_and_no_constant(filters: Network) -> None:
    first, *later = filters
    flat = strengths(filters, torch.full((1, 3, SIDE, SIDE), 0.7, dtype=torch.float64))
    assert flat.abs().max() < 1e-20
    np.testing.assert_allclose(first.square().sum((1, 2, 3)), 1)
    assert first.sum((2, 3)).abs().max() < 1e-10 and first.shape[-1] == EDGE
    for layer in later:
        rows = layer.flatten(1)
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-10)
        assert rows.sum(1).abs().max() < 1e-10


def test_images_are_windows_on_the_textures_they_share() -> None:
    pool = {
        tuple(colour)
        for colour in feature_visualisations(ImageRandom("dead-leaves-features", 0, 0)).reshape(-1, 3).tolist()
    }
    for image in draw("dead-leaves-features", [1, FEATURES_EVERY - 1], side=24):
        assert {tuple(colour) for colour in image.reshape(-1, 3).tolist()} <= pool


def test_leaves_are_cut_from_the_textures_of_their_group() -> None:
    last, other = STATISTICS_EVERY - 1, STATISTICS_EVERY
    images = textured_leaves([ImageRandom("test", 0, index) for index in (3, last, other)], 16)
    pool = {pixel.tobytes() for pixel in statistics_textures(ImageRandom("test", 0, 0), 16).reshape(-1, 3)}
    inside = [np.mean([pixel.tobytes() in pool for pixel in image.reshape(-1, 3)]) for image in images]
    assert inside[:2] == [1, 1] and inside[2] < 0.1
