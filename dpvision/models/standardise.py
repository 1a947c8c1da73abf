"""Weight standardisation: a convolution whose filters have mean zero and a learned scale (De et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function


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
    channels, n = weight.shape[0], weight[0].numel()
    axes = sorted(range(1, weight.dim()), key=lambda a: -rows.stride(a + 1))  # as they lie in memory
    g = rows.permute(0, 1, *(a + 1 for a in axes)).flatten(2)
    w = weight.permute(0, *axes).reshape(channels, n)
    centred = w - w.mean(dim=1, keepdim=True)
    total = centred.square().sum(dim=1, keepdim=True)  # n var
    r = torch.rsqrt(total.clamp(min=eps))
    u = centred * r
    scale, moving = gain.view(-1, 1) * r, total > eps
    basis = torch.stack([u, torch.full_like(u, n**-0.5)], dim=2)  # (channels, n, 2)
    of_gain = []
    for row in g:  # one at a time, so that no row's last bits depend on how many there are
        along, mean_part = torch.bmm(row.unsqueeze(1), basis).squeeze(1).split(1, dim=1)
        of_gain.append(along)
        row.addcmul_(u, along * moving, value=-1).sub_(mean_part * n**-0.5).mul_(scale)
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
