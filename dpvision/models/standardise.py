"""Weight standardisation: a convolution whose filters have mean zero and a learned scale (De et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

# Numbers of a gradient that are worked on at a time: what stays in a core's own cache.
IN_CACHE = 1 << 17


def standardise(weight: Tensor, gain: Tensor, eps: float = 1e-4) -> Tensor:
    """gain * (w - mean) / sqrt(max(fan_in * var, eps)) for each output channel, with the biased variance.

    It answers to torch's function protocol, so that a per-example engine can bring its own rule for the whole of it.
    """
    if has_torch_function((weight, gain)):
        return handle_torch_function(standardise, (weight, gain), weight, gain, eps=eps)
    rest = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(dim=rest, keepdim=True)
    return centred * (gain * torch.rsqrt(centred.square().sum(dim=rest, keepdim=True).clamp(min=eps)))


def _pullback(rows: Tensor, weight: Tensor, gain: Tensor, eps: float = 1e-4) -> list[Tensor]:
    """Turn gradients of `standardise`, one for each row, into those of the weight, in place; return those of the gain.

    With c = w - mean, r = 1 / sqrt(max(n var, eps)) and u = r c, all per output channel:
    dgain = <g, u>, and dw = gain r (g - mean(g) - <g, u> u), without the last term where eps holds.
    """
    axes = sorted(range(1, weight.dim()), key=lambda a: -rows.stride(a + 1))  # as they lie in memory
    g = rows.permute(0, 1, *(a + 1 for a in axes)).flatten(2)
    w = weight.permute(0, *axes).flatten(1)
    centred = w - w.mean(dim=1, keepdim=True)
    total = centred.square().sum(dim=1, keepdim=True)  # n var
    r = torch.rsqrt(total.clamp(min=eps))
    u, scale, moving = centred * r, gain.view(-1, 1) * r, total > eps
    axis, block = 1, max(1, IN_CACHE // w.shape[1])
    if g.stride(1) == 1:  # the channels lie last: all of them at a time, on the transposed
        axis, block, g = 0, w.shape[1], g.mT
        u, scale, moving = (t.T.contiguous() for t in (u, scale, moving))
    parts = list(zip(*(t.split(block) for t in (u, scale, moving)), strict=True))
    products = torch.empty_like(u[:block])
    of_gain = []
    for row in g:  # one at a time, so that no row's last bits depend on how many there are
        along = []
        for some, (u_, scale_, moving_) in zip(row.split(block), parts, strict=True):
            along.append(torch.mul(some, u_, out=products[: len(some)]).sum(dim=axis, keepdim=True))
            mean = some.mean(dim=axis, keepdim=True)
            some.addcmul_(u_, along[-1] * moving_, value=-1).sub_(mean).mul_(scale_)
        of_gain.append(torch.cat(along))
    return [torch.stack(of_gain).reshape(-1, *gain.shape)]


# Where many gradients are carried back at once, this is faster than autograd one by one.
standardise.pullback = _pullback  # type: ignore[attr-defined]


class StandardisedConv2d(nn.Conv2d):
    """nn.Conv2d with standardised filters and a `gain` for each output channel, from 1."""

    def __init__(self, *args, **options) -> None:  # type: ignore[no-untyped-def]  # those of nn.Conv2d
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardise(self.weight, self.gain), self.bias)
