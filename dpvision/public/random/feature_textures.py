"""Textures by feature visualisation: images are optimised until a unit of a network responds strongly.

The network is not trained. The filters of its first layer are whitened patches of dead leaves: edges and corners of
many colours. Those of the second and third layers are random and orthogonal. No filter responds to a constant, so only
structure counts. Convolutions are cyclic, and so are the textures. Numbers are float64, because in float32 the bytes
would depend on the order of summation, which depends on the number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, normalize, pad, relu

Doubles = NDArray[np.float64]
Network = tuple[Tensor, Tensor, Tensor]  # filters (out, in, size, size) of each layer

SIDE = 64
WIDTHS = (24, 32, 48)  # channels of the layers
FIRST_KERNEL, LATER_KERNEL = 7, 3  # filter sizes in the first layer and in the others
UNITS = WIDTHS[1] + WIDTHS[2]
PATCHES = 4000  # filters are drawn from the quarter with the highest contrast
RIDGE = 0.5  # fraction of the mean variance that is added to all variances before whitening
STEPS, CLIMB = 16, 10.0  # steps of the ascent, and its length in standard deviations of the initial noise
SLOPES = (0.8, 1.3)  # exponents of the power law of the amplitudes
CONTRASTS = (0.3, 1.0)


@torch.inference_mode(False)
def build_network(rng: Generator, leaves: NDArray[np.floating]) -> Network:
    """Build a network whose first layer comes from these images (N, side, side, 3)."""
    edges = _whiten(_draw_patches(rng, leaves))[rng.permutation(PATCHES // 4)[: WIDTHS[0]]]
    second, third = (_orthogonal(rng, out, in_) for in_, out in pairwise(WIDTHS))
    return torch.from_numpy(edges.reshape(-1, 3, FIRST_KERNEL, FIRST_KERNEL)), second, third


def responses(filters: Network, images: Tensor) -> Tensor:
    """Return the mean squared activation (N, UNITS) of each channel of the second layer, then of the third."""
    first, second, third = filters
    z = _cyclic_convolution(relu(_cyclic_convolution(images, first, stride=2)), second)
    deep = _cyclic_convolution(avg_pool2d(relu(z), 2), third)
    return torch.cat([relu(z).square().mean((2, 3)), relu(deep).square().mean((2, 3))], 1)


@torch.inference_mode(False)
@torch.enable_grad()
def draw_textures(rng: Generator, filters: Network, units: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Draw textures (N, SIDE, SIDE, 3), each of which excites one of these N units."""
    to_image, own = _parametrisation(rng, len(units)), (torch.arange(len(units)), torch.from_numpy(units))
    white = torch.from_numpy(rng.standard_normal((len(units), 3, SIDE, SIDE)))
    stride = CLIMB / STEPS * white[0].numel() ** 0.5
    with one_thread():
        for _ in range(STEPS):
            white.requires_grad_()
            (uphill,) = torch.autograd.grad(responses(filters, to_image(white))[own].sum(), white)
            white = white.detach() + stride * normalize(uphill.flatten(1)).view_as(white)
    return np.rint(255 * to_image(white).permute(0, 2, 3, 1).numpy()).astype(np.uint8)


def _parametrisation(rng: Generator, count: int) -> Callable[[Tensor], Tensor]:
    """Return a map from white noise (N, 3, SIDE, SIDE) to images in [0, 1] with falling spectra.

    The colours and the contrast of each image are drawn here and stay fixed, so that only its structure can excite a
    unit.
    """
    fall = torch.from_numpy(_frequency() ** -rng.uniform(*SLOPES, (count, 1, 1, 1)))
    light, hues = rng.standard_normal((count, 1, 3)), rng.standard_normal((count, 3, 3))
    contrast, colour = rng.uniform(*CONTRASTS, (count, 1, 1)), rng.random((count, 1, 1))
    mix = torch.from_numpy(contrast * (light + colour * (hues - light)))
    mean = torch.from_numpy(rng.standard_normal((count, 3, 1, 1)))

    def to_image(white: Tensor) -> Tensor:
        pink = torch.fft.irfft2(fall * torch.fft.rfft2(white), (SIDE, SIDE))
        standard = pink / pink.std((1, 2, 3), keepdim=True)
        return torch.sigmoid(torch.einsum("nij,njhw->nihw", mix, standard) + mean)

    return to_image


def _draw_patches(rng: Generator, images: NDArray[np.floating]) -> Doubles:
    """Draw patches (PATCHES, 3 FIRST_KERNEL^2) of the images; each colour channel of each patch has mean 0."""
    count, height, width, _ = images.shape
    limits = (count, height - FIRST_KERNEL + 1, width - FIRST_KERNEL + 1)
    index, row, column = (rng.integers(limit, size=(PATCHES, 1, 1)) for limit in limits)
    step = np.arange(FIRST_KERNEL)
    patches = images[index, row + step[:, None], column + step].astype(np.float64)
    return (patches - patches.mean((1, 2), keepdims=True)).transpose(0, 3, 1, 2).reshape(PATCHES, -1)


def _whiten(patches: Doubles) -> Doubles:
    """Whiten the patches; return the quarter with the highest contrast, scaled to unit norm."""
    variances, axes = np.linalg.eigh(patches.T @ patches / len(patches))
    white = patches @ (axes / np.sqrt(np.maximum(variances, 0) + RIDGE * variances.mean())) @ axes.T
    contrast = np.linalg.norm(white, axis=1)
    highest = np.argsort(-contrast, kind="stable")[: len(patches) // 4]
    return white[highest] / contrast[highest, None]


def _orthogonal(rng: Generator, out: int, in_: int) -> Tensor:
    """Draw filters that are orthogonal to each other and to constants."""
    columns = rng.standard_normal((in_ * LATER_KERNEL**2, 1 + out))
    columns[:, 0] = 1
    q, r = np.linalg.qr(columns)
    return torch.from_numpy((q * np.sign(np.diag(r)))[:, 1:].T.reshape(out, in_, LATER_KERNEL, LATER_KERNEL).copy())


def _cyclic_convolution(images: Tensor, filters: Tensor, stride: int = 1) -> Tensor:
    return conv2d(pad(images, (filters.shape[-1] // 2,) * 4, mode="circular"), filters, stride=stride)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, because the last bits of sums depend on the number of threads."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


@cache
def _frequency() -> Doubles:
    """Return frequencies in cycles per texture, with 1 in place of 0."""
    f = np.hypot(np.fft.fftfreq(SIDE, 1 / SIDE)[:, None], np.fft.rfftfreq(SIDE, 1 / SIDE))
    f[0, 0] = 1
    return f
