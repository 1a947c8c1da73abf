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


def small_cnn(shape: tuple[int, int, int], classes: int, width: int = 16) -> nn.Module:
    """Convolutions with tanh, which keeps gradients small (Papernot et al. 2021), each halving the image.

    As many halvings as the image allows, at most three: 8x8 gets two, 28x28 and larger three.
    """
    channels, height, width_px = shape
    if min(height, width_px) < 4:
        raise ConfigError(
            f"small-cnn needs images of at least 4x4 pixels, not {height}x{width_px}. Fix: --model linear."
        )
    layers: list[nn.Module] = []
    while min(height, width_px) >= 4 and len(layers) < 12:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.Tanh(), nn.AvgPool2d(2)]
        channels, width, height, width_px = width, width * 2, height // 2, width_px // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width_px, classes))
