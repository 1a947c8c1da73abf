"""Dead leaves that are windows on textures, which are spectrum-colour-wmm images (Baradad et al. 2021).

A texture costs several times what an image of leaves does, so groups of consecutive images share a few dozen: to draw
images in the order of their numbers is much faster than in any other. Textures are periodic, so large images repeat
small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpvision.public.random import dead_leaves, spectrum_colour_wmm
from dpvision.public.random.coins import Coins

Floats = NDArray[np.float32]

TEXTURES, EVERY = 32, 512  # so many textures for so many images
LARGEST = 128  # pixels a side of a texture


def textured_leaves(coins: Sequence[Coins], side: int) -> Floats:
    """Dead leaves that are windows on spectrum-colour-wmm textures."""
    out = np.empty((len(coins), side, side, 3), np.float32)
    for place, each in enumerate(coins):
        first = replace(each, index=each.index - each.index % EVERY)
        out[place : place + 1] = dead_leaves.windows([each], side, _textures(first, min(side, LARGEST)))
    return out


@lru_cache(maxsize=2)
def _textures(first: Coins, side: int) -> Floats:
    toss = first.shared(EVERY, "textures")
    return np.stack([spectrum_colour_wmm.image(toss, side).astype(np.float32) for _ in range(TEXTURES)])
