"""The wavelet scattering transform of an image, and classifiers on it with few weights and therefore little noise.

The classifiers are those of Tramer and Boneh 2021 (arXiv 2011.11660). The transform is that of Bruna and Mallat 2013,
with two scales, eight angles and two orders. With wavelets psi_{j,a} of scale j and angle a, and phi a Gaussian window
of width 4,

    S0 = x * phi,    S1 = |x * psi_{j,a}| * phi,    S2 = ||x * psi_{0,a}| * psi_{1,b}| * phi,

taken at every fourth pixel: 1 + 16 + 64 = 81 channels for each colour. Nothing is learned and nothing is random. The
result is the same as that of kymatio's Scattering2D(J=2), including the order of channels and the padding.

The parameters of the filters are those of Bruna and Mallat 2013, as in kymatio. In space, with r = (r1, r2) the
position rotated by the angle theta, and s the slant,

    gabor(u) = exp(-(r1^2 + s^2 r2^2) / (2 sigma^2) + i xi r1) * s / (2 pi sigma^2),    made periodic,

and a Morlet wavelet is a Gabor function minus the multiple of its envelope that makes its mean zero.

Because images are small, their Fourier transforms are computed as products with real matrices, which need ten times the
arithmetic of the fast transform but run at more than ten times its rate. Pixels or frequencies are the first axes, and
batch-like axes, such as the images, are the last. The real and imaginary parts of complex numbers have a separate axis,
before or after the axis of positions, so that the operands of each product are contiguous and nothing is copied.
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
from dpvision.models.featured import Featured, apply_in_pieces, piece_on
from dpvision.models.small import linear

ANGLES, SCALES = 8, 2
STEP = 2**SCALES
CHANNELS = 1 + SCALES * ANGLES + ANGLES**2
MIN_SIDE, MAX_SIDE = 8, 256
# How many numbers to process together: about what fits in a core's cache.
IN_CACHE = 3 << 18
# Mean and standard deviation of each kind of channel over dead-leaves images (tests/models/dead_leaves.py).
AVERAGE = (0.5, 0.16)
FINE, COARSE = (0.0130, 0.0106), (0.0205, 0.0148)  # of the first order
TURNED = ((0.0038, 0.0027), (0.0032, 0.0022), (0.0022, 0.0014), (0.0015, 0.00094), (0.0013, 0.00084))
# of the second order, by the angle between the two wavelets: 0, 22.5, 45, 67.5 and 90 degrees

Matrix = NDArray[np.float64]
# The value of pi that kymatio uses here. Its outputs are the reference, and a difference of 3e-5 would be visible.
PI = 3.1415
SIGMA, XI = 0.8, 3 * np.pi / 4
# Number of copies on each side that are added up to make a filter periodic.
COPIES = 2


def scatter_linear(shape: tuple[int, int, int], classes: int, *, mirrored: bool = False) -> Featured:
    """Build a logistic regression on normalised features, with zero weights."""
    prefix, features = _prefix(shape, mirrored)
    return Featured(prefix, linear(features, classes), piece=None)


def scatter_cnn(shape: tuple[int, int, int], classes: int, *, mirrored: bool = False) -> Featured:
    """Build the authors' CNN for colour images (187,210 weights), or their smaller one for grey images (33,066)."""
    prefix, (channels, height, width) = _prefix(shape, mirrored)
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


