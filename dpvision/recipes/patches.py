"""A linear classifier on patches of images that no camera took: nothing public is needed, nothing is trained before."""

from __future__ import annotations

from dpvision.config import Config


def patches() -> Config:
    """The mean of the features in one step, then a linear classifier, every image in each step."""
    return Config(
        recipe="patches",
        prior="patches",
        part="centred-head",
        full_batch=True,
        steps=41,
        final_noise=0.9,
        momentum=0.8,
        release="last",
    )
