"""One unit and its views as tensors.

Follow one private image: `Inputs` makes a tensor of it, `fetcher` makes views of that tensor for the unit it belongs
to, and the result goes to the clipped sum. Every step is a function of the unit alone and of coins tossed for it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvision.data import Split
from dpvision.errors import ConfigError
from dpvision.models.inputs import Inputs
from dpvision.private.training.private_sum import Fetch
from dpvision.views import UnitRandom, Views


def units(split: Split, unit: str) -> int:
    """How many there are: for the sampler's coins, and for `n` where it was not declared."""
    if unit == "image":
        return len(split.labels)
    if split.persons is None:
        raise ConfigError("--unit person needs to know who is on each image, such as a CSV column 'person'.")
    return len(np.unique(split.persons))


def fetcher(split: Split, unit: str, inputs: Inputs, views: Views | None) -> Fetch:
    """Views and targets of the units drawn; those of one image follow each other, and so do a person's images."""
    images_of: Callable[[int], NDArray[np.int64]] | None = None
    if unit == "person":
        assert split.persons is not None
        images_of = by_person(split.persons)

    def fetch(drawn: NDArray[np.int64], seed: int) -> tuple[Tensor, Tensor, list[int]]:
        rows, counts = drawn, [1] * len(drawn)
        if images_of is not None and len(drawn):
            parts = [images_of(int(i)) for i in drawn]
            rows, counts = np.concatenate(parts), [len(p) for p in parts]
        images, labels = inputs(rows), torch.from_numpy(np.asarray(split.labels[rows], dtype=np.int64))
        if views is None:
            return images, labels, counts
        made, targets = views(images, labels, UnitRandom.grouped(seed, drawn, counts))
        return made, targets, [count * views.count for count in counts]

    return fetch


def by_person(persons: NDArray[np.int64]) -> Callable[[int], NDArray[np.int64]]:
    """The images of each person, so that a person is one unit and their images are its views."""
    order = np.argsort(persons, kind="stable")
    _, starts = np.unique(persons[order], return_index=True)  # ids need not be consecutive; nobody is without images
    images = np.split(order, starts[1:])
    return lambda person: images[person]
