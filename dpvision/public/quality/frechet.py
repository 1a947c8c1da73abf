"""The Fréchet distance between two sets of rows, taken as Gaussians (Heusel et al. 2017): FID, on Inception's features.

    d^2 = |m1 - m2|^2 + tr C1 + tr C2 - 2 tr (C1 C2)^(1/2)

The root needs no covariance. With X the centred rows over sqrt(n - 1), C = X'X, and X = Q R by orthogonal triangles:

    tr C = |R|^2,    tr (C1 C2)^(1/2) = sum of the singular values of R1 R2'

since C1 C2 has the eigenvalues of (R1 R2')(R1 R2')'. So nothing is squared that a root must undo: rows of any rank have
a distance right to about 13 digits, where the root of a product of covariances loses half of them. All in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.errors import DataError
from dpvision.public.quality.distances import require_rows

AT_A_TIME = 4096


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """d^2 of two sets (n, d) and (m, d). It is biased upwards by few rows: compare at the same n and m only."""
    require_rows(x, y)
    (mean_x, root_x), (mean_y, root_y) = moments(x), moments(y)
    together = torch.linalg.svdvals(root_x @ root_y.T).sum()
    apart = (mean_x - mean_y).square().sum() + root_x.square().sum() + root_y.square().sum()
    return max(0.0, float(apart - 2 * together))


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and R (at most d rows) with R'R the covariance (divided by n - 1); a block of rows at a time."""
    n, width = x.shape
    if n < 2:
        raise DataError(f"a spread needs 2 images at least, and there is {n}. Fix: more images.")
    mean = x.mean(0, dtype=torch.float64)
    root = mean.new_zeros(0, width)
    for block in x.split(max(AT_A_TIME, width)):
        root = torch.linalg.qr(torch.cat([root, block.double() - mean]), mode="r").R
    return mean, root / (n - 1) ** 0.5
