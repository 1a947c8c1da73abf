"""A linear classifier on patches of images that no camera took: nothing public is needed, nothing is trained before."""

from __future__ import annotations

from dpvision.config import Config
from dpvision.recipes.randp import nearest

# The rate grows with epsilon, as Panda et al. 2022 (arXiv 2212.04486) find. By epsilon, chosen on CIFAR-10.
RATES = {
    0.1: {"lr": 2.0},
    0.5: {"lr": 10.0},
    1: {"lr": 15.0},
    2: {"lr": 25.0},
    3: {"lr": 35.0},
    8: {"lr": 50.0},
}


def patches(epsilon: float = 1.0) -> Config:
    """The mean of the features in one step, then a linear classifier, every image in each step."""
    return Config(
        recipe="patches",
        prior="patches",
        model="patches-2048",
        part="centred-head",
        full_batch=True,
        steps=101,
        momentum=0.9,
        release="last",
        **nearest(RATES, epsilon),
    )
