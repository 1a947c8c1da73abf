"""Dead leaves that are windows on textures: on spectrum-colour-wmm images, or on feature visualisations.

A texture costs several times what an image of leaves does, so groups of consecutive images share a few: to draw images
in the order of their numbers is much faster than in any other. Textures are periodic, so large images repeat small ones
(Baradad et al. 2021).

Baradad et al. also learn from images that excite units of a network which was itself trained on dead leaves. Such an
ascent for every image would cost seconds, and the training hours. So here images share a few of them, seen through the
leaves, and the network is not trained but made of dead leaves (see feature_textures).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpvision.public.random import dead_leaves, image_statistics
from dpvision.public.random.image_random import ImageRandom

Floats = NDArray[np.float32]

STATISTICS, STATISTICS_EVERY = 32, 512  # so many textures for so many images in a row
LARGEST = 128  # pixels a side of such a texture
FEATURES, FEATURES_EVERY = 12, 1024
SEEN = (2, 6)  # feature visualisations in one image
LEAVES, SIDE = 16, 32  # images of dead leaves that a network is made of


def textured_leaves(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Dead leaves that are windows on spectrum-colour-wmm textures."""
    out = np.empty((len(draws), side, side, 3), np.float32)
    for place, each in enumerate(draws):
        first = replace(each, index=each.index - each.index % STATISTICS_EVERY)
        out[place : place + 1] = dead_leaves.windows([each], side, statistics_textures(first, min(side, LARGEST)))
    return out


def feature_leaves(draws: Sequence[ImageRandom], side: int) -> Floats:
    """Shapes of all kinds, each a window on a texture."""
    out = np.empty((len(draws), side, side, 3), np.float32)
    for image, each in zip(out, draws, strict=True):
        pool, rng = (
            feature_visualisations(replace(each, index=each.index // FEATURES_EVERY * FEATURES_EVERY)),
            each.own("pool"),
        )
        some = rng.permutation(FEATURES)[: rng.integers(*SEEN, endpoint=True)]
        image[...] = dead_leaves.windows([each], side, pool[some])[0] / 255
    return out


@lru_cache(maxsize=2)
def statistics_textures(first: ImageRandom, side: int) -> Floats:
    """Those of the images from this one on."""
    rng = first.shared(STATISTICS_EVERY, "textures")
    return np.stack([image_statistics.image_of_all(rng, side).astype(np.float32) for _ in range(STATISTICS)])


@lru_cache(maxsize=128)
def feature_visualisations(first: ImageRandom) -> NDArray[np.uint8]:
    """Those of the images from this one on."""
    from dpvision.public.random import feature_textures  # here, as torch takes seconds to load

    leaf = first.of("dead-leaves-mixed")
    leaves = dead_leaves.mixed([replace(leaf, index=leaf.index + number) for number in range(LEAVES)], SIDE)
    filters = feature_textures.network(first.shared(FEATURES_EVERY, "network"), leaves)
    rng = first.shared(FEATURES_EVERY, "textures")
    return feature_textures.textures(rng, filters, rng.permutation(feature_textures.UNITS)[:FEATURES])
