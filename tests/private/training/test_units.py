"""Units: the images of a person."""

from __future__ import annotations

import numpy as np

from dpvision.private.training.private_sum import group_by_person


def test_a_persons_images_are_found_whatever_the_ids() -> None:
    persons = np.array([7, 2, 7, 9, 2, 7])
    images = group_by_person(persons)
    assert [sorted(images(u)) for u in range(3)] == [[1, 4], [0, 2, 5], [3]]
