"""Weight standardisation: a convolution whose filters have mean zero and a learned scale (De et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

# Numbers of a gradient that are worked on at a time: what stays in a core's own cache.
IN_CACHE = 1 << 17
# A filter's gain below this is too small to be divided by.
SMALLEST_GAIN = 1e-6


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


class _OfViews:
    """The same for a convolution whose views k each have weights of their own, with one contraction over all of them.

    With s = gain r, t = <g, gain u> and the rest as above: sum_k dw_k = G - mean(G) - sum_k r_k t_k u_k for
    G = sum_k s_k g_k, and sum_k dgain_k = sum_k t_k / gain_k. G is linear in the output gradients dy, so s goes into
    these; and t, the product of a filter's gradient with the filter, is the sum over all places of dy times y.
    """

    @staticmethod
    def possible(weight: Tensor, gain: Tensor) -> bool:
        """By the weights alone, which are public."""
        return weight.dim() == 4 and bool((gain.abs() > SMALLEST_GAIN).all())

    @staticmethod
    def before(
        dy: Tensor, y: Tensor, of_bias: Tensor | None, weight: Tensor, gain: Tensor, eps: float = 1e-4
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Of one view: s, and what `after` needs: t for each image, r where it moves, u, gain.

        `of_bias` is the share of the bias in the sums of dy times y, for each image, if there is a bias.
        """
        with torch.no_grad():
            centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
            total = centred.square().sum(dim=(1, 2, 3))
            r = torch.rsqrt(total.clamp(min=eps))
            size = max(1, IN_CACHE // dy[0].numel())
            along = torch.cat([(a * b).sum(dim=(2, 3)) for a, b in zip(dy.split(size), y.split(size), strict=True)])
            if of_bias is not None:
                along -= of_bias
            return gain.flatten() * r, (along, r * (total > eps), centred * r.view(-1, 1, 1, 1), gain.flatten())

    @staticmethod
    def after(rows: Tensor, views: list[tuple[Tensor, ...]]) -> list[Tensor]:
        """Turn rows, which are G, into gradients of the weight, in place; return those of the gain."""
        axes = sorted(range(1, rows.dim() - 1), key=lambda a: -rows.stride(a + 1))
        g = rows.permute(0, 1, *(a + 1 for a in axes)).flatten(2)  # (units, filters, fan in)
        u = torch.stack([v[2].permute(0, *axes).flatten(1) for v in views], dim=1)  # (filters, views, fan in)
        along = torch.stack([v[0] * v[1] for v in views], dim=2)  # (units, filters, views)
        block = max(1, IN_CACHE // (u.shape[1] * u.shape[2]))
        for start in range(0, u.shape[0], block):
            some = slice(start, start + block)
            for row, each in zip(g[:, some], along[:, some], strict=True):  # one at a time, for the same bits
                row.sub_(row.mean(dim=1, keepdim=True))
                row.unsqueeze(1).baddbmm_(each.unsqueeze(1), u[some], alpha=-1)
        of_gain = sum(v[0] / v[3] for v in views)
        assert isinstance(of_gain, Tensor)
        return [of_gain.view(len(rows), -1, 1, 1, 1)]


# Where many gradients are carried back at once, this is faster than autograd one by one.
standardise.pullback = _pullback  # type: ignore[attr-defined]
standardise.of_views = _OfViews  # type: ignore[attr-defined]


class StandardisedConv2d(nn.Conv2d):
    """nn.Conv2d with standardised filters and a `gain` for each output channel, from 1."""

    def __init__(self, *args, **options) -> None:  # type: ignore[no-untyped-def]  # those of nn.Conv2d
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardise(self.weight, self.gain), self.bias)
