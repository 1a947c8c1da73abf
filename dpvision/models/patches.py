"""Features from patches of images that no camera took: nothing is trained (Coates and Ng 2011; Thiry et al. 2021).

For a patch p of an image, less its mean, with a whitening W and a dictionary d_1 ... d_K, both of random images,

    r_k = d_k . W p / sqrt(1 + |W p|^2)               at every pixel: what the patch looks like, whatever its contrast
    phi = means of relu(r_k - b) and relu(-r_k - b)   over 3 x 3 windows of half the height and width
    f   = sqrt(phi(x) + phi(mirror image of x)) - m   where m is the mean of this over random images

and f is scaled to length 1. The root makes much of what is there at all, and less of how often it is there. There may
be patches of several sizes, and a second layer: patches of the maps relu(r_k - b), relu(-r_k - b) of a few, made
small. All of it is a public function of one image: what makes the dictionary cannot import what reads private data
(public/dictionary.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.featured import Featured
from dpvision.models.parts import centred_linear

WINDOWS = 3  # a side: each is half as long, and shares half of itself with the next
THRESHOLD = 0.25
LARGEST = 1024  # pixels a side, as random images are
AT_A_TIME = 128  # of the dictionary: what is computed of them stays in the processor's caches
# Of a second layer: patches of the first, how many and how large; and how large those of the maps are.
FIRST, FIRST_PATCH, SECOND_PATCH = 64, 5, 3
CONSTANTS = (WINDOWS, THRESHOLD, FIRST, FIRST_PATCH, SECOND_PATCH)


class Bank(nn.Module):
    """The patches of one size: maps (N, C, H, W) to means (N, 2 K WINDOWS^2)."""

    windows: Tensor

    def __init__(self, shape: tuple[int, int, int], patch: int, count: int, *, rank: int | None = None) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 2 * patch or max(height, width) > LARGEST:
            raise ConfigError(
                f"patches need {2 * patch} to {LARGEST:,} pixels a side, not {height}x{width}. Fix: "
                "--size, for image files."
            )
        self.patch, size = patch, channels * patch**2
        self.offset = nn.Parameter(torch.zeros(size))  # taken off each patch, beside what the filters do not see
        self.whitening = nn.Parameter(around_zero(torch.eye(size))[: rank or size])  # W
        self.dictionary = nn.Parameter(around_zero(F.normalize(torch.randn(count, size), dim=1)))  # d^T W
        self.places = height + 1 - patch, width + 1 - patch
        windows = torch.einsum("ap,bq->abpq", *(_windows(length) for length in self.places))
        self.register_buffer("windows", windows.reshape(-1, WINDOWS**2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """With s = relu(r - b) - relu(-r - b), these are (mean |s| + mean s) / 2 and (mean |s| - mean s) / 2."""
        patches, found = self._patches(x), []
        for part in self.dictionary.split(AT_A_TIME):
            signed = F.softshrink(part @ patches, THRESHOLD)
            mean, mean_size = signed @ self.windows, signed.abs() @ self.windows
            found += [mean_size + mean, mean_size - mean]
        return torch.cat(found, 1).flatten(1) / 2

    def maps(self, x: Tensor) -> Tensor:
        """(N, 2 K, ...): both rectified, of half the height and width."""
        signed = F.softshrink(self.dictionary @ self._patches(x), THRESHOLD).unflatten(2, self.places)
        return F.avg_pool2d(torch.cat([F.relu(signed), F.relu(-signed)], 1), 2)

    @property
    def shape_of_maps(self) -> tuple[int, int, int]:
        return 2 * len(self.dictionary), self.places[0] // 2, self.places[1] // 2

    def _patches(self, x: Tensor) -> Tensor:
        """(N, C patch^2, places), each over sqrt(1 + |W p|^2)."""
        patches = F.unfold(x, self.patch) - self.offset.unsqueeze(1)
        return patches * (self.whitening @ patches).square().sum(1, keepdim=True).add(1).rsqrt()


class Patches(nn.Module):
    """Images (N, C, H, W) to rows of length 1. `sizes` says how many patches there are of which size."""

    def __init__(self, shape: tuple[int, int, int], sizes: Mapping[int, int], *, second: int = 0) -> None:
        super().__init__()
        self.banks = nn.ModuleList(Bank(shape, patch, count) for patch, count in sizes.items())
        self.first: Bank | None = Bank(shape, FIRST_PATCH, FIRST) if second else None
        self.second: Bank | None = None
        if self.first:
            self.second = Bank(self.first.shape_of_maps, SECOND_PATCH, second, rank=256)
        self.width = 2 * WINDOWS**2 * (sum(sizes.values()) + second)
        self.mean = nn.Parameter(torch.zeros(self.width))
        self.scale = nn.Parameter(torch.ones(self.width))  # one number for each bank: all count alike

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize((torch.cat(self.seen(x), 1) - self.mean) * self.scale, dim=1)

    def seen(self, x: Tensor) -> list[Tensor]:
        """Of each bank; the same in a mirror."""
        both = zip(self._seen(x), self._seen(x.flip(3)), strict=True)
        return [(one + other).clamp(min=0).sqrt() for one, other in both]  # rounding may leave less than nothing

    def _seen(self, x: Tensor) -> list[Tensor]:
        found = [bank(x) for bank in self.banks]
        return found if self.first is None or self.second is None else [*found, self.second(self.first.maps(x))]


def patches_linear(shape: tuple[int, int, int], classes: int, *, sizes: Mapping[int, int], second: int = 0) -> Featured:
    """A linear classifier on the features, less their mean where that is learned."""
    features = Patches(shape, sizes, second=second)
    return Featured(features, centred_linear(features.width, classes))


PATCHES = {
    "patches-256": partial(patches_linear, sizes={5: 256}),
    "patches-1024": partial(patches_linear, sizes={5: 1024}),
    "patches-scales": partial(patches_linear, sizes={4: 256, 5: 512, 6: 256}),
    "patches-two-layers": partial(patches_linear, sizes={5: 768}, second=256),
}


def around_zero(rows: Tensor) -> Tensor:
    """Patches less their means; of filters, those that do not see the mean of a patch."""
    return rows - rows.mean(1, keepdim=True)


def _windows(length: int) -> Tensor:
    """(length, WINDOWS): how much of each place lies in each window, by what a window holds."""
    start = torch.arange(WINDOWS) * (length / 2) / (WINDOWS - 1)
    place = torch.arange(length).unsqueeze(1)
    shared = torch.minimum(place + 1, start + length / 2) - torch.maximum(place, start)
    return shared.clamp(min=0) / (length / 2)
