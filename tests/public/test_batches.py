"""Batches of public images: every pass has each image once, and a step is a function of its number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.errors import ConfigError, DataError
from dpvision.models.inputs import to_tensor
from dpvision.public.batches import Images, Source, choose_batch, draw_views, require_augment, steps_per_pass
from dpvision.views import UnitRandom


def source(count: int = 8, *, floats: bool = False, name: str = "some", side: int = 12) -> Source:
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 1), dtype=np.uint8)
    images = (pixels / np.float32(255)).astype(np.float32) if floats else pixels
    return Source(name, images, np.arange(count, dtype=np.int64) % 4, name)


def test_every_pass_sees_every_image_once_in_an_order_of_its_own() -> None:
    rows = np.arange(100, 125)
    passes = [np.concatenate([choose_batch(rows, s, batch=8, seed=1) for s in range(3 * p, 3 * p + 3)]) for p in (0, 1)]
    for order in passes:
        assert len(set(order.tolist())) == 24 and set(order) <= set(rows)
    assert (passes[0] != passes[1]).any()
    assert steps_per_pass(25, 8) == 3 and steps_per_pass(5, 8) == 1
    assert sorted(choose_batch(rows[:5], 7, batch=8, seed=1)) == rows[:5].tolist(), "few images are one batch"


def test_pixels_are_those_of_private_training() -> None:
    both = Images([source(), source(floats=True, name="other")], classes=4)
    bytes_only = Images([source()], classes=4)
    wanted = to_tensor(source().images)
    assert torch.equal(bytes_only(np.arange(8)), wanted)
    assert torch.equal(both(np.arange(16)), torch.cat([wanted, to_tensor(source(floats=True).images)]))
    assert len(both) == 16 and both.labels.tolist() == [0, 1, 2, 3] * 4


def test_a_view_is_a_function_of_the_image_and_its_random_numbers() -> None:
    images = Images([source()], classes=4)
    made = {}
    for order in (np.arange(8), np.arange(8)[::-1].copy()):
        x, _ = draw_views(
            images(order), images.labels[order], UnitRandom(5, order), augment=("crop", "flip"), classes=4
        )
        made[order[0]] = x
    assert torch.equal(made[0], made[7].flip(0))
    other, _ = draw_views(
        images(order), images.labels[order], UnitRandom(6, order), augment=("crop", "flip"), classes=4
    )
    assert not torch.equal(other, made[7])


def test_cutmix_weights_are_fractions_of_pixels() -> None:
    """Each image has its own colour and class, so pixels show which images are in a view."""
    count, side = 64, 10
    colours = torch.arange(count) / count
    images = colours.view(-1, 1, 1, 1).expand(count, 3, side, side).contiguous()
    labels = torch.arange(count)
    made, targets = draw_views(images, labels, UnitRandom(0, np.arange(count)), augment=("cutmix",), classes=count)
    result = torch.stack([(made[:, 0] == colour).sum((1, 2)) for colour in colours], dim=1) / side**2
    assert torch.allclose(result, targets, atol=1e-6)
    assert torch.allclose(targets.sum(1), torch.ones(count))
    mixed = (targets.max(1).values < 1).sum().item()
    assert 10 < mixed < 54, "about every second image"
    assert ((targets > 0).sum(1) <= 2).all() and targets.dtype == images.dtype


def test_names_are_checked() -> None:
    require_augment(("crop", "flip", "cutmix"))
    with pytest.raises(ConfigError, match="put it last"):
        require_augment(("cutmix", "crop"))
    with pytest.raises(ConfigError, match="Did you mean 'cutout'"):
        require_augment(("cutaut",))


def test_sources_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(DataError, match="small: its images are 6x6x1; those of some are 12x12x1"):
        Images([source(), source(side=6, name="small")], classes=4)
    with pytest.raises(DataError, match="labels that are not from 0 to 2"):
        Images([source()], classes=3)
