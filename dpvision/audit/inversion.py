"""Model inversion: find an image whose features explain a released row (He et al. 2019; NeuroMixGDP, Appendix K).

A row released at degree m is (1/m) (sum of c(f(x_i)) over the sampled records) plus noise, where f is a public module
and c clips a row to norm 1. The attack is regularised maximum likelihood: Adam starts from uniform noise and minimises

    | m row - known - c(f(x)) |^2  +  tv * TV(x)    over    -1 <= x <= 1

`known` is the sum of c(f(.)) over sampled records that the attacker has. If it lacks a single record, the remainder of
the row is that record with noise of sigma_x, the best case for an attacker of one row. TV is the sum of absolute
differences of neighbouring pixels, in units of the pixels' range. (The paper divides the squared distance by m^2, so
the same tv has m^2 times the weight there.) Rows that were drawn from noisy sums do not belong to any record, so they
cannot be inverted. The results are not for release.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.audit.membership import describe
from dpvision.core.rows import Preparation
from dpvision.errors import ConfigError
from dpvision.models.inputs import to_tensor
from dpvision.private.features.encoders import Encoder
from dpvision.private.features.public_map import load_released_encoder, load_split
from dpvision.released.folder import FinishedRelease, read_rows

# Number of inverted rows, steps of an inversion, and number of images of a split that results are compared with.
SHOWN, STEPS, COMPARED = 8, 1000, 2000


def invert(
    features: nn.Module,
    released: Tensor,
    *,
    shape: tuple[int, int, int],
    degree: float = 1.0,
    known: Tensor | None = None,
    tv: float = 1e-4,
    lr: float = 0.1,
    steps: int = 500,
    seed: int = 0,
) -> Tensor:
    """Reconstruct (rows, *shape) images in [-1, 1] from (rows, d) released features."""
    if released.ndim != 2 or (known is not None and known.shape != released.shape):
        raise ConfigError("released and known must be (rows, features) arrays of the same shape.")
    remainder = (released * degree - (0 if known is None else known)).detach()
    start = torch.rand((len(remainder), *shape), generator=torch.Generator().manual_seed(seed))
    x = (2 * start - 1).to(remainder).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for _ in range(steps):
        loss = (remainder - shorten(features(x).flatten(1))).square().sum(1) + tv * total_variation(x)
        (gradient,) = torch.autograd.grad(loss.sum(), x)  # rows are independent of each other
        x.grad = gradient.nan_to_num_(0.0, 0.0, 0.0)  # a modulus, as of an image of one colour, has no gradient at 0
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(-1, 1)
    return x.detach()


def shorten(z: Tensor) -> Tensor:
    """Clip rows to norm 1."""
    return z / z.norm(dim=1, keepdim=True).clamp(min=1)


def total_variation(x: Tensor) -> Tensor:
    """Return the sum of absolute differences of neighbouring pixels, divided by 2, of (..., C, H, W) in [-1, 1]."""
    down, right = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return (down.sum((-3, -2, -1)) + right.sum((-3, -2, -1))) / 2


def correlations(images: Tensor, others: Tensor) -> Tensor:
    """Return the (a, b) pixel correlations of (a, ...) and (b, ...) images; 0 for an image of one colour."""
    centred = [(x.flatten(1) - x.flatten(1).mean(1, keepdim=True)).double() for x in (images, others)]
    one, two = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-9) for x in centred)
    return one @ two.T


@dataclass(frozen=True, eq=False)
class Inversion:
    """Mean correlations of reconstructed images with true ones, and the images in [0, 1] in named rows of pictures."""

    alone: float  # of reconstructions from single records without noise with those records
    members: float  # of reconstructions from released rows with the most similar training image
    others: float  # of these with the most similar of the same number of test images
    compared: int
    lines: dict[str, NDArray[np.float32]]


def attack_rows(
    release: FinishedRelease,
    source: str,
    *,
    weights: Path | None = None,
    steps: int = STEPS,
    device: torch.device | str = "cpu",
) -> Inversion | str:
    """Invert the first released rows, or return the reason why it is impossible.

    Each reconstruction is compared with the most similar of the training images and of the same number of test images.
    Reconstructions from single records without noise show how strong the attack is without any protection.
    """
    if not release.settings.is_sampled:
        return f"the rows were {describe(release).rows_are}, so no row belongs to a record"
    assert release.settings.degree  # complete
    encoder, rule = load_released_encoder(release.folder, weights=weights)
    module = DifferentiableRows(encoder, rule).to(device)
    train, test = (load_split(release.folder, source, split=name) for name in ("train", "test"))
    compared = min(len(train), len(test), COMPARED)
    members, others = (to_tensor(np.asarray(s.images[:compared])).to(device) for s in (train, test))
    if not module(members[:1].clone().requires_grad_()).requires_grad:
        return f"the encoder {encoder.name!r} has no gradient with respect to an image"
    with torch.no_grad():
        alone = module(members[:SHOWN])
    rows = torch.from_numpy(read_rows(release.folder)[0][:SHOWN].copy()).to(device)
    from_alone = invert(module, alone, shape=encoder.shape, steps=steps)
    from_rows = invert(module, rows, shape=encoder.shape, degree=release.settings.degree, steps=steps)
    like_members, like_others = (correlations(from_rows, images).max(1) for images in (members, others))
    lines = {
        "training image": members[: len(from_alone)],
        "reconstructed, alone, no noise": from_alone,
        "reconstructed from a released row": from_rows,
        "most similar training image": members[like_members.indices],
        "most similar test image": others[like_others.indices],
    }
    count = min(map(len, lines.values()))
    return Inversion(
        alone=float(correlations(from_alone, members[: len(from_alone)]).diag().mean()),
        members=float(like_members.values.mean()),
        others=float(like_others.values.mean()),
        compared=compared,
        lines={name: _to_picture(images[:count]) for name, images in lines.items()},
    )


class DifferentiableRows(nn.Module):
    """Map images to rows as in the release, with gradients: the encoder, the public map, and a norm of at most 1."""

    mean: Tensor | None
    matrix: Tensor | None

    def __init__(self, encoder: Encoder, rule: Preparation) -> None:
        super().__init__()
        self.prefix, self.unit, self.bound = encoder.prefix, rule.unit or rule.whitening is not None, rule.bound
        for name in ("mean", "matrix"):
            value = None if rule.whitening is None else getattr(rule.whitening, name)
            self.register_buffer(name, None if value is None else torch.from_numpy(value.astype(np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        z = self.prefix(x).flatten(1)
        if self.mean is not None and self.matrix is not None:
            z = (z - self.mean) @ self.matrix
        if self.unit:
            return z / z.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return z / self.bound


def _to_picture(images: Tensor) -> NDArray[np.float32]:
    """Convert (N, C, H, W) in [-1, 1] to (N, H, W) or (N, H, W, 3) in [0, 1]."""
    pixels = (images / 2 + 0.5).permute(0, 2, 3, 1).cpu().numpy()
    return np.asarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
