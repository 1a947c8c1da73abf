"""Whether an encoder learned to see, told by random images alone: which of several images was this a view of?

Images that were never trained on are drawn, each is a class of its own, and each has some views. A view is known by its
nearest neighbour among one view of every image. Nothing private and nothing real is looked at.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.public.pretrain.images import AUGMENT
from dpvision.public.random import draw
from dpvision.views import Augment, Coins


@torch.no_grad()
def recognised(trunk: nn.Module, process: str, *, side: int, first: int, classes: int = 200, seed: int = 0) -> float:
    """Share of views whose nearest neighbour is a view of the same image, among `classes` images from `first` on."""
    pixels = draw(process, range(first, first + classes), side=side, seed=seed)
    whole = torch.from_numpy(pixels).permute(0, 3, 1, 2).unsqueeze(1) / 127.5 - 1
    views = Augment(AUGMENT)(whole, Coins(seed, np.arange(classes)), 2)
    known, asked = (F.normalize(_seen(trunk, views[:, k]), dim=1) for k in (0, 1))
    return float(((asked @ known.T).argmax(1) == torch.arange(classes)).double().mean())


def _seen(trunk: nn.Module, images: Tensor) -> Tensor:
    features = torch.cat([trunk(part).flatten(2).mean(2) for part in images.split(100)])
    return features - features.mean(0)