def _prefix(shape: tuple[int, int, int], mirrored: bool) -> tuple[nn.Module, tuple[int, int, int]]:
    """Build the frozen part; return it and the shape of its output."""
    scattering = Scattering(shape)
    channels, height, width = scattering.shape
    prefix = nn.Sequential(scattering, NormaliseChannels(shape[0]))
    return (Mirrored(prefix), (channels, height, (width + 1) // 2)) if mirrored else (prefix, scattering.shape)


class NormaliseChannels(nn.Module):
    """Normalise each channel as (S - mean) / std, with constants from images of a random process.

    The authors compute both constants from the private images, at a privacy cost.
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
    """The left half of (S(x) + S(x')) / 2, where x' is the mirror image; the right half is nearly the same.

    For images whose class does not change when mirrored (unlike digits), this halves the number of weights and
    increases accuracy.
    """

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        both = (self.features(x) + self.features(x.flip(3))) / 2
        return both[..., : (both.shape[3] + 1) // 2].contiguous()


class Scattering(nn.Module):
    """The scattering transform (N, channels, H, W) -> (N, 81 channels, H // 4, W // 4).

    Images in [-1, 1] are scaled to [0, 1] first.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < MIN_SIDE or max(height, width) > MAX_SIDE:
            raise ConfigError(
                f"scattering needs images of {MIN_SIDE} to {MAX_SIDE} pixels per side, not {height}x{width}. "
                "Fix: use --size 32."
            )
        self.shape = (channels * CHANNELS, height // STEP, width // STEP)
        rows, columns = sides = (height // STEP + 2) * STEP, (width // STEP + 2) * STEP
        top, left = (rows - height) // 2, (columns - width) // 2
        self.padding = (left, columns - width - left, top, rows - height - top)
        fitting = max(1, IN_CACHE // (channels * (1 + ANGLES) * ANGLES * rows * columns // 2))
        self.together = 1 << (fitting.bit_length() - 1)  # a power of two, so that all images are rounded alike
        self.fine, self.coarse = (Moduli(morlets(sides, scale=j, angles=ANGLES), step=2**j) for j in range(SCALES))
        self.smooth, self.smooth_half = (Smooth(sides, resolution=j) for j in range(SCALES))

    def forward(self, x: Tensor) -> Tensor:
        return scatter(x, self)


def scatter(x: Tensor, by: Scattering) -> Tensor:
    """Compute the transform, whose bits for an image do not depend on the rest of the batch.

    It is a single operation in torch's function protocol, opaque to a per-example engine.
    """
    if has_torch_function_unary(x):
        return handle_torch_function(scatter, (x,), x, by)
    return apply_in_pieces(partial(_scatter_piece, by=by), x, size=piece_on(x.device, by.together))


def _scatter_piece(x: Tensor, by: Scattering) -> Tensor:
    """Transform a piece. Wavelets of scale 0 give eight moduli of the image; those of scale 1 apply to it and these."""
    padded = F.pad(x * 0.5 + 0.5, by.padding, mode="reflect").flatten(0, 1)
    pixels = padded.permute(1, 2, 0).unsqueeze(2).contiguous()  # (rows, columns, 1, colours of images)
    maps = torch.cat([pixels, by.fine(pixels).squeeze(3)], dim=2)
    finer, coarser = by.smooth(maps), by.smooth_half(by.coarse(maps))
    means = [finer.permute(3, 2, 0, 1), coarser.permute(4, 3, 2, 0, 1).flatten(1, 2)]
    return torch.cat(means, dim=1).view(-1, *by.shape)


class Moduli(nn.Module):
    """|x * psi_a| at every `step`-th pixel for all angles a: (rows, columns, k, n) -> (.., .., angles, k, n).

    Only half of the spectrum of a real image is computed; the other half is its mirror image with conjugate values.
    Taking every second pixel averages the four frequencies that alias to one.
    """

    to_rows: Tensor
    to_columns: Tensor
    sources: Tensor  # for each number of a wave, its index in the half spectrum
    wavelets: Tensor  # (frequencies and parts of the waves, angles, aliased frequencies)
    from_columns: Tensor
    from_rows: Tensor

    def __init__(self, wavelets: NDArray[np.float64], *, step: int) -> None:
        super().__init__()
        self.angles, rows, columns = wavelets.shape
        self.left = rows // step, columns // step
        _register(self, "to_rows", fourier_of_real(rows)[: rows + 2])
        _register(self, "to_columns", fourier_of_pairs(columns))
        _register(self, "from_columns", inverse_fourier(self.left[1]))
        _register(self, "from_rows", inverse_fourier(self.left[0]))
        row, column = np.indices((rows, columns))
        mirrored = row > rows // 2
        index = np.where(mirrored, (rows - row) * columns + -column % columns, row * columns + column)
        pairs = np.stack([2 * index, 2 * index + 1])
        signs = np.stack([np.ones_like(row), np.where(mirrored, -1, 1)])
        factors = _fold(wavelets[:, None] * signs / step**2, step)  # (r, c, aliased, angles, parts)
        _register(self, "wavelets", factors.transpose(0, 1, 4, 3, 2).reshape(-1, self.angles, step**2))
        order = _fold(pairs, step).transpose(0, 1, 3, 2).reshape(-1)
        self.register_buffer("sources", torch.from_numpy(order), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (r, c) = x.shape[:2], self.left
        half = (self.to_rows @ x.view(rows, -1)).view(rows // 2 + 1, 2 * columns, -1)
        spectrum = _multiply(self.to_columns, half).flatten(0, 1)
        folded = spectrum.index_select(0, self.sources).view(*self.wavelets.shape[::2], -1)
        waves = torch.bmm(self.wavelets, folded) if folded.shape[1] > 1 else self.wavelets * folded
        half = _multiply(self.from_columns, waves.view(r, 2 * c, -1))
        real, imaginary = (self.from_rows @ half.view(2 * r, -1)).view(2, r, c, self.angles, *x.shape[2:])
        return (real * real).addcmul_(imaginary, imaginary).sqrt_()


class Smooth(nn.Module):
    """Means under a Gaussian window around every fourth pixel of the image, as (rows, columns, ...)."""

    rows: Tensor
    columns: Tensor

    def __init__(self, sides: tuple[int, int], *, resolution: int) -> None:
        super().__init__()
        for name, side in zip(("rows", "columns"), sides, strict=True):
            _register(self, name, local_means(side, scale=SCALES, resolution=resolution))

    def forward(self, x: Tensor) -> Tensor:
        half = (self.rows @ x.view(len(x), -1)).view(len(self.rows), x.shape[1], -1)
        return _multiply(self.columns, half).view(len(self.rows), len(self.columns), *x.shape[2:])


def _fold(values: NDArray[Any], step: int) -> NDArray[Any]:
    """Collect aliased frequencies in one axis: (..., rows, columns) -> (rows / step, columns / step, step^2, ...)."""
    *others, rows, columns = values.shape
    blocks = values.reshape(*others, step, rows // step, step, columns // step)
    return np.moveaxis(blocks, (-3, -1, -4, -2), (0, 1, 2, 3)).reshape(rows // step, columns // step, step**2, *others)


def _multiply(matrix: Tensor, blocks: Tensor) -> Tensor:
    """Multiply every block by the matrix from the left."""
    return torch.bmm(matrix.expand(len(blocks), -1, -1), blocks)


def _register(module: nn.Module, name: str, values: NDArray[np.float64]) -> None:
    """Register values in float32 as a buffer that is not saved with the weights."""
    module.register_buffer(name, torch.from_numpy(values.astype(np.float32)), persistent=False)


def morlets(sides: tuple[int, int], *, scale: int, angles: int) -> NDArray[np.float64]:
    """Return the Fourier transforms (angles, *sides) of the wavelets of width 2^scale, which are real."""
    slant = 4 / angles
    transforms = []
    for number in range(angles):
        theta = (angles // 2 - 1 - number) * np.pi / angles
        wave, envelope = (_gabor(sides, SIGMA * 2**scale, theta, xi, slant) for xi in (XI / 2**scale, 0.0))
        transforms.append(np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real)
    return np.stack(transforms)


def _gabor(sides: tuple[int, int], sigma: float, theta: float, xi: float, slant: float) -> NDArray[np.complex128]:
    """Return the periodic Gabor function in space or, if xi = 0, its envelope."""
    rows, columns = (np.arange(-COPIES * n, (COPIES + 1) * n, dtype=np.float64) for n in sides)
    along = np.cos(theta) * rows[:, None] + np.sin(theta) * columns
    across = np.cos(theta) * columns - np.sin(theta) * rows[:, None]
    values = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * xi * along)
    copies = 2 * COPIES + 1
    periodic = values.reshape(copies, sides[0], copies, sides[1]).sum((0, 2))
    return periodic * slant / (2 * PI * sigma**2)


def local_means(side: int, *, scale: int, resolution: int) -> NDArray[np.float64]:
    """Return the Gaussian of width 2^scale along one axis, as a matrix.

    The matrix maps `side` / 2^resolution values to the means around every 2^scale-th pixel. The two-dimensional window
    is a product, so two such matrices apply it. The first and last means belong to the padding and are omitted. At a
    lower resolution, the Gaussian's spectrum is truncated to the remaining frequencies.
    """
    sigma = SIGMA * 2 ** (scale - 1)
    positions = np.arange(-COPIES * side, (COPIES + 1) * side, dtype=np.float64)
    periodic = np.exp(-(positions**2) / (2 * sigma**2)).reshape(-1, side).sum(0)
    spectrum = np.fft.fft(periodic / np.sqrt(2 * PI * sigma**2)).real
    length = side >> resolution
    truncated = np.concatenate([spectrum[: length // 2], spectrum[side - (length - length // 2) :]])
    window = np.fft.ifft(truncated).real
    centres = np.arange(0, length, 2 ** (scale - resolution))[1:-1]
    return window[(centres[:, None] - np.arange(length)) % length]


def fourier_of_real(side: int) -> Matrix:
    """Return the Fourier transform of real numbers, as a matrix (frequency pair, position)."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3)[:, :, 0].reshape(2 * side, side)


def fourier_of_pairs(side: int) -> Matrix:
    """Return the Fourier transform of complex numbers, as a matrix (frequency pair, pair position)."""
    return _real(_frequencies(side)).transpose(1, 0, 2, 3).reshape(2 * side, 2 * side)


def inverse_fourier(side: int) -> Matrix:
    """Return the inverse Fourier transform to complex numbers, as a matrix (pair position, frequency pair)."""
    return _real(_frequencies(side).conj() / side).transpose(0, 1, 3, 2).reshape(2 * side, 2 * side)


def _frequencies(side: int) -> NDArray[np.complex128]:
    """Return exp(-2 pi i k p / n). The product is reduced modulo n first, because large angles lose precision."""
    steps = np.arange(side)
    return np.exp(-2j * np.pi * (np.outer(steps, steps) % side) / side)


def _real(matrix: NDArray[np.complex128]) -> Matrix:
    """Return the real array (pair, rows, pair, columns) that multiplies pairs by a complex matrix."""
    blocks = [[matrix.real, -matrix.imag], [matrix.imag, matrix.real]]
    return np.array(blocks).transpose(0, 2, 1, 3)
