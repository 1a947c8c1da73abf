"""A small convolutional network with tanh and GroupNorm."""

from __future__ import annotations

from dataclasses import replace

from dpvision.config import Config
from dpvision.recipes.default import default


def small_cnn() -> Config:
    """Three convolutions with bounded activations, for some ten thousand images on a laptop.

    Paper: Papernot et al. 2021 (tempered activations), with GroupNorm as De et al. 2022.
    Command: dpvision train mnist.npz --epsilon 3 --recipe small-cnn
    Hardware and minutes: 2 CPU cores; see the README's table.
    Expect: see the README's table, measured by `python -m benchmarks.first_learner`.
    """
    return replace(default(), recipe="small-cnn", model="small-cnn")
