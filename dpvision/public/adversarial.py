"""The worst images near given ones: projected gradient ascent on the loss (PGD, Madry et al. 2018).

    x <- clip(x + a sign(grad l(x)))     a = 2.5 r / steps

where clip brings every pixel back to at most r from where it was, and into the range of pixels. Training on such images
instead of the given ones makes decision boundaries smooth in the space of images (adversarial training; Park et al.
2024, appendix E.4, with r 8/255 and 2/255).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LOW, HIGH = -1.0, 1.0  # pixels, as networks see them


def worst_near(
    loss: Callable[[Tensor], Tensor], images: Tensor, *, radius: float, steps: int, start: Tensor | None = None
) -> Tensor:
    """Images with a large `loss` (one number) whose pixels differ from the given by at most `radius`.

    The radius is a share of the range from black to white, such as 8/255. `start` says where inside the cube around an
    image to begin, each number from -1 to 1; without it, at the image.
    """
    r = radius * (HIGH - LOW)
    low, high = (images - r).clamp(min=LOW), (images + r).clamp(max=HIGH)
    x = images if start is None else torch.clamp(images + r * start, low, high)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(x), x)
        x = torch.clamp(x.detach() + 2.5 * r / steps * slope.sign(), low, high)
    return x.detach()
