"""Classifiers on scattering features (Tramer and Boneh 2021, arXiv 2011.11660): few weights, hence little noise."""

from __future__ import annotations

from torch import nn

from dpvision.models.featured import Featured
from dpvision.models.scattering import CHANNELS, Scattering
from dpvision.models.small import linear

# Of neighbouring channels of one colour. They divide the 81 channels of grey images and the 243 of colour images.
GROUPS = 27
assert CHANNELS % GROUPS == 0


def scatter_linear(shape: tuple[int, int, int], classes: int) -> Featured:
    """Logistic regression on normalised features, from zero weights."""
    scattering = Scattering(shape)
    return Featured(_normalised(scattering), linear(scattering.shape, classes), piece=None)


def scatter_cnn(shape: tuple[int, int, int], classes: int) -> Featured:
    """In colour: 3x3 convolution to 64, tanh, maximum over 2x2, the same without pooling, linear (187,210 weights).

    In grey the authors' smaller one: 3x3 to 16 with stride 2, 3x3 to 32, linear 32, linear, tanh between (33,066).
    """
    scattering = Scattering(shape)
    channels, height, width = scattering.shape
    if shape[0] == 1:
        inner = 32 * ((height + 1) // 2) * ((width + 1) // 2)
        layers = [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()]
        head = [nn.Linear(inner, 32), nn.Tanh(), nn.Linear(32, classes)]
    else:
        layers = [nn.Conv2d(channels, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()]
        head = [nn.Linear(64 * (height // 2) * (width // 2), classes)]
    return Featured(_normalised(scattering), nn.Sequential(*layers, nn.Flatten(), *head), piece=None)


def _normalised(scattering: Scattering) -> nn.Module:
    """Mean zero and variance one over each group of channels of each image: nothing of the data set is needed."""
    return nn.Sequential(scattering, nn.GroupNorm(GROUPS, scattering.shape[0], affine=False))
