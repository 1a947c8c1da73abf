"""Features from a dictionary of patches of synthetic images, without training (Coates and Ng 2011; Thiry et al. 2021).

For a patch p of an image, minus its mean, with a whitening W and a dictionary d_1 ... d_K, both from random images,

    r_k = d_k . W p / sqrt(1 + |W p|^2)               the appearance of the patch, nearly independent of its contrast
    phi = means of relu(r_k - b) and relu(-r_k - b)   over 3 x 3 windows of half the height and width
    f   = sqrt(sum over views v of phi(v)) - m        where m is the mean of the square root over random images

and f is scaled to norm 1. The views are the image and its mirror image, or what `symmetry` names. Because of the square
root, the presence of a pattern counts more than its frequency. There is a patch at every pixel of images below 128
pixels, and at every s-th pixel in both directions of others, with s = the longer side / 64, rounded down: so large
images take about the time of medium ones. There may be patches of several sizes, and a second layer, which uses patches
of the downsampled maps relu(r_k - b) and relu(-r_k - b) of a small first dictionary. The features are a public function
of one image: the code that computes the dictionary (public/dictionary.py) cannot import the code that reads private
data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.device import has_fast_product, product
from dpvision.models.featured import Featured
from dpvision.models.parts import centred_linear

WINDOWS = 3  # per side: each is half as long as the side and overlaps the next by half
THRESHOLD = 0.25
MAX_SIDE = 1024  # pixels; the maximum for random images
SIDE_OF_STRIDE = 64  # pixels of the longer side for each pixel from one patch to the next
BLOCK = 128  # dictionary entries per block, so that intermediate results stay in the processor's caches
# With a second layer: number and size of the patches in the first layer, and size of the patches of its maps.
FIRST, FIRST_PATCH, SECOND_PATCH = 64, 5, 3
CONSTANTS = (WINDOWS, THRESHOLD, FIRST, FIRST_PATCH, SECOND_PATCH, SIDE_OF_STRIDE)


class Bank(nn.Module):
    """A dictionary of patches of one size. It turns maps (N, C, H, W) into means (N, 2 K WINDOWS^2)."""

    windows: Tensor

    def __init__(
        self, shape: tuple[int, int, int], patch: int, count: int, *, rank: int | None = None, reduction: int = 1
    ) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 2 * patch * reduction or max(height, width) > MAX_SIDE:
            raise ConfigError(
                f"patches need {2 * patch * reduction} to {MAX_SIDE:,} pixels per side, not {height}x{width}. Fix: "
                "resize the image files with --size."
            )
        self.reduction, height, width = reduction, height // reduction, width // reduction
        self.patch, size = patch, channels * patch**2
        self.offset = nn.Parameter(torch.zeros(size))  # subtracted from each patch, in addition to its mean
        self.whitening = nn.Parameter(centre_rows(torch.eye(size))[: rank or size])  # W
        self.dictionary = nn.Parameter(centre_rows(F.normalize(torch.randn(count, size), dim=1)))  # d^T W
        self.stride = max(1, max(height, width) // SIDE_OF_STRIDE)
        self.positions = (height - patch) // self.stride + 1, (width - patch) // self.stride + 1
        windows = torch.einsum("ap,bq->abpq", *(_window_weights(length) for length in self.positions))
        self.register_buffer("windows", windows.reshape(-1, WINDOWS**2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return phi as (mean |s| + mean s) / 2 and (mean |s| - mean s) / 2, where s = relu(r - b) - relu(-r - b)."""
        patches, windows, means = self._patches(self.reduce(x)), self.windows.T.contiguous(), []
        for images in self._groups(patches):
            parts = []
            for part in self.dictionary.split(BLOCK):
                signed = F.softshrink(_products(part, images), THRESHOLD)
                mean, mean_size = _products(signed, windows), _products(signed.abs(), windows)
                parts += [mean_size + mean, mean_size - mean]
            means.append(torch.cat(parts, 1).flatten(1))
        return torch.cat(means) / 2

    def reduce(self, x: Tensor) -> Tensor:
        """Return images or maps at the size at which this bank has patches: each pixel is a mean of several."""
        return x if self.reduction == 1 else F.avg_pool2d(x, self.reduction)

    def maps(self, x: Tensor) -> Tensor:
        """Return relu(r - b) and relu(-r - b) as (N, 2 K, ...), at half the height and width."""
        responses = torch.cat([_products(self.dictionary, images) for images in self._groups(self._patches(x))])
        signed = F.softshrink(responses, THRESHOLD).unflatten(2, self.positions)
        return F.avg_pool2d(torch.cat([F.relu(signed), F.relu(-signed)], 1), 2)

    @property
    def shape_of_maps(self) -> tuple[int, int, int]:
        return 2 * len(self.dictionary), self.positions[0] // 2, self.positions[1] // 2

    def _patches(self, x: Tensor) -> Tensor:
        """Return all patches divided by sqrt(1 + |W p|^2), as (N, positions, C patch^2)."""
        patches = F.unfold(x, self.patch, stride=self.stride).transpose(1, 2).contiguous() - self.offset
        white = product(patches.flatten(0, 1), self.whitening).unflatten(0, patches.shape[:2])
        return patches * white.square().sum(2, keepdim=True).add(1).rsqrt()

    @staticmethod
    def _groups(patches: Tensor) -> Sequence[Tensor]:
        """Divide the images: one by one on the CPU, so that what is computed of them stays in a core's cache."""
        return patches.split(1) if has_fast_product(patches) else (patches,)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b.mT, where one of them may have a first axis of images."""
    images = a if a.dim() == 3 else b
    if not has_fast_product(images) or len(images) > 1:
        return product(a, b)
    return product(*(t[0] if t is images else t for t in (a, b))).unsqueeze(0)


class Patches(nn.Module):
    """Features of images (N, C, H, W) as rows of norm 1.

    `sizes` maps each patch size to its number of patches; `halved` does so for patches of the image at half its size.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        sizes: Mapping[int, int],
        *,
        halved: Mapping[int, int] | None = None,
        second: int = 0,
        symmetry: str = "mirror",
    ) -> None:
        super().__init__()
        if symmetry == "rotations" and shape[1] != shape[2]:
            raise ConfigError(
                f"symmetry is 'rotations': images of {shape[1]}x{shape[2]} are not square. Fix: use --size "
                f"{min(shape[1:])}, or --symmetry mirror."
            )
        self.symmetry = symmetry
        coarse = [Bank(shape, patch, count, reduction=2) for patch, count in (halved or {}).items()]
        self.banks = nn.ModuleList([*(Bank(shape, patch, count) for patch, count in sizes.items()), *coarse])
        self.first: Bank | None = Bank(shape, FIRST_PATCH, FIRST) if second else None
        self.second: Bank | None = None
        if self.first:
            self.second = Bank(self.first.shape_of_maps, SECOND_PATCH, second, rank=256)
        self.width = 2 * WINDOWS**2 * (sum(sizes.values()) + sum((halved or {}).values()) + second)
        self.mean = nn.Parameter(torch.zeros(self.width))
        self.scale = nn.Parameter(torch.ones(self.width))  # constant in each bank, so that all have the same weight

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize((torch.cat(self.bank_features(x), 1) - self.mean) * self.scale, dim=1)

    def bank_features(self, x: Tensor) -> list[Tensor]:
        """Return the square root of the sum of phi over all views, for each bank."""
        of_views = zip(*(self._bank_means(view) for view in views_of(x, self.symmetry)), strict=True)
        return [sum(each[1:], each[0]).clamp(min=0).sqrt() for each in of_views]  # rounding may leave a negative number

    def _bank_means(self, x: Tensor) -> list[Tensor]:
        means = [bank(x) for bank in self.banks]
        return means if self.first is None or self.second is None else [*means, self.second(self.first.maps(x))]


