"""Networks with tanh, whose bounded activations keep gradients small (Papernot et al. 2021, arXiv 2007.14191)."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError


def tanh_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The paper's two networks: the one of MNIST for grey images, the one of CIFAR-10 for colour."""
    return (_for_grey if shape[0] == 1 else _for_colour)(shape, classes)


def _for_grey(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """8x8 to 16 with stride 2, 4x4 to 32 with stride 2, a maximum over 2x2 after each, linear 32 (26,010 weights)."""
    _, height, width = shape
    if min(height, width) < 14:
        raise ConfigError(
            f"tanh-cnn needs 14x14 pixels of grey at least, not {height}x{width}. Fix: --model small-cnn."
        )
    left = [(n // 2 - 1 - 4) // 2 for n in (height, width)]
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * left[0] * left[1], 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def _for_colour(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two 3x3 convolutions and a maximum over 2x2, for 32, 64 and 128 channels; linear 128 (550,570 weights)."""
    channels, height, width = shape
    if min(height, width) < 8:
        raise ConfigError(f"tanh-cnn needs 8x8 pixels at least, not {height}x{width}. Fix: --model small-cnn.")
    layers: list[nn.Module] = []
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = filters
    inner = channels * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inner, 128), nn.Tanh(), nn.Linear(128, classes))
