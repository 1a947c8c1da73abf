"""The wavelet scattering transform of an image, and classifiers on it, which have few weights and so little noise.

The classifiers are those of Tramer and Boneh 2021 (arXiv 2011.11660). The transform is that of Bruna and Mallat 2013,
with two scales, eight angles and two orders. With wavelets psi_{j,a} of scale j and angle a, and phi a Gaussian window
of width 4,

    S0 = x * phi,    S1 = |x * psi_{j,a}| * phi,    S2 = ||x * psi_{0,a}| * psi_{1,b}| * phi,

taken at every fourth pixel: 1 + 16 + 64 = 81 channels for each colour. Nothing is learned and nothing is random. The
result is that of kymatio's Scattering2D(J=2), with its order of channels and its padding.

Images are small, so their Fourier transforms are products with matrices: ten times the arithmetic of the fast transform
at more than ten times its rate. Pixels or frequencies come first, and last what is treated alike, such as the images.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from dpvision.errors import ConfigError
from dpvision.models.featured import Featured, in_pieces
from dpvision.models.small import linear
from dpvision.models.wavelets import fourier_of_pairs, fourier_of_real, inverse_fourier, local_means, morlets

ANGLES, SCALES = 8, 2
STEP = 2**SCALES
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
SMALLEST, LARGEST = 8, 256
# Numbers that are worked on together: about what fits the processor's own cache.
TOGETHER = 3 << 18
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


def _features(shape: tuple[int, int, int], mirrored: bool) -> tuple[nn.Module, tuple[int, int, int]]:
    """The fixed part and the shape of what it gives."""
    scattering = Scattering(shape)
    channels, height, width = scattering.shape
    normalised = nn.Sequential(scattering, Typical(shape[0]))
    return (Mirrored(normalised), (channels, height, (width + 1) // 2)) if mirrored else (normalised, scattering.shape)


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


class Scattering(nn.Module):
    """Images (N, channels, H, W) in [-1, 1], taken as [0, 1], to (N, 81 channels, H // 4, W // 4)."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < SMALLEST or max(height, width) > LARGEST:
            raise ConfigError(
                f"scattering takes images of {SMALLEST} to {LARGEST} pixels a side, not {height}x{width}. "
                "Fix: --size 32."
            )
        self.shape = (channels * CHANNELS, height // STEP, width // STEP)
        rows, columns = sides = (height // STEP + 2) * STEP, (width // STEP + 2) * STEP
        top, left = (rows - height) // 2, (columns - width) // 2
        self.padding = (left, columns - width - left, top, rows - height - top)
        fitting = max(1, TOGETHER // (channels * (1 + ANGLES) * ANGLES * rows * columns // 2))
        self.together = 1 << (fitting.bit_length() - 1)  # a power of two: no place in a product is rounded otherwise
        self.fine, self.coarse = (Moduli(morlets(sides, scale=j, angles=ANGLES), step=2**j) for j in range(SCALES))
        self.smooth, self.smooth_half = (Smooth(sides, resolution=j) for j in range(SCALES))

    def forward(self, x: Tensor) -> Tensor:
        return scatter(x, self)


def scatter(x: Tensor, by: Scattering) -> Tensor:
    """The transform, with the same bits for an image in any batch.

    It answers to torch's function protocol: a per-example engine sees one operation on the images.
    """
    if has_torch_function_unary(x):
        return handle_torch_function(scatter, (x,), x, by)
    return in_pieces(partial(_some, by=by), x, size=by.together)


def _some(x: Tensor, by: Scattering) -> Tensor:
    """The wavelets of scale 0 give eight moduli of the image; those of scale 1 are applied to it and to them."""
    padded = F.pad(x * 0.5 + 0.5, by.padding, mode="reflect").flatten(0, 1)
    pixels = padded.permute(1, 2, 0).unsqueeze(2).contiguous()  # (rows, columns, 1, colours of images)
    maps = torch.cat([pixels, by.fine(pixels).squeeze(3)], dim=2)
    finer, coarser = by.smooth(maps), by.smooth_half(by.coarse(maps))
    means = [finer.permute(3, 2, 0, 1), coarser.permute(4, 3, 2, 0, 1).flatten(1, 2)]
    return torch.cat(means, dim=1).view(-1, *by.shape)


class Moduli(nn.Module):
    """|x * psi_a| at every `step`-th pixel for the angles a: (rows, columns, k, n) to (.., .., angles, k, n).

    Of the spectrum of a real image one half is computed; the other is its mirror image, with conjugate values. To take
    every second pixel is to take the mean of the four frequencies that are then the same.
    """

    to_rows: Tensor
    to_columns: Tensor
    sources: Tensor  # where in the half spectrum the numbers stand that each wave is made of
    wavelets: Tensor  # (frequencies and parts of the waves, angles, frequencies that fall together)
    from_columns: Tensor
    from_rows: Tensor

    def __init__(self, wavelets: NDArray[np.float64], *, step: int) -> None:
        super().__init__()
        self.angles, rows, columns = wavelets.shape
        self.left = rows // step, columns // step
        _keep(self, "to_rows", fourier_of_real(rows)[: rows + 2])
        _keep(self, "to_columns", fourier_of_pairs(columns))
        _keep(self, "from_columns", inverse_fourier(self.left[1]))
        _keep(self, "from_rows", inverse_fourier(self.left[0]))
        row, column = np.indices((rows, columns))
        mirrored = row > rows // 2
        place = np.where(mirrored, (rows - row) * columns + -column % columns, row * columns + column)
        pairs = np.stack([2 * place, 2 * place + 1])
        signs = np.stack([np.ones_like(row), np.where(mirrored, -1, 1)])
        factors = _fold(wavelets[:, None] * signs / step**2, step)  # (r, c, together, angles, parts)
        _keep(self, "wavelets", factors.transpose(0, 1, 4, 3, 2).reshape(-1, self.angles, step**2))
        order = _fold(pairs, step).transpose(0, 1, 3, 2).reshape(-1)
        self.register_buffer("sources", torch.from_numpy(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (r, c) = x.shape[:2], self.left
        half = (self.to_rows @ x.view(rows, -1)).view(rows // 2 + 1, 2 * columns, -1)
        spectrum = _each(self.to_columns, half).flatten(0, 1)
        folded = spectrum.index_select(0, self.sources).view(*self.wavelets.shape[::2], -1)
        waves = torch.bmm(self.wavelets, folded) if folded.shape[1] > 1 else self.wavelets * folded
        half = _each(self.from_columns, waves.view(r, 2 * c, -1))
        real, imaginary = (self.from_rows @ half.view(2 * r, -1)).view(2, r, c, self.angles, *x.shape[2:])
        return (real * real).addcmul_(imaginary, imaginary).sqrt_()


class Smooth(nn.Module):
    """The means under the Gaussian window around every fourth pixel of the image: (rows, columns, ...)."""

    rows: Tensor
    columns: Tensor

    def __init__(self, sides: tuple[int, int], *, resolution: int) -> None:
        super().__init__()
        for name, side in zip(("rows", "columns"), sides, strict=True):
            _keep(self, name, local_means(side, scale=SCALES, resolution=resolution))

    def forward(self, x: Tensor) -> Tensor:
        half = (self.rows @ x.view(len(x), -1)).view(len(self.rows), x.shape[1], -1)
        return _each(self.columns, half).view(len(self.rows), len(self.columns), *x.shape[2:])


def _fold(values: NDArray[Any], step: int) -> NDArray[Any]:
    """(..., rows, columns) -> (rows / step, columns / step, step * step, ...): those that fall together in one axis."""
    *others, rows, columns = values.shape
    blocks = values.reshape(*others, step, rows // step, step, columns // step)
    return np.moveaxis(blocks, (-3, -1, -4, -2), (0, 1, 2, 3)).reshape(rows // step, columns // step, step**2, *others)


def _each(matrix: Tensor, blocks: Tensor) -> Tensor:
    """The product with every block."""
    return torch.bmm(matrix.expand(len(blocks), -1, -1), blocks)


def _keep(module: nn.Module, name: str, values: NDArray[np.float64]) -> None:
    """As a buffer that is not part of the weights."""
    module.register_buffer(name, torch.from_numpy(values.astype(np.float32)), persistent=False)
