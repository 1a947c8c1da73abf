"""Dead leaves that are windows on feature visualisations.

Baradad et al. 2021 learn from images that excite units of a network which was itself trained on dead leaves. Such an
ascent for every image would cost seconds, and the training hours. So here images share a few of them, seen through the
leaves, and the network is not trained but made of dead leaves (see feature_textures).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpvision.public.random import dead_leaves
from dpvision.public.random.coins import Coins

Floats = NDArray[np.float32]

EVERY = 1024  # images in a row share their textures
TEXTURES, SEEN = 12, (2, 6)  # that they share, and of these in one image
LEAVES, SIDE = 16, 32  # images of dead leaves that a network is made of


def feature_leaves(coins: Sequence[Coins], side: int) -> Floats:
    """Shapes of all kinds, each a window on a texture."""
    out = np.empty((len(coins), side, side, 3), np.float32)
    for image, each in zip(out, coins, strict=True):
        pool, toss = textures(replace(each, index=each.index // EVERY * EVERY)), each.own("pool")
        some = toss.permutation(TEXTURES)[: toss.integers(*SEEN, endpoint=True)]
        image[...] = dead_leaves.windows([each], side, pool[some])[0] / 255
    return out


@lru_cache(maxsize=128)
def textures(first: Coins) -> NDArray[np.uint8]:
    """Those of the images from this one on."""
    from dpvision.public.random import feature_textures  # here, as torch takes seconds to load

    leaf = first.of("dead-leaves-mixed")
    leaves = dead_leaves.mixed([replace(leaf, index=leaf.index + number) for number in range(LEAVES)], SIDE)
    filters = feature_textures.network(first.shared(EVERY, "network"), leaves)
    toss = first.shared(EVERY, "textures")
    return feature_textures.textures(toss, filters, toss.permutation(feature_textures.UNITS)[:TEXTURES])
