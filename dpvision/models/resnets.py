"""Residual networks for private learning: wide residual networks with standardised filters, and ResNet-9.

The WRN-16-4 and WRN-40-4 of De et al. 2022 (arXiv 2204.13650) differ from the wide residual networks of 2016 in four
ways: GroupNorm with 16 groups replaces batch statistics; normalisation comes after the activation; filters are
standardised, with gain and bias; and the skip connection of the first block of a stage has its own activation and
normalisation.

In the ResNet-9 of Klause et al. 2022 (arXiv 2203.00324), which has also been used on MedMNIST and CIFAR, each
convolution is followed by GroupNorm with 32 groups and Mish. The sum at the end of a residual block is normalised again
("ScaleNorm"), which the authors found to help under differential privacy.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dpvision.errors import ConfigError

WIDE_GROUPS, RESNET9_GROUPS = 16, 32
# Number of gradient entries to process together: about what fits in a core's cache.
IN_CACHE = 1 << 17
# A gain below this is too small to divide by.
MIN_GAIN = 1e-6


def standardise(weight: Tensor, gain: Tensor, eps: float = 1e-4) -> Tensor:
    """Return gain * (w - mean) / sqrt(max(fan_in * var, eps)) for each output channel, with the biased variance.

    This is a single operation in torch's function protocol, so that a per-example engine can use a special rule for it.
    """
    if has_torch_function((weight, gain)):
        return handle_torch_function(standardise, (weight, gain), weight, gain, eps=eps)
    rest = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(dim=rest, keepdim=True)
    return centred * (gain * torch.rsqrt(centred.square().sum(dim=rest, keepdim=True).clamp(min=eps)))


class _Pullback:
    """Turns rows of gradients of `standardise` into gradients of the weight, in place; returns those of the gain.

    With c = w - mean, r = 1 / sqrt(max(n var, eps)) and u = r c, all per output channel: dgain = <g, u>, and
    dw = gain r (g - mean(g) - <g, u> u), without the last term where n var < eps. If t = <g, gain u> is given, rows
    already hold gain r g (see `_OfViews`), which saves two of four passes over them.
    """

    def __init__(self, weight: Tensor, gain: Tensor, eps: float = 1e-4) -> None:
        self._weight, self._gain, self._eps = weight, gain, eps
        self._axes: tuple[int, ...] = ()
        self._strides: tuple[int, ...] = ()

    def __call__(self, rows: Tensor, t: Tensor | None = None) -> list[Tensor]:
        if rows.stride()[1:] != self._strides:
            self._strides = rows.stride()[1:]
            self._prepare(tuple(sorted(range(1, rows.dim() - 1), key=lambda a: -rows.stride(a + 1))))  # in memory order
        g = rows.permute(0, 1, *self._axes).flatten(2)
        if g.device.type != "cpu":  # all rows at once
            return [_pull_back(g, *self._parts[0]).reshape(-1, *self._gain.shape)]
        if t is not None:
            for row, along in zip(g, (t * self._moving).unsqueeze(2), strict=True):
                mean = row.mean(dim=1, keepdim=True)
                row.addcmul_(self._u, along).sub_(mean)
            return [(t / self._gain.flatten()).reshape(-1, *self._gain.shape)]
        of_gain = []
        for row in g.unbind(0):  # one by one, so that a row's last bits do not depend on the number of rows
            pairs = zip(row.split(self._block), self._parts, strict=True)
            of_gain.append(torch.cat([_pull_back(part, *more) for part, more in pairs]))
        return [torch.stack(of_gain).reshape(-1, *self._gain.shape)]

    def _prepare(self, axes: tuple[int, ...]) -> None:
        w = self._weight.permute(0, *axes).flatten(1)
        centred = w - w.mean(dim=1, keepdim=True)
        total = centred.square().sum(dim=1, keepdim=True)  # n var
        r = torch.rsqrt(total.clamp(min=self._eps))
        three = (centred * r, self._gain.view(-1, 1) * r, -(total > self._eps).to(w))
        self._u, self._moving = three[0], (three[2] * r).flatten()
        self._axes = tuple(a + 1 for a in axes)
        self._block = max(1, IN_CACHE // w.shape[1]) if w.device.type == "cpu" else len(w)
        self._parts = list(zip(*(t.split(self._block) for t in three), strict=True))


def _pull_back(g: Tensor, u: Tensor, scale: Tensor, moving: Tensor) -> Tensor:
    """Do this for some channels; `moving` is -1 where n var > eps, and 0 elsewhere."""
    along = (g * u).sum(dim=-1, keepdim=True)
    mean = g.mean(dim=-1, keepdim=True)
    g.addcmul_(u, along * moving).sub_(mean).mul_(scale)
    return along


class _OfViews:
    """The pullback of a convolution that has different weights for each view k, in one contraction over all views.

    With s = gain r, t = <g, gain u> and the rest as in `_Pullback`: sum_k dw_k = G - mean(G) - sum_k r_k t_k u_k for
    G = sum_k s_k g_k, and sum_k dgain_k = sum_k t_k / gain_k. Because G is linear in the output gradients dy, these can
    be multiplied by s. The inner product t of a filter and its gradient is the sum of dy times y over all positions.
    """

    @staticmethod
    def possible(weights: list[Tensor], gains: list[Tensor]) -> Tensor:
        """Return whether this rule applies to all views. This depends only on their weights, which are public."""
        return (torch.stack(gains).abs() > MIN_GAIN).all() & (weights[0].dim() == 4)

    @staticmethod
    def before(
        dy: Tensor, y: Tensor, of_bias: Tensor | None, weight: Tensor, gain: Tensor, eps: float = 1e-4
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """For one view, return s and the inputs of `after`: t for each image, r where n var > eps (else 0), u and gain.

        `of_bias` is the contribution of a bias, if there is one, to each image's sums of dy times y.
        """
        with torch.no_grad():
            centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
            total = centred.square().sum(dim=(1, 2, 3))
            r = torch.rsqrt(total.clamp(min=eps))
            size = max(1, IN_CACHE // dy[0].numel()) if dy.device.type == "cpu" else len(dy)
            along = torch.cat([(a * b).sum(dim=(2, 3)) for a, b in zip(dy.split(size), y.split(size), strict=True)])
            if of_bias is not None:
                along -= of_bias
            return gain.flatten() * r, (along, r * (total > eps), centred * r.view(-1, 1, 1, 1), gain.flatten())

    @staticmethod
    def after(rows: Tensor, views: list[tuple[Tensor, ...]]) -> list[Tensor]:
        """Turn the rows, which hold G, into gradients of the weight, in place; return those of the gain."""
        axes = sorted(range(1, rows.dim() - 1), key=lambda a: -rows.stride(a + 1))
        g = rows.permute(0, 1, *(a + 1 for a in axes)).flatten(2)  # (units, filters, fan in)
        u = torch.stack([v[2].permute(0, *axes).flatten(1) for v in views], dim=1)  # (filters, views, fan in)
        along = torch.stack([v[0] * v[1] for v in views], dim=2)  # (units, filters, views)
        of_gain = sum(v[0] / v[3] for v in views)
        assert isinstance(of_gain, Tensor)
        if g.device.type != "cpu":  # all rows at once
            g.sub_(g.mean(dim=2, keepdim=True)).sub_(torch.bmm(along.transpose(0, 1), u).transpose(0, 1))
            return [of_gain.view(len(rows), -1, 1, 1, 1)]
        block = max(1, IN_CACHE // (u.shape[1] * u.shape[2]))
        for start in range(0, u.shape[0], block):
            part = slice(start, start + block)
            for row, products in zip(g[:, part], along[:, part], strict=True):  # one by one, as in `_Pullback`
                row.sub_(row.mean(dim=1, keepdim=True))
                row.unsqueeze(1).baddbmm_(products.unsqueeze(1), u[part], alpha=-1)
        return [of_gain.view(len(rows), -1, 1, 1, 1)]


# The engine uses these for many gradients at once, which is faster than computing them one by one with autograd.
standardise.pullback = _Pullback  # type: ignore[attr-defined]
standardise.of_views = _OfViews  # type: ignore[attr-defined]


class StandardisedConv2d(nn.Conv2d):
    """nn.Conv2d with standardised filters and a `gain` for each output channel, initially 1."""

    def __init__(self, *args, **options) -> None:  # type: ignore[no-untyped-def]  # arguments of nn.Conv2d
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardise(self.weight, self.gain), self.bias)


def wide_resnet(
    shape: tuple[int, int, int],
    classes: int,
    *,
    depth: int = 16,
    width: int = 4,
    conv: type[nn.Conv2d] = StandardisedConv2d,
) -> nn.Module:
    """Build a 3x3 convolution to 16 channels, three stages of (depth - 4) / 6 blocks, average pooling and the head."""
    blocks, odd = divmod(depth - 4, 6)
    if blocks < 1 or odd:
        raise ConfigError(f"a wide residual network has depth 6 n + 4, such as 16 or 40, not {depth}.")
    layers: list[nn.Module] = [conv(shape[0], 16, 3, padding=1)]
    channels = 16
    for filters, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for block in range(blocks):
            layers.append(Block(channels, filters, stride=1 if block else stride, skip=block == 0, conv=conv))
            channels = filters
    head = nn.Linear(channels, classes)
    model = nn.Sequential(*layers, ReluNorm(channels), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    model.apply(_initialise_wide)
    return model


def _initialise_wide(module: nn.Module) -> None:
    """Draw normal filters and a truncated normal head, both with variance 1 / fan_in; set biases to zero."""
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight[0].numel()))
    elif isinstance(module, nn.Linear):
        std = 1 / math.sqrt(module.in_features) / 0.87962566  # standard deviation of a standard normal truncated at 2
        nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    else:
        return
    if module.bias is not None:
        nn.init.zeros_(module.bias)


class ReluNorm(nn.Module):
    """An activation followed by a normalisation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(WIDE_GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(x))


