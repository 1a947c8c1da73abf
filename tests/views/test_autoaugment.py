"""AutoAugment: every operation equals Pillow's bit by bit, and so does the whole policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from torch import Tensor

from dpvision.errors import ConfigError
from dpvision.models.inputs import to_tensor
from dpvision.views import eight_bit
from dpvision.views.autoaugment import OPERATIONS, POLICY, autoaugment
from tests.views.builders import images_of, rng_of, same_bits

Picture = Image.Image


def _moved(picture: Picture, matrix: tuple[float, ...]) -> Picture:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, fillcolor=_grey(picture))


def _grey(picture: Picture) -> int | tuple[int, int, int]:
    return 128 if picture.mode == "L" else (128, 128, 128)


# What each operation does in Pillow for (picture, level, sign), with the levels of the authors' released code.
PILLOW: dict[str, Callable[[Picture, int, int], Picture]] = {
    "ShearX": lambda p, level, sign: _moved(p, (1, sign * level * 0.3 / 10, 0, 0, 1, 0)),
    "ShearY": lambda p, level, sign: _moved(p, (1, 0, 0, sign * level * 0.3 / 10, 1, 0)),
    "TranslateX": lambda p, level, sign: _moved(p, (1, 0, sign * int(level * p.width / 32), 0, 1, 0)),
    "TranslateY": lambda p, level, sign: _moved(p, (1, 0, 0, 0, 1, sign * int(level * p.height / 32))),
    "Rotate": lambda p, level, sign: p.rotate(sign * int(level * 30 / 10), fillcolor=_grey(p)),
    "AutoContrast": lambda p, level, sign: ImageOps.autocontrast(p),
    "Invert": lambda p, level, sign: ImageOps.invert(p),
    "Equalize": lambda p, level, sign: ImageOps.equalize(p),
    "Solarize": lambda p, level, sign: ImageOps.solarize(p, 256 - int(level * 256 / 10)),
    "Posterize": lambda p, level, sign: ImageOps.posterize(p, 4 - int(level * 4 / 10)),
    "Contrast": lambda p, level, sign: ImageEnhance.Contrast(p).enhance(level * 1.8 / 10 + 0.1),
    "Color": lambda p, level, sign: ImageEnhance.Color(p).enhance(level * 1.8 / 10 + 0.1),
    "Brightness": lambda p, level, sign: ImageEnhance.Brightness(p).enhance(level * 1.8 / 10 + 0.1),
    "Sharpness": lambda p, level, sign: ImageEnhance.Sharpness(p).enhance(level * 1.8 / 10 + 0.1),
}


def _picture(image: Tensor) -> Picture:
    return Image.fromarray(image.movedim(0, -1).squeeze(-1).contiguous().numpy())


def _pixels(picture: Picture) -> Tensor:
    array = np.array(picture)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).movedim(-1, 0)


def _variety(channels: int, size: tuple[int, int]) -> Tensor:
    """Noise, a smooth picture, one colour, two levels, little contrast, few levels, black and white."""
    rng = np.random.default_rng(3)
    height, width = size
    shape = (channels, height, width)
    ramp = np.add.outer(np.arange(height), np.arange(width)) * 200 // (height + width) + 20
    kinds = [
        rng.integers(0, 256, shape),
        np.broadcast_to(ramp, shape) + rng.integers(0, 9, shape),
        np.full(shape, 77),
        rng.choice([10, 240], shape),
        rng.integers(100, 131, shape),
        rng.choice([0, 3, 128, 255], shape),
        np.zeros(shape),
        np.full(shape, 255),
        rng.normal(128, 40, shape).clip(0, 255),
    ]
    return torch.from_numpy(np.stack(kinds).astype(np.uint8))


@pytest.mark.parametrize("size", [(32, 32), (17, 23), (2, 5)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_each_operation_equals_pillows(name: str, channels: int, size: tuple[int, int]) -> None:
    images = _variety(channels, size)
    levels = range(10)  # Pillow has no name for the 0 bits of level 10
    rows = [(image, level, sign) for image in images for level in levels for sign in (1, -1)]
    level = torch.tensor([row[1] for row in rows])
    minus = torch.tensor([row[2] < 0 for row in rows])
    before = torch.stack([row[0] for row in rows])
    result = OPERATIONS[name](before, level, minus)
    expected = torch.stack([_pixels(PILLOW[name](_picture(image), lv, sign)) for image, lv, sign in rows])
    assert same_bits(result.contiguous(), expected)


def test_the_policy_is_the_published_one() -> None:
    assert len(POLICY) == 25 and {name for pair in POLICY for name, _, _ in pair} <= set(OPERATIONS) == set(PILLOW)
    assert POLICY[0] == (("Invert", 0.1, 7), ("Contrast", 0.2, 6))
    assert POLICY[24] == (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1))
    chances = [chance for pair in POLICY for _, chance, _ in pair]
    assert sum(chances) == pytest.approx(26.5)
    assert sum(level for pair in POLICY for name, _, level in pair if name.startswith("Translate")) == 56


@pytest.mark.parametrize("channels", [1, 3])
def test_every_view_is_what_pillow_makes_of_its_sub_policy(channels: int) -> None:
    images = images_of(40, channels=channels, size=(32, 32))
    rng = rng_of(*range(40))
    views = autoaugment(images.unsqueeze(1), rng_of(*range(40)), 12)
    pair, uniform, minus = rng.integers(25, 12), rng.uniform(12, 2), rng.uniform(12, 2) < 0.5
    seen, changed = set(), 0
    for i in range(40):
        for k in range(12):
            picture = _picture(((images[i] + 1) * 127.5).round().to(torch.uint8))
            before = picture
            for turn, (name, chance, level) in enumerate(POLICY[int(pair[i, k])]):
                if uniform[i, k, turn] < chance:
                    picture = PILLOW[name](picture, level, -1 if minus[i, k, turn] else 1)
            seen.add(int(pair[i, k]))
            changed += picture is not before
            expected = to_tensor(_pixels(picture).movedim(0, -1).unsqueeze(0).contiguous().numpy())[0]
            assert same_bits(views[i, k].contiguous(), expected.contiguous())
    assert len(seen) == 25 and changed > 300


def test_each_sub_policy_is_as_likely_and_done_with_its_probabilities() -> None:
    """Noise without black and white shows every operation, so an untouched view is one where none was done."""
    pixels = np.random.default_rng(0).integers(20, 251, (1500, 32, 32, 3), dtype=np.uint8)
    images = to_tensor(pixels).unsqueeze(1)
    kept = (autoaugment(images, rng_of(*range(1500)), 2) == images).flatten(2).all(2).double()
    expected = np.mean([np.prod([1 - chance for _, chance, _ in pair]) for pair in POLICY])
    assert abs(kept.mean() - expected) < 4.5 * np.sqrt(expected * (1 - expected) / kept.numel())
    picks = rng_of(*range(20_000)).integers(len(POLICY))
    assert stats.chisquare(torch.bincount(picks, minlength=25).numpy()).pvalue > 1e-4


def test_bytes_go_through_floats_and_back_as_in_training() -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    floats = to_tensor(levels)
    back = eight_bit.to_bytes(floats)
    assert np.array_equal(back.movedim(1, -1).numpy(), levels)
    assert same_bits(eight_bit.to_floats(back, torch.float32), floats.contiguous())


def test_pixels_outside_of_the_range_and_no_numbers_have_a_place() -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 7.0, -7.0, 0.0])
    assert eight_bit.to_bytes(odd).tolist() == [128, 255, 0, 255, 0, 128]


def test_an_untouched_image_keeps_its_bits() -> None:
    images = images_of(100).unsqueeze(1)
    views = autoaugment(images, rng_of(*range(100)), 5)
    near = ((views - images).abs().flatten(2).amax(2)) < 1 / 255
    assert near.any()
    assert torch.equal(views[near], images.expand_as(views)[near])


def test_two_channels_are_refused() -> None:
    with pytest.raises(ConfigError, match="not 2"):
        autoaugment(images_of(2, channels=2).unsqueeze(1), rng_of(0, 1), 1)
