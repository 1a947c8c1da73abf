"""Models small enough for a laptop: a linear classifier and a convolutional network with bounded activations."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError


def linear(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Multinomial logistic regression on the pixels, from zero weights."""
    head = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def small_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Strided convolutions with GroupNorm and tanh, which keeps gradients small (Papernot et al. 2021).

    At least two, each halving the image, until its side is at most 8: 28x28 becomes 14 and 7.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"small-cnn needs 4x4 pixels at least, not {height}x{width}. Fix: --model linear.")
    layers: list[nn.Module] = []
    filters, kernel = 16, 5
    while len(layers) < 6 or max(height, width) > 8:
        layers += [nn.Conv2d(channels, filters, kernel, stride=2, padding=kernel // 2)]
        layers += [nn.GroupNorm(4, filters), nn.Tanh()]
        channels, filters, kernel = filters, min(2 * filters, 64), 3
        height, width = (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))
