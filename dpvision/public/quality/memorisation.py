"""Whether synthetic images are copies of the images that their model was fitted to: nearest neighbours, and a picture.

For an image x, with its nearest real images r1, r2, ... (itself left out),

    ratio(x) = |x - r1| / mean of |x - r2|, ..., |x - r51|

is near 1 for an image that resembles several, and near 0 for a copy of one, in plain regions of the space as in rich
ones (after Carlini et al. 2023). The real images themselves say what is usual: the limit is the ratio that `level` of
them fall below. Of fresh images about as many do; of copies all. A share well above `expected` is memorisation.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.measures import Progress, nearest
from dpvision.public.quality.pictures import Pictures
from dpvision.public.sheets import named_lines

LEVEL, OTHERS = 0.01, 50
PAIRS = 12  # of each kind, in a picture


@dataclass(frozen=True, eq=False)
class Memorisation:
    share: float  # of the synthetic images that are at or below the limit
    expected: float  # of the real images that are: the level, or more where there are duplicates among them
    limit: float
    ratios: Tensor  # (synthetic images,)
    neighbours: Tensor  # (synthetic images,): the nearest real one


def memorisation(
    synthetic: Tensor, real: Tensor, *, level: float = LEVEL, progress: Progress = lambda *_: None
) -> Memorisation:
    """Of two sets of rows, which may be pixels or features. `real` should be all that the model was fitted to."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}: it must be above 0 and below 1.")
    least = max(3, round(1 / level))
    if len(real) < least:
        raise DataError(
            f"what is usual for 1 in {least} real images cannot be told from {len(real)} of them. Fix: more images."
        )
    count, total = min(OTHERS + 1, len(real) - 1), len(real) + len(synthetic)
    usual, _ = nearest(real, count=count, progress=lambda done, _: progress(done, total))
    found, places = nearest(synthetic, real, count=count, progress=lambda done, _: progress(len(real) + done, total))
    of_real, of_synthetic = ratio(usual), ratio(found)
    limit = of_real.sort().values[max(1, int(level * len(real))) - 1]
    share, expected = (float((ratios <= limit).double().mean()) for ratios in (of_synthetic, of_real))
    return Memorisation(share, expected, float(limit), of_synthetic.cpu(), places[:, 0].cpu())


def ratio(squared: Tensor) -> Tensor:
    """Of squared distances (N, count), the nearest first; 0 where even the farthest is 0."""
    distances = squared.sqrt()
    return distances[:, 0] / distances[:, 1:].mean(1).clamp(min=torch.finfo(torch.float64).tiny)


def pairs(synthetic: Pictures, real: Pictures, found: Memorisation, *, seed: int = 0) -> bytes:
    """PNG: the synthetic images with the smallest ratios, then some at random, each above its nearest real image."""
    order = found.ratios.argsort().numpy()
    closest, rest = order[:PAIRS], order[PAIRS:]
    kinds = {"closest": closest}
    if len(rest) >= len(closest):
        kinds["random"] = np.random.default_rng(seed).choice(rest, len(closest), replace=False)
    lines = {}
    for kind, rows in kinds.items():
        lines[f"{kind}: synthetic"] = _shown(synthetic, rows)
        lines[f"{kind}: nearest real"] = _shown(real, found.neighbours.numpy()[rows])
    picture = io.BytesIO()
    named_lines(picture, lines)
    return picture.getvalue()


def _shown(pictures: Pictures, rows: np.ndarray) -> np.ndarray:
    images = pictures.tensor(rows).permute(0, 2, 3, 1).numpy() / 2 + 0.5
    return images[..., 0] if images.shape[3] == 1 else images