class Block(nn.Module):
    """skip(x) + conv2(norm2(conv1(norm1(x)))), where the skip is the identity, or a norm and a 1x1 convolution."""

    def __init__(self, channels: int, filters: int, *, stride: int, skip: bool, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.skip = (
            nn.Sequential(ReluNorm(channels), conv(channels, filters, 1, stride=stride)) if skip else nn.Identity()
        )
        self.norm1 = ReluNorm(channels)
        self.conv1 = conv(channels, filters, 3, stride=stride, padding=1 if stride == 1 else 0)
        self.norm2 = ReluNorm(filters)
        self.conv2 = conv(filters, filters, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(x)
        if self.conv1.stride[0] == 2:
            inner = _pad_same(inner)
        return self.skip(x) + self.conv2(self.norm2(self.conv1(inner)))


def _pad_same(x: Tensor) -> Tensor:
    """Add SAME padding for a 3x3 kernel with stride 2: a zero after an even side, a zero at each end of an odd side."""
    return F.pad(x, (x.shape[-1] % 2, 1, x.shape[-2] % 2, 1))


def resnet9(shape: tuple[int, int, int], classes: int, *, width: int = 64) -> nn.Module:
    """Build layers of w, 2w, 4w and 4w channels, where the last three halve the image, and two residual blocks."""
    channels, height, columns = shape
    if min(height, columns) < 8:
        raise ConfigError(f"resnet-9 needs at least 8x8 pixels, not {height}x{columns}. Fix: use --model small-cnn.")
    return nn.Sequential(
        Layer(channels, width),
        Layer(width, 2 * width, pool=True),
        Residual(2 * width),
        Layer(2 * width, 4 * width, pool=True),
        Layer(4 * width, 4 * width, pool=True),
        Residual(4 * width),
        MaximumOfQuarters(),
        nn.Flatten(),
        nn.Linear(4 * 4 * width, classes),
    )


class MaximumOfQuarters(nn.Module):
    """nn.AdaptiveMaxPool2d(2), bit for bit, by an operation whose gradient is deterministic on every device."""

    def forward(self, x: Tensor) -> Tensor:
        # The windows of an odd side overlap by one pixel. For a side of one pixel, both contain it and padding.
        sides = [(-(-side // 2), side // 2, 0) if side > 1 else (2, 1, 1) for side in x.shape[2:]]
        kernel, stride, padding = zip(*sides, strict=True)
        return F.max_pool2d(x, kernel, stride, padding)


class Layer(nn.Module):
    """pool(mish(norm(conv(x)))), with a 3x3 convolution without bias."""

    def __init__(self, channels: int, filters: int, *, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.norm = _norm(filters)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        x = F.mish(self.norm(self.conv(x)))
        return F.max_pool2d(x, 2) if self.pool else x


class Residual(nn.Module):
    """norm(x + layer(layer(x)))"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(channels, channels), Layer(channels, channels))
        self.norm = _norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.layers(x))


def _norm(channels: int) -> nn.GroupNorm:
    """Return GroupNorm with 32 groups or, at small widths, with fewer groups of two channels."""
    return nn.GroupNorm(min(RESNET9_GROUPS, channels // 2), channels)
