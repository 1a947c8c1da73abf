"""The network that DPMix was measured with: Lee et al. 2019, listed in table 5 of the NeuroMixGDP paper."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError


def dpmix_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """5x5 to 32, 5x5 to 48, a maximum over 2x2 after each, linear 100, 100 and the classes, all with ReLU.

    The paper's 357,690 weights are those of one channel of 32x32 and ten classes (MNIST with a border); from that it is
    inferred that biases are everywhere. The same layers have 359,290 in colour and 285,690 at 28x28.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"dpmix-cnn needs 4x4 pixels at least, not {height}x{width}. Fix: --model linear.")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 48, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48 * (height // 4) * (width // 4), 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )
