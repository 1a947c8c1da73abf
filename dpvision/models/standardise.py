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
    var, mean = torch.var_mean(weight, dim=rest, correction=0, keepdim=True)
    return (weight - mean) * (gain * torch.rsqrt((weight[0].numel() * var).clamp(min=eps)))


class StandardisedConv2d(nn.Conv2d):
    """nn.Conv2d with standardised filters and a `gain` for each output channel, from 1."""

    def __init__(self, *args, **options) -> None:  # type: ignore[no-untyped-def]  # those of nn.Conv2d
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardise(self.weight, self.gain), self.bias)
