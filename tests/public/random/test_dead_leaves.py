"""Dead leaves as windows on textures that groups of images share, and the network of feature visualisations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.public.random import dead_leaves, draw, feature_textures
from dpvision.public.random.dead_leaves import (
    FEATURE_GROUP,
    STATISTICS_GROUP,
    draw_textured,
    feature_visualisations,
    statistics_textures,
)
from dpvision.public.random.feature_textures import FIRST_KERNEL, SIDE, UNITS, Network, build_network, responses
from dpvision.public.random.image_random import ImageRandom


@pytest.fixture(scope="module")
def filters() -> Network:
    leaves = np.stack([dead_leaves.draw_mixed(ImageRandom("test", 0, i), 32) for i in range(16)])
    return build_network(ImageRandom("test", 0, 0).generator(), leaves)


def test_a_texture_excites_its_own_unit(filters: Network) -> None:
    units, cores = np.array([3, 17, 40, 70]), torch.get_num_threads()
    with torch.inference_mode():
        textures = feature_textures.draw_textures(ImageRandom("test", 0, 1).generator(), filters, units)
    assert torch.get_num_threads() == cores, "left as it was"
    assert textures.shape == (4, SIDE, SIDE, 3) and textures.std((1, 2, 3)).min() > 10
    response = responses(filters, torch.from_numpy(textures / 255.0).permute(0, 3, 1, 2)).numpy()
    assert response.shape == (4, UNITS)
    shares = response / response.mean(1, keepdims=True)  # what contrast alone does, it does to all units
    own = shares[:, units]
    assert (own.argmax(0) == np.arange(4)).all()
    assert (own.diagonal() > 2 * np.median(shares, 1)).all()


def test_the_network_responds_to_edges_and_not_to_constants(filters: Network) -> None:
    first, *later = filters
    flat = responses(filters, torch.full((1, 3, SIDE, SIDE), 0.7, dtype=torch.float64))
    assert flat.abs().max() < 1e-20
    np.testing.assert_allclose(first.square().sum((1, 2, 3)), 1)
    assert first.sum((2, 3)).abs().max() < 1e-10 and first.shape[-1] == FIRST_KERNEL
    for layer in later:
        rows = layer.flatten(1)
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-10)
        assert rows.sum(1).abs().max() < 1e-10


def test_images_are_windows_on_the_textures_they_share() -> None:
    pool = {
        tuple(colour)
        for colour in feature_visualisations(ImageRandom("dead-leaves-features", 0, 0)).reshape(-1, 3).tolist()
    }
    for image in draw("dead-leaves-features", [1, FEATURE_GROUP - 1], side=24):
        assert {tuple(colour) for colour in image.reshape(-1, 3).tolist()} <= pool


def test_leaves_are_cut_from_the_textures_of_their_group() -> None:
    last, other = STATISTICS_GROUP - 1, STATISTICS_GROUP
    images = [draw_textured(ImageRandom("test", 0, index), 16) for index in (3, last, other)]
    pool = {pixel.tobytes() for pixel in statistics_textures(ImageRandom("test", 0, 0), 16).reshape(-1, 3)}
    inside = [np.mean([pixel.tobytes() in pool for pixel in image.reshape(-1, 3)]) for image in images]
    assert inside[:2] == [1, 1] and inside[2] < 0.1
