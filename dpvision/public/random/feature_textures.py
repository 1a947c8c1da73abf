"""Textures by feature visualisation: images changed step by step until a unit of a network responds strongly.

The network has seen no photograph. Its first layer are patches of dead leaves, whitened, which leaves edges and corners
of many colours; the second and third are random and orthogonal. No filter sees a constant, so that only structure
counts. All is cyclic, and so are the textures. Numbers are doubles: with floats the order of a sum, which is another
one on another number of cores, would show in the bytes.
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
EDGE, LATER = 7, 3  # sides of a filter of the first layer and of the others
UNITS = WIDTHS[1] + WIDTHS[2]
PATCHES = 4000  # of which the quarter with most contrast is drawn from
SOFT = 0.5  # of the mean variance is added to all of them before they are made equal
STEPS, CLIMB = 16, 10.0  # of the ascent, and how far it goes: so many standard deviations of the noise it starts from
SLOPES = (0.8, 1.3)  # amplitudes fall with such a power of the frequency
CONTRASTS = (0.3, 1.0)


@torch.inference_mode(False)
def network(rng: Generator, leaves: NDArray[np.floating]) -> Network:
    """One whose first layer comes from these images (N, side, side, 3)."""
    edges = _whitened(_patches(rng, leaves))[rng.permutation(PATCHES // 4)[: WIDTHS[0]]]
    second, third = (_orthogonal(rng, out, in_) for in_, out in pairwise(WIDTHS))
    return torch.from_numpy(edges.reshape(-1, 3, EDGE, EDGE)), second, third


def strengths(filters: Network, images: Tensor) -> Tensor:
    """(N, UNITS): mean square of what is positive in the channels of the second layer and then of the third."""
    first, second, third = filters
    z = _cyclic(relu(_cyclic(images, first, stride=2)), second)
    deep = _cyclic(avg_pool2d(relu(z), 2), third)
    return torch.cat([relu(z).square().mean((2, 3)), relu(deep).square().mean((2, 3))], 1)


@torch.inference_mode(False)
@torch.enable_grad()
def textures(rng: Generator, filters: Network, units: NDArray[np.intp]) -> NDArray[np.uint8]:
    """(N, SIDE, SIDE, 3), each of which excites one of these N units."""
    seen, own = _parametrisation(rng, len(units)), (torch.arange(len(units)), torch.from_numpy(units))
    white = torch.from_numpy(rng.standard_normal((len(units), 3, SIDE, SIDE)))
    stride = CLIMB / STEPS * white[0].numel() ** 0.5
    with _one_core():
        for _ in range(STEPS):
            white.requires_grad_()
            (uphill,) = torch.autograd.grad(strengths(filters, seen(white))[own].sum(), white)
            white = white.detach() + stride * normalize(uphill.flatten(1)).view_as(white)
    return np.rint(255 * seen(white).permute(0, 2, 3, 1).numpy()).astype(np.uint8)


def _parametrisation(rng: Generator, many: int) -> Callable[[Tensor], Tensor]:
    """Images in [0, 1] of white ones, both (N, 3, SIDE, SIDE), whose spectra are made to fall.

    Each has colours and a contrast of its own, which stay: it can only excite by what it shows.
    """
    fall = torch.from_numpy(_frequency() ** -rng.uniform(*SLOPES, (many, 1, 1, 1)))
    light, hues = rng.standard_normal((many, 1, 3)), rng.standard_normal((many, 3, 3))
    contrast, colour = rng.uniform(*CONTRASTS, (many, 1, 1)), rng.random((many, 1, 1))
    mix = torch.from_numpy(contrast * (light + colour * (hues - light)))
    mean = torch.from_numpy(rng.standard_normal((many, 3, 1, 1)))

    def seen(white: Tensor) -> Tensor:
        pink = torch.fft.irfft2(fall * torch.fft.rfft2(white), (SIDE, SIDE))
        even = pink / pink.std((1, 2, 3), keepdim=True)
        return torch.sigmoid(torch.einsum("nij,njhw->nihw", mix, even) + mean)

    return seen


def _patches(rng: Generator, images: NDArray[np.floating]) -> Doubles:
    """(PATCHES, 3 EDGE^2), each colour of each of mean 0."""
    many, height, width, _ = images.shape
    which, row, column = (rng.integers(n, size=(PATCHES, 1, 1)) for n in (many, height - EDGE + 1, width - EDGE + 1))
    step = np.arange(EDGE)
    patches = images[which, row + step[:, None], column + step].astype(np.float64)
    return (patches - patches.mean((1, 2), keepdims=True)).transpose(0, 3, 1, 2).reshape(PATCHES, -1)


def _whitened(patches: Doubles) -> Doubles:
    """The quarter with most contrast, of unit length, after all directions were made about equally strong."""
    variances, axes = np.linalg.eigh(patches.T @ patches / len(patches))
    white = patches @ (axes / np.sqrt(np.maximum(variances, 0) + SOFT * variances.mean())) @ axes.T
    contrast = np.linalg.norm(white, axis=1)
    most = np.argsort(-contrast, kind="stable")[: len(patches) // 4]
    return white[most] / contrast[most, None]


def _orthogonal(rng: Generator, out: int, in_: int) -> Tensor:
    """Filters that are orthogonal to each other and to a constant."""
    columns = rng.standard_normal((in_ * LATER**2, 1 + out))
    columns[:, 0] = 1
    q, r = np.linalg.qr(columns)
    return torch.from_numpy((q * np.sign(np.diag(r)))[:, 1:].T.reshape(out, in_, LATER, LATER).copy())


def _cyclic(images: Tensor, filters: Tensor, stride: int = 1) -> Tensor:
    return conv2d(pad(images, (filters.shape[-1] // 2,) * 4, mode="circular"), filters, stride=stride)


@contextmanager
def _one_core() -> Iterator[None]:
    """Where every process would use them all, cores wait for each other longer than they work."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(cores)


@cache
def _frequency() -> Doubles:
    """In cycles a texture; 1 in place of 0."""
    f = np.hypot(np.fft.fftfreq(SIDE, 1 / SIDE)[:, None], np.fft.rfftfreq(SIDE, 1 / SIDE))
    f[0, 0] = 1
    return f
