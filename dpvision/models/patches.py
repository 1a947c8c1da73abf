"""Features from patches of images that no camera took: nothing is trained (Coates and Ng 2011; Thiry et al. 2021).

For a patch p of an image, less its mean, with whitening W and dictionary d_1 ... d_K, both of random images,

    r_k = d_k . W p / sqrt(1 + |W p|^2)               at every pixel: what the patch looks like, whatever its contrast
    phi = means of relu(r_k - b) and relu(-r_k - b)   over the cells of a grid
    f   = phi(x) + phi(mirror image of x) - m         where m is the mean of this over random images

and f is scaled to length 1. Everything in it is a public function of one image; private data was within nobody's reach
when the dictionary was made (`dpvision pretrain`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.models.featured import Featured
from dpvision.models.small import linear

PATCH = 6
GRID = 2
THRESHOLD = 0.25


class Patches(nn.Module):
    """Images (N, 3, H, W) to (N, 2 K GRID^2), rows of length 1."""

    whitening: Tensor
    dictionary: Tensor
    mean: Tensor

    def __init__(self, channels: int, count: int) -> None:
        super().__init__()
        width = channels * PATCH**2
        self.register_buffer("whitening", torch.eye(width))
        self.register_buffer("dictionary", F.normalize(torch.randn(count, width), dim=1))
        self.register_buffer("mean", torch.zeros(2 * count * GRID**2))

    def forward(self, x: Tensor) -> Tensor:
        both = self.pooled(x) + self.pooled(x.flip(3))
        return F.normalize(both - self.mean, dim=1)

    def pooled(self, x: Tensor) -> Tensor:
        shape = (-1, x.shape[1], PATCH, PATCH)
        centred = self.whitening - self.whitening.mean(1, keepdim=True)  # takes the mean of a patch away
        size = F.conv2d(x, centred.view(shape)).square().sum(1, keepdim=True).add(1).rsqrt()
        alike = F.conv2d(x, (self.dictionary @ centred).view(shape)) * size
        sides = torch.cat([F.relu(alike - THRESHOLD), F.relu(-alike - THRESHOLD)], 1)
        return F.adaptive_avg_pool2d(sides, GRID).flatten(1)


def patches_linear(shape: tuple[int, int, int], classes: int, *, count: int = 512) -> Featured:
    """Logistic regression on the features, from zero weights."""
    features = Patches(shape[0], count)
    return Featured(features, linear((len(features.mean), 1, 1), classes))
