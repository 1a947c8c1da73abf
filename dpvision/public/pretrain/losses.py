"""What a pair of views of one image should satisfy: near each other, and far from everybody else's.

x and y are (B, D) with rows of length 1; row i of both comes from the same image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def align_uniform(x: Tensor, y: Tensor) -> Tensor:
    """Alignment plus uniformity, each with weight 1 (Wang and Isola 2020)."""
    return alignment(x, y) + (uniformity(x) + uniformity(y)) / 2


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """E |x - y|^2: views of one image lie near each other."""
    return (x - y).square().sum(1).mean()


def uniformity(x: Tensor, *, t: float = 2.0) -> Tensor:
    """log E exp(-t |x_i - x_j|^2) over pairs i < j: images spread evenly over the sphere."""
    i, j = torch.triu_indices(len(x), len(x), offset=1, device=x.device)
    squared = 2 - 2 * (x @ x.T)[i, j]
    return torch.logsumexp(-t * squared, 0) - torch.log(torch.tensor(float(len(squared)), device=x.device))


def info_nce(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Each view must find its partner among all other views of the batch (SimCLR, Chen et al. 2020)."""
    both = torch.cat([x, y])
    alike = both @ both.T / temperature
    alike = alike.masked_fill(torch.eye(len(both), dtype=torch.bool, device=x.device), float("-inf"))
    partner = torch.arange(len(both), device=x.device).roll(len(x))
    return F.cross_entropy(alike, partner)


LOSSES = {"align-uniform": align_uniform, "info-nce": info_nce}
