"""Small networks: a linear classifier, and convolutional networks of papers on private learning."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError

# The five convolutions of the small AlexNet: output channels in multiples of its width, and whether 3x3 max pooling
# with stride 2 follows.
ALEXNET = ((1, True), (2, True), (4, False), (4, False), (2, True))
ALEXNET_GROUPS = 16


def linear(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Multinomial logistic regression on the pixels, from zero weights."""
    head = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def small_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Strided convolutions with GroupNorm and tanh, which keeps gradients small (Papernot et al. 2021).

    There are at least two, each of which halves the image, until its side is at most 8: 28x28 becomes 14 and then 7.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"small-cnn needs at least 4x4 pixels, not {height}x{width}. Fix: --model linear.")
    layers: list[nn.Module] = []
    filters, kernel = 16, 5
    while len(layers) < 6 or max(height, width) > 8:
        layers += [nn.Conv2d(channels, filters, kernel, stride=2, padding=kernel // 2)]
        layers += [nn.GroupNorm(4, filters), nn.Tanh()]
        channels, filters, kernel = filters, min(2 * filters, 64), 3
        height, width = (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))


def tanh_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The two networks of Papernot et al. 2021 (arXiv 2007.14191), whose bounded activations keep gradients small.

    Their network for MNIST is used for grey images, the one for CIFAR-10 for colour images.
    """
    return (_tanh_for_grey if shape[0] == 1 else _tanh_for_colour)(shape, classes)


def _tanh_for_grey(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """8x8 to 16 with stride 2, 4x4 to 32 with stride 2, 2x2 max pooling after each, linear 32 (26,010 weights)."""
    _, height, width = shape
    if min(height, width) < 14:
        raise ConfigError(
            f"tanh-cnn needs at least 14x14 pixels for grey images, not {height}x{width}. Fix: --model small-cnn."
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
    """Two 3x3 convolutions and 2x2 max pooling, for 32, 64 and 128 channels; linear 128 (550,570 weights)."""
    channels, height, width = shape
    if min(height, width) < 8:
        raise ConfigError(f"tanh-cnn needs at least 8x8 pixels, not {height}x{width}. Fix: --model small-cnn.")
    layers: list[nn.Module] = []
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(filters, filters, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = filters
    inner = channels * (height // 8) * (width // 8)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inner, 128), nn.Tanh(), nn.Linear(128, classes))


def dpmix_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network of DPMix's experiments (Lee et al. 2019), listed in table 5 of the NeuroMixGDP paper.

    5x5 to 32, 5x5 to 48, 2x2 max pooling after each, linear 100, 100 and the classes, all with ReLU. The paper's
    357,690 weights are those for one channel of 32x32 and ten classes (MNIST with a border), which implies a bias in
    every layer. The same layers have 359,290 weights in colour and 285,690 at 28x28.
    """
    channels, height, width = shape
    if min(height, width) < 4:
        raise ConfigError(f"dpmix-cnn needs at least 4x4 pixels, not {height}x{width}. Fix: --model linear.")
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
    """The small AlexNet of contrastive learning on random images (Wang and Isola 2020, Baradad et al. 2021).

    Five 3x3 convolutions, two linear layers of `hidden` and the head; weights from N(0, 0.02^2). GroupNorm with 16
    groups replaces the encoder's batch statistics, and a classifier the projection to the unit sphere. The network was
    designed for 64x64 pixels; smaller images only make the first linear layer smaller.
    """
    channels, height, columns = shape
    if min(height, columns) < 15:
        raise ConfigError(f"small-alexnet needs at least 15x15 pixels, not {height}x{columns}. Fix: --model small-cnn.")
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
