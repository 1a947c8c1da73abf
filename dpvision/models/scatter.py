"""Classifiers on scattering features (Tramer and Boneh 2021, arXiv 2011.11660): few weights, hence little noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpvision.models.featured import Featured
from dpvision.models.scattering import ANGLES, Scattering
from dpvision.models.small import linear

# Mean and deviation of each kind of channel over images of a random process, dead leaves (tests/models/dead_leaves.py).
AVERAGE = (0.5, 0.16)
FINE, COARSE = (0.0130, 0.0106), (0.0205, 0.0148)  # of the first order
TURNED = ((0.0038, 0.0027), (0.0032, 0.0022), (0.0022, 0.0014), (0.0015, 0.00094), (0.0013, 0.00084))
# of the second order, by the angle between the two wavelets: 0, 22.5, 45, 67.5 and 90 degrees


def scatter_linear(shape: tuple[int, int, int], classes: int, *, mirrored: bool = False) -> Featured:
    """Logistic regression on normalised features, from zero weights."""
    prefix, found = _features(shape, mirrored)
    return Featured(prefix, linear(found, classes), piece=None)


def scatter_cnn(shape: tuple[int, int, int], classes: int, *, mirrored: bool = False) -> Featured:
    """In colour: 3x3 convolution to 64, tanh, maximum over 2x2, the same without pooling, linear (187,210 weights).

    In grey the authors' smaller one: 3x3 to 16 with stride 2, 3x3 to 32, linear 32, linear, tanh between (33,066).
    """
    prefix, (channels, height, width) = _features(shape, mirrored)
    if shape[0] == 1:
        inner = 32 * ((height + 1) // 2) * ((width + 1) // 2)
        layers = [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()]
        head = [nn.Linear(inner, 32), nn.Tanh(), nn.Linear(32, classes)]
    else:
        layers = [nn.Conv2d(channels, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()]
        head = [nn.Linear(64 * (height // 2) * (width // 2), classes)]
    return Featured(prefix, nn.Sequential(*layers, nn.Flatten(), *head), piece=None)


class Typical(nn.Module):
    """(S - mean) / deviation of each channel, as they are in images of a random process.

    The authors take both from the private images, which has its price; here they are constants.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, colours: int) -> None:
        super().__init__()
        turns = [abs(a - b) for a in range(ANGLES) for b in range(ANGLES)]
        kinds = [AVERAGE, *[FINE] * ANGLES, *[COARSE] * ANGLES, *(TURNED[min(t, ANGLES - t)] for t in turns)]
        mean, deviation = torch.tensor(kinds * colours).T.reshape(2, -1, 1, 1)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("scale", 1 / deviation, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.scale


class Mirrored(nn.Module):
    """(S(x) + S(x')) / 2, where x' is the mirror image; the left half of it, as the right half is nearly the same.

    For images that mean the same in a mirror, which digits do not: half the weights, and more accurate ones.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        both = (self.features(x) + self.features(x.flip(3))) / 2
        return both[..., : (both.shape[3] + 1) // 2].contiguous()


def _features(shape: tuple[int, int, int], mirrored: bool) -> tuple[nn.Module, tuple[int, int, int]]:
    """The fixed part and the shape of what it gives."""
    scattering = Scattering(shape)
    channels, height, width = scattering.shape
    normalised = nn.Sequential(scattering, Typical(shape[0]))
    return (Mirrored(normalised), (channels, height, (width + 1) // 2)) if mirrored else (normalised, scattering.shape)