def views_of(x: Tensor, symmetry: str) -> list[Tensor]:
    """Return the views (N, C, H, W) of images over which features are summed."""
    turned = [x]
    if symmetry == "rotations":
        quarter = x.transpose(2, 3)
        turned = [x, quarter.flip(2), x.flip(2, 3), quarter.flip(3)]
    return [view for each in turned for view in ([each] if symmetry == "none" else [each, each.flip(3)])]


def patches_linear(
    shape: tuple[int, int, int],
    classes: int,
    *,
    sizes: Mapping[int, int],
    halved: Mapping[int, int] | None = None,
    second: int = 0,
    symmetry: str = "mirror",
) -> Featured:
    """Build a linear classifier on patch features, which may subtract their learned mean."""
    features = Patches(shape, sizes, halved=halved, second=second, symmetry=symmetry)
    return Featured(features, centred_linear(features.width, classes))


# Number of patches of 5 pixels in the image, and in the image at half its size.
_BANKS = {"patches-256": (256, 0), "patches-1024": (1024, 0), "patches-pyramid": (512, 512), "patches-coarse": (0, 128)}
_SUFFIXES = {"mirror": "", "none": "-plain", "rotations": "-rotations"}
PATCHES = {
    **{
        name + suffix: partial(
            patches_linear, sizes={5: fine} if fine else {}, halved={5: coarse} if coarse else {}, symmetry=symmetry
        )
        for name, (fine, coarse) in _BANKS.items()
        for symmetry, suffix in _SUFFIXES.items()
    },
    "patches-scales": partial(patches_linear, sizes={4: 256, 5: 512, 6: 256}),
    "patches-two-layers": partial(patches_linear, sizes={5: 768}, second=256),
}


def centre_rows(rows: Tensor) -> Tensor:
    """Subtract the mean of each row, so that a filter ignores the mean of a patch."""
    return rows - rows.mean(1, keepdim=True)


def _window_weights(length: int) -> Tensor:
    """Return the fraction of each position inside each window, divided by the window's length: (length, WINDOWS)."""
    start = torch.arange(WINDOWS) * (length / 2) / (WINDOWS - 1)
    position = torch.arange(length).unsqueeze(1)
    shared = torch.minimum(position + 1, start + length / 2) - torch.maximum(position, start)
    return shared.clamp(min=0) / (length / 2)
