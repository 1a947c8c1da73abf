"""Multinomial logistic regression on the pixels."""

from __future__ import annotations

from dataclasses import replace

from dpvision.config import Config
from dpvision.recipes.default import default


def linear() -> Config:
    """The fewest weights, so the least noise: the one to beat on small data.

    Paper: Abadi et al. 2016 (DP-SGD).
    Command: dpvision train digits --epsilon 3 --recipe linear
    Hardware and minutes: 2 CPU cores, seconds.
    Expect: see the README's table, measured by `python -m benchmarks.first_learner`.
    """
    return replace(default(), recipe="linear", model="linear")
