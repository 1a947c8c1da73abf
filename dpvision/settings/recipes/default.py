"""What runs when nothing but the data and epsilon is given."""

from __future__ import annotations

from dpvision.settings.training import Config


def default() -> Config:
    """A linear classifier below 5,000 units, a small convolutional network from there on.

    Paper: Abadi et al. 2016 (DP-SGD), with the average of the weights of De et al. 2022.
    Command: dpvision train DATA --epsilon 3
    Hardware and minutes: 2 CPU cores; digits 2 s, DermaMNIST 1 min, MNIST about 10 min (from the rate, not run).
    Expect at epsilon 3: digits 95.4%, DermaMNIST 67.5% (the most frequent class alone: 66.9%).
    """
    return Config()
