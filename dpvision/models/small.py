"""Small networks: a linear classifier, and convolutional networks from papers on private learning."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError

# The five convolutions of the small AlexNet: output channels as a multiple of the width, and whether 3x3 max pooling
# with stride 2 follows.
ALEXNET = ((1, True), (2, True), (4, False), (4, False), (2, True))
ALEXNET_GROUPS = 16


def linear(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build a multinomial logistic regression on the pixels, with zero weights."""
    head = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def small_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build strided convolutions with GroupNorm and tanh, which keeps gradients small (Papernot et al. 2021).

    Each convolution halves the image. There are at least two, until the longer side is at most 8, as in 28, 14, 7.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"small-cnn needs at least 4x4 pixels, not {height}x{width}. Fix: use --model linear.")
    layers: list[nn.Module] = []
    filters, kernel = 16, 5
    while len(layers) < 6 or max(height, width) > 8:
        layers += [nn.Conv2d(channels, filters, kernel, stride=2, padding=kernel // 2)]
        layers += [nn.GroupNorm(4, filters), nn.Tanh()]
        channels, filters, kernel = filters, min(2 * filters, 64), 3
        height, width = (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))


def tanh_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build a network of Papernot et al. 2021 (arXiv 2007.14191), whose bounded activations keep gradients small.

    Their network for MNIST is used for grey images, and the one for CIFAR-10 for colour images.
    """
    return (_tanh_for_grey if shape[0] == 1 else _tanh_for_colour)(shape, classes)


def _tanh_for_grey(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the network for MNIST, with two strided convolutions and 26,010 weights."""
    _, height, width = shape
    if min(height, width) < 14:
        raise ConfigError(
            f"tanh-cnn needs at least 14x14 pixels for grey images, not {height}x{width}. Fix: use --model small-cnn."
        )
    rows, columns = ((n // 2 - 1 - 4) // 2 for n in (height, width))
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * rows * columns, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


def _tanh_for_colour(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the network for CIFAR-10, with six 3x3 convolutions and 550,570 weights."""
    channels, height, width = shape
    if min(height, width) < 8:
        raise ConfigError(f"tanh-cnn needs at least 8x8 pixels, not {height}x{width}. Fix: use --model small-cnn.")
    layers: list[nn.Module] = []
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = filters
    inner = channels * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inner, 128), nn.Tanh(), nn.Linear(128, classes))


def dpmix_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build the network of the DPMix experiments (Lee et al. 2019), from table 5 of the NeuroMixGDP paper.

    Two 5x5 convolutions with max pooling and three linear layers, all with ReLU. The 357,690 weights in the paper are
    those for 32x32 grey images (MNIST with a border) and ten classes, which implies a bias in every layer. The same
    layers have 359,290 weights for colour images and 285,690 at 28x28.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"dpmix-cnn needs at least 4x4 pixels, not {height}x{width}. Fix: use --model linear.")
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


def small_alexnet(shape: tuple[int, int, int], classes: int, *, width: int = 96, hidden: int = 4096) -> nn.Module:
    """Build the small AlexNet used for contrastive learning (Wang and Isola 2020, Baradad et al. 2021).

    It has five 3x3 convolutions, two linear layers of width `hidden` and the head, with weights from N(0, 0.02^2).
    GroupNorm with 16 groups replaces the encoder's batch statistics, and a classifier replaces the projection to the
    unit sphere. The network was designed for 64x64 pixels; for smaller images, only the first linear layer is smaller.
    """
    channels, height, columns = shape
    if min(height, columns) < 15:
        raise ConfigError(
            f"small-alexnet needs at least 15x15 pixels, not {height}x{columns}. Fix: use --model small-cnn."
        )
    layers: list[nn.Module] = []
    for factor, pool in ALEXNET:
        filters = factor * width
        layers += [
            nn.Conv2d(channels, filters, 3, padding=1, bias=False),
            nn.GroupNorm(ALEXNET_GROUPS, filters),
            nn.ReLU(),
        ]
        channels = filters
        if pool:
            layers.append(nn.MaxPool2d(3, stride=2))
            height, columns = (height - 1) // 2, (columns - 1) // 2
    inputs = channels * height * columns
    layers.append(nn.Flatten())
    for _ in range(2):
        layers += [nn.Linear(inputs, hidden, bias=False), nn.GroupNorm(ALEXNET_GROUPS, hidden), nn.ReLU()]
        inputs = hidden
    model = nn.Sequential(*layers, nn.Linear(hidden, classes))
    model.apply(_initialise_alexnet)
    return model


def _initialise_alexnet(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
