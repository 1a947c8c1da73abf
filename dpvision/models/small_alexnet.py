"""The small AlexNet of contrastive learning on random images (Wang and Isola 2020, Baradad et al. 2021).

GroupNorm with 16 groups stands where the encoder had batch statistics; the last layer is a classifier instead of a
projection to the unit sphere. It was made for 64x64 pixels; smaller images only make the first linear layer smaller.
"""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError

GROUPS = 16
# Output channels of the five convolutions in units of `width`, and whether a maximum over 3x3 with stride 2 follows.
CONVOLUTIONS = ((1, True), (2, True), (4, False), (4, False), (2, True))


def small_alexnet(shape: tuple[int, int, int], classes: int, *, width: int = 96, hidden: int = 4096) -> nn.Module:
    """Five 3x3 convolutions, two linear layers of `hidden` and the head; weights from N(0, 0.02^2)."""
    channels, height, columns = shape
    if min(height, columns) < 15:
        raise ConfigError(f"small-alexnet needs 15x15 pixels at least, not {height}x{columns}. Fix: --model small-cnn.")
    layers: list[nn.Module] = []
    for factor, pool in CONVOLUTIONS:
        filters = factor * width
        layers += [nn.Conv2d(channels, filters, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, filters), nn.ReLU()]
        channels = filters
        if pool:
            layers.append(nn.MaxPool2d(3, stride=2))
            height, columns = (height - 1) // 2, (columns - 1) // 2
    inputs = channels * height * columns
    layers.append(nn.Flatten())
    for _ in range(2):
        layers += [nn.Linear(inputs, hidden, bias=False), nn.GroupNorm(GROUPS, hidden), nn.ReLU()]
        inputs = hidden
    model = nn.Sequential(*layers, nn.Linear(hidden, classes))
    model.apply(_initialise)
    return model


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
