"""What runs when nothing but the data and epsilon is given."""

from __future__ import annotations

from dpvision.config import Config


def default() -> Config:
    """A linear classifier below 5,000 units, a small convolutional network from there on.

    Paper: Abadi et al. 2016 (DP-SGD), with the average of the weights of De et al. 2022.
    Command: dpvision train DATA --epsilon 3
    Hardware and minutes: 2 CPU cores; digits 3 s, MNIST about 6 min.
    Expect: see the README's table, measured by `python -m benchmarks.first_learner`.
    """
    return Config()
