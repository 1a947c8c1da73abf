"""Properties of every random process."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from dpvision.errors import ConfigError
from dpvision.public.random import PROCESSES, draw, stream

SIDE = 32
# blake2b of image 7 under seed 3, 32 pixels a side.
GOLDEN = {
    "dead-leaves-squares": "85d9ff2e1963569e",
    "dead-leaves-oriented": "d8cb7e0275036710",
    "dead-leaves-mixed": "e70f09019dbde335",
    "dead-leaves-textured": "e344d7040cd52cbb",
    "spectrum": "5e0ccef654bb29fe",
    "colour": "36704afbed7fa7e0",
    "wmm": "cae5c0657871122f",
    "spectrum-colour-wmm": "9b9123af2100ea94",
    "stylegan-random": "b5efcf9e5dd1592c",
    "stylegan-high-freq": "55e739af4c33fe7c",
    "stylegan-sparse": "4d2db61546ab0f26",
    "stylegan-oriented": "4f393b5e07af7e9c",
    "dead-leaves-features": "d829d43eb618eb62",
    "programs": "cb8e47eb29f5caf0",
    "fractals": "dd736071652b2baf",
}


@pytest.mark.parametrize("process", PROCESSES)
def test_images_have_not_changed(process: str) -> None:
    image = draw(process, [7], side=SIDE, seed=3)
    assert hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest() == GOLDEN[process]


@pytest.mark.parametrize("process", PROCESSES)
def test_an_image_depends_only_on_its_index(process: str) -> None:
    together = draw(process, [5, 2, 2, 9], side=SIDE)
    assert together.shape == (4, SIDE, SIDE, 3) and together.dtype == np.uint8
    for position, index in enumerate([5, 2, 2, 9]):
        np.testing.assert_array_equal(together[position], draw(process, [index], side=SIDE)[0])
    assert (together[0] != together[1]).mean() > 0.5, "indices give different images"
    assert (draw(process, [5], side=SIDE, seed=1) != together[:1]).mean() > 0.5, "seeds give different images"


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("side", [8, 33])
def test_any_side(process: str, side: int) -> None:
    images = draw(process, range(6), side=side)
    assert images.shape == (6, side, side, 3)
    assert images.std() > 10, "not blank"


def test_a_stream_is_the_same_on_any_number_of_cores() -> None:
    batches = [range(i, i + 3) for i in range(0, 24, 3)]
    alone = list(stream("dead-leaves-mixed", batches, side=SIDE))
    np.testing.assert_array_equal(
        np.stack(alone), np.stack(list(stream("dead-leaves-mixed", batches, side=SIDE, workers=2)))
    )


def test_unknown_processes_and_sides_are_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'dead-leaves-mixed'"):
        draw("dead-leaves-mixd", [0], side=SIDE)
    with pytest.raises(ConfigError, match="side is 4"):
        draw("dead-leaves-mixed", [0], side=4)
