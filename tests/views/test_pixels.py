"""Cutout, colours and resized crops, compared with simple references one image at a time, and their distributions."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from scipy import stats

from dpvision.errors import ConfigError
from dpvision.views import colour
from dpvision.views.augment import cutout, draw_boxes, resized_crop
from dpvision.views.colour import grayscale, jitter
from tests.views.builders import images_of, rng_of, same_bits


def test_cutout_hides_a_grey_square_around_a_uniform_centre() -> None:
    images = torch.ones(300, 1, 3, 32, 32)
    hidden = cutout(images, rng_of(*range(300)), 10) == 0
    assert (hidden[:, :, 0] == hidden[:, :, 1]).all() and (hidden[:, :, 0] == hidden[:, :, 2]).all()
    rows, columns = hidden[:, :, 0].any(-1), hidden[:, :, 0].any(-2)
    assert torch.equal(hidden[:, :, 0], rows.unsqueeze(-1) & columns.unsqueeze(-2)), "it is a box"
    for side in (rows, columns):
        start = side.to(torch.int8).argmax(-1)
        length = side.sum(-1)
        # A square of 16 from centre - 8 on, cut at the edge: which centre it was shows in where it starts and ends.
        centre = torch.where(start > 0, start + 8, length - 8)
        expected = torch.minimum(centre + 8, torch.tensor(32)) - (centre - 8).clamp(min=0)
        assert torch.equal(length, expected)
        cells = torch.bincount(centre.flatten(), minlength=32)
        assert len(cells) == 32 and stats.chisquare(cells.numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("size", "side", "most"), [((9, 11), None, 4), ((9, 11), 3, 3), ((8, 8), 1, 1), ((6, 6), 20, 6)]
)
def test_cutout_is_as_large_as_asked_for(size: tuple[int, int], side: int | None, most: int) -> None:
    images = images_of(50, size=size).unsqueeze(1) / 2 + 2
    views = cutout(images, rng_of(*range(50)), 3, side=side)
    hidden = (views == 0)[:, :, 0]
    assert hidden.any(-1).sum(-1).max() == most and hidden.any(-2).sum(-1).max() == most
    assert hidden.flatten(2).any(2).all()
    assert torch.equal(
        views[~hidden.unsqueeze(2).expand_as(views)], images.expand_as(views)[~hidden.unsqueeze(2).expand_as(views)]
    )


def test_hue_turns_as_in_colorsys() -> None:
    images = images_of(4).add(1).div(2)
    images[0, :, 0] = 0.0  # black, grey and pure colours
    images[0, :, 1] = 0.5
    images[0, 0, 2], images[0, 1:, 2] = 1.0, 0.0
    for share in (-0.4, -0.1, 0.0, 0.3, 0.5):
        turned = colour.rotate_hue(images, torch.full((4, 1, 1, 1), share))
        for pixel, new in zip(images.movedim(1, -1).reshape(-1, 3), turned.movedim(1, -1).reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            expected = colorsys.hsv_to_rgb((hue + share) % 1, saturation, value)
            assert new.tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
@pytest.mark.parametrize(
    ("change", "enhancer"),
    [
        (colour.change_brightness, ImageEnhance.Brightness),
        (colour.change_contrast, ImageEnhance.Contrast),
        (colour.change_saturation, ImageEnhance.Color),
    ],
)
def test_factors_act_as_in_pillow_up_to_its_rounding(change, enhancer, factor: float) -> None:
    """Pillow rounds grey, the mean and the result to whole levels: up to two levels apart."""
    for channels in (1, 3):
        images = images_of(5, channels=channels, size=(16, 16))
        result = change(images.add(1).div(2), torch.full((5, 1, 1, 1), factor))
        for image, new in zip(images, result, strict=True):
            pixels = ((image + 1) * 127.5).round().to(torch.uint8).movedim(0, -1).squeeze(-1).numpy()
            expected = np.asarray(enhancer(Image.fromarray(pixels)).enhance(factor)).reshape(16, 16, channels)
            assert np.abs(new.movedim(0, -1).numpy() * 255 - expected).max() < 2.1


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_does_its_four_changes_in_the_order_of_each_view(channels: int) -> None:
    images, rng = images_of(12, channels=channels), rng_of(*range(12))
    views = jitter(images.unsqueeze(1), rng_of(*range(12)), 4, brightness=0.5, contrast=0.3, saturation=0.9, hue=0.2)
    order = rng.uniform(4, 4).argsort(-1)
    factors = torch.tensor([0.5, 0.7, 0.1, -0.2]) + rng.uniform(4, 4) * torch.tensor([1.0, 0.6, 1.8, 0.4])
    changes = (colour.change_brightness, colour.change_contrast, colour.change_saturation, colour.rotate_hue)
    assert len({tuple(o) for o in order.flatten(0, 1).tolist()}) > 12, "of the 24 orders"
    for i in range(12):
        for k in range(4):
            image = images[i : i + 1].add(1).div(2)
            for number in order[i, k].tolist():
                image = changes[number](image, factors[i, k, number].float().view(1, 1, 1, 1))
            torch.testing.assert_close(views[i, k], image[0] * 2 - 1, atol=3e-6, rtol=0)


def test_jitters_factors_have_their_law() -> None:
    """On white, brightness f below 1 gives the pixel f; the others change nothing there."""
    white = torch.ones(2000, 1, 3, 2, 2)
    views = jitter(white, rng_of(*range(2000)), 4, brightness=0.4)
    levels = (views[:, :, 0, 0, 0].double().flatten().numpy() + 1) / 2
    below = levels[levels < 1 - 1e-6]
    assert abs(len(below) / levels.size - 0.5) < 4.5 * 0.5 / np.sqrt(levels.size)
    assert stats.kstest(below, stats.uniform(0.6, 0.4).cdf).pvalue > 1e-4
    assert not torch.equal(views[:, 0], views[:, 1])


def test_jitter_by_chance_leaves_the_others_bits() -> None:
    images = images_of(500).unsqueeze(1)
    views = jitter(images, rng_of(*range(500)), 4, probability=0.3)
    kept = (views == images).flatten(2).all(2)
    assert abs(kept.double().mean() - 0.7) < 4.5 * np.sqrt(0.21 / kept.numel())
    assert same_bits(jitter(images, rng_of(*range(500)), 1, probability=0.0), images)
    assert not (jitter(images, rng_of(*range(500)), 1) == images).flatten(1).all(1).any()


def test_jitter_stays_in_range_and_no_strength_is_no_change() -> None:
    images = images_of(50).unsqueeze(1)
    views = jitter(images, rng_of(*range(50)), 8, brightness=2.0, contrast=2.0, saturation=2.0, hue=0.5)
    assert views.min() >= -1 - 1e-6 and views.max() <= 1 + 1e-6
    same = jitter(images, rng_of(*range(50)), 1, brightness=0, contrast=0, saturation=0, hue=0)
    torch.testing.assert_close(same, images, atol=3e-6, rtol=0)


def test_the_mean_is_exact_in_any_company() -> None:
    pixels = torch.rand(60, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    means = colour.exact_mean(pixels)
    assert all(same_bits(colour.exact_mean(pixels[i : i + 1]), means[i : i + 1]) for i in range(60))
    assert (means.flatten() - pixels.double().mean((1, 2, 3))).abs().max() < 1e-6


def test_grayscale_takes_the_colours_of_one_view_in_five() -> None:
    images = images_of(600).unsqueeze(1)
    views = grayscale(images, rng_of(*range(600)), 5)
    kept = (views == images).flatten(2).all(2)
    assert abs(kept.double().mean() - 0.8) < 4.5 * np.sqrt(0.16 / kept.numel())
    greys = views[~kept]
    assert torch.equal(greys[:, 0], greys[:, 1]) and torch.equal(greys[:, 0], greys[:, 2])
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    expected = (images.expand_as(views)[~kept] * weights).sum(1)
    torch.testing.assert_close(greys[:, 0], expected, atol=1e-6, rtol=0)
    grey = images_of(5, channels=1).unsqueeze(1)
    assert same_bits(grayscale(grey, rng_of(*range(5)), 1, probability=1.0), grey)


@pytest.mark.parametrize("operate", [jitter, grayscale])
def test_colours_of_two_channels_are_refused(operate) -> None:
    with pytest.raises(ConfigError, match="not 2"):
        operate(images_of(2, channels=2).unsqueeze(1), rng_of(0, 1), 1)


@pytest.mark.parametrize("size", [(32, 32), (9, 11), (5, 40)])
def test_resized_crops_are_bilinear_blow_ups_of_the_boxes(size: tuple[int, int]) -> None:
    images = images_of(12, size=size)
    views = resized_crop(images.unsqueeze(1), rng_of(*range(12)), 5)
    result = draw_boxes(rng_of(*range(12)), 5, size, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    for i in range(12):
        for k in range(5):
            top, left, height, width = (int(value[i, k]) for value in result)
            part = images[i : i + 1, :, top : top + height, left : left + width]
            assert part.shape[2:] == (height, width), "the box is inside"
            expected = F.interpolate(part, size=size, mode="bilinear", align_corners=False)[0]
            torch.testing.assert_close(views[i, k], expected, atol=2e-6, rtol=0)


def test_nothing_from_outside_of_a_box_gets_in() -> None:
    images = images_of(20, size=(16, 16))
    top, left, height, width = draw_boxes(rng_of(*range(20)), 1, (16, 16), scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    place = torch.arange(16)
    rows, columns = ((place >= start) & (place < start + length) for start, length in ((top, height), (left, width)))
    images[~(rows[:, None, :, None] & columns[:, None, None, :]).expand_as(images)] = float("nan")
    assert images.isnan().any() and resized_crop(images.unsqueeze(1), rng_of(*range(20)), 1).isfinite().all()


def test_boxes_have_uniform_areas_and_log_uniform_ratios_at_uniform_places() -> None:
    """On a large image rounding hardly shows; up to half of the area every ratio fits, so nothing is drawn again."""
    side = 4096
    top, left, height, width = draw_boxes(
        rng_of(*range(5000)), 2, (side, side), scale=(0.08, 0.5), ratio=(3 / 4, 4 / 3)
    )
    area, ratio = (height * width / side**2).flatten().numpy(), (width / height).flatten().numpy()
    assert stats.kstest(area, stats.uniform(0.08, 0.42).cdf).pvalue > 1e-4
    low = np.log(3 / 4)
    assert stats.kstest(np.log(ratio), stats.uniform(low, -2 * low).cdf).pvalue > 1e-4
    for start, length in ((top, height), (left, width)):
        place = (start / (side - length)).flatten().numpy()
        assert stats.kstest(place, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(area, ratio)[0, 1]) < 4.5 / np.sqrt(area.size)


@pytest.mark.parametrize(
    ("size", "box"), [((4, 64), (0, 29, 4, 5)), ((64, 4), (29, 0, 5, 4)), ((10, 10), (0, 0, 10, 10))]
)
def test_where_no_part_fits_the_largest_central_one_is_taken(size: tuple[int, int], box: tuple[int, ...]) -> None:
    result = draw_boxes(rng_of(1, 2, 3), 2, size, scale=(3.0, 3.0), ratio=(3 / 4, 4 / 3))
    assert all((value == expected).all() for value, expected in zip(result, box, strict=True))


def test_a_whole_box_is_the_image() -> None:
    images = images_of(3, size=(10, 10)).unsqueeze(1)
    assert torch.equal(resized_crop(images, rng_of(0, 1, 2), 1, scale=(1.0, 1.0), ratio=(1.0, 1.0)), images)
