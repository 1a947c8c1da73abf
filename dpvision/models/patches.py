"""Features from patches of images that no camera took: nothing is trained (Coates and Ng 2011; Thiry et al. 2021).

For a patch p of an image, less its mean, with a whitening W and a dictionary d_1 ... d_K, both of random images,

    r_k = d_k . W p / sqrt(1 + |W p|^2)               at every pixel: what the patch looks like, whatever its contrast
    phi = means of relu(r_k - b) and relu(-r_k - b)   over the cells of a grid
    f   = phi(x) + phi(mirror image of x) - m         where m is the mean of this over random images

and f is scaled to length 1. Everything in it is a public function of one image; private data was within nobody's reach
when the dictionary was made (pretrain/dictionary.py).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.centred import centred_linear
from dpvision.models.featured import Featured

PATCH = 5
GRID = 2
THRESHOLD = 0.25
AT_A_TIME = 128  # of the dictionary: what is computed of them stays in the processor's caches


class Patches(nn.Module):
    """Images (N, C, H, W) to (N, 2 K GRID^2), rows of length 1."""

    cells: Tensor

    def __init__(self, shape: tuple[int, int, int], count: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 2 * PATCH:
            raise ConfigError(f"patches need {2 * PATCH}x{2 * PATCH} pixels at least, not {height}x{width}.")
        size = channels * PATCH**2
        self.whitening = nn.Parameter(around_zero(torch.eye(size)))  # W
        self.dictionary = nn.Parameter(around_zero(F.normalize(torch.randn(count, size), dim=1)))  # d^T W
        self.mean = nn.Parameter(torch.zeros(2 * count * GRID**2))
        cells = torch.einsum("ap,bq->abpq", _cells(height + 1 - PATCH), _cells(width + 1 - PATCH))
        self.register_buffer("cells", cells.reshape(-1, GRID**2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.seen(x) - self.mean, dim=1)

    def seen(self, x: Tensor) -> Tensor:
        """The same in a mirror."""
        return self.pooled(x) + self.pooled(x.flip(3))

    def pooled(self, x: Tensor) -> Tensor:
        """With s = relu(r - b) - relu(-r - b), these are (mean |s| + mean s) / 2 and (mean |s| - mean s) / 2."""
        patches = F.unfold(x, PATCH)
        patches = patches * (self.whitening @ patches).square().sum(1, keepdim=True).add(1).rsqrt()
        found = []
        for part in self.dictionary.split(AT_A_TIME):
            signed = F.softshrink(part @ patches, THRESHOLD)
            mean, mean_size = signed @ self.cells, signed.abs() @ self.cells
            found += [mean_size + mean, mean_size - mean]
        return torch.cat(found, 1).flatten(1) / 2


def patches_linear(shape: tuple[int, int, int], classes: int, *, count: int) -> Featured:
    """A linear classifier on the features, less their mean where that is learned."""
    features = Patches(shape, count)
    return Featured(features, centred_linear(len(features.mean), classes))


def around_zero(rows: Tensor) -> Tensor:
    """Patches less their means; of filters, those that do not see the mean of a patch."""
    return rows - rows.mean(1, keepdim=True)


def _cells(length: int) -> Tensor:
    """(length, GRID): the places of each cell, which share one where the grid does not fit, by what they count."""
    found = torch.zeros(length, GRID)
    for cell in range(GRID):
        first, end = cell * length // GRID, -(-(cell + 1) * length // GRID)
        found[first:end, cell] = 1 / (end - first)
    return found
