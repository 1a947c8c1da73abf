"""Units: the images of a person, and views whose random numbers belong to one unit alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpvision.core.noise import ARITHMETIC_SLACK
from dpvision.data import Split
from dpvision.models.inputs import Inputs
from dpvision.private.engine import ClippedSum
from dpvision.private.training.network import each_loss
from dpvision.private.training.private_sum import count_units, fetcher, group_by_person
from dpvision.views import Views


def test_a_persons_images_are_found_whatever_the_ids() -> None:
    persons = np.array([7, 2, 7, 9, 2, 7])
    images = group_by_person(persons)
    assert [sorted(images(u)) for u in range(3)] == [[1, 4], [0, 2, 5], [3]]
    split = Split(np.zeros((6, 2, 2, 1), np.uint8), np.zeros(6, np.int64), persons)
    assert count_units(split, "person") == 3, "the other numbers are persons of the test split"
    _, _, counts = fetcher(split, "person", Inputs(split), None)(np.arange(3), 0)
    assert counts == [2, 3, 1]


@pytest.mark.parametrize("physical", [None, 16])
def test_a_person_is_one_unit_with_any_number_of_images(physical: int | None) -> None:
    """Up to many more than pass at once; whoever they are, one person moves the sum by at most the clipping norm."""
    sizes = [1, 15, 16, 17, 63, 64, 65, 257, 1025]
    persons = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (len(persons), 4, 4, 1), dtype=np.uint8), persons % 3, persons)
    fetch = fetcher(split, "person", Inputs(split), None)
    images, _, counts = fetch(np.arange(len(sizes)), 0)
    assert counts == sizes and len(images) == sum(sizes)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    clipped_sum = ClippedSum(model, each_loss, clip=0.01, physical=physical)
    for person in range(len(sizes)):
        assert float(clipped_sum.sum([fetch(np.array([person]), 0)]).norm()) <= 0.01 * (1 + ARITHMETIC_SLACK)


@pytest.mark.parametrize("unit", ["image", "person"])
def test_views_of_a_unit_do_not_depend_on_the_others_in_its_part(unit: str) -> None:
    """Whoever is fetched before a unit or together with it: its views are the same."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8), np.arange(12) % 3
    split = Split(images, labels, np.arange(12) // 2)
    views = Views(augment=("crop", "flip"), base=3, self_mix=2, classes=3)
    fetch = fetcher(split, unit, Inputs(split), views)
    drawn = np.array([1, 3, 4, 5])
    together, targets, counts = fetch(drawn, 7)
    for number, (mine, target) in enumerate(zip(together.split(counts), targets.split(counts), strict=True)):
        alone, alone_target, _ = fetch(drawn[number : number + 1], 7)
        assert torch.equal(alone, mine) and torch.equal(alone_target, target)
    assert not torch.equal(fetch(drawn, 8)[0], together), "another step has other views"
