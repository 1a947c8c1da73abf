"""The ways to a clipped sum that are compared, and the plain training that bounds them all.

Each is made by `ready(mode, ...)` and is then a function without arguments: one pass over all images, which gives the
sum over the units of clip_1(mean over the unit's views of the gradient) as a list of tensors. No noise, no step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.torch_func import ReferenceSum
from dpvision.private.engine import ClippedSum

LOSSES = partial(F.cross_entropy, reduction="none")
CLIP = 1.0
Pass = Callable[[], list[Tensor]]


def ready(mode: str, model: nn.Module, images: Tensor, targets: Tensor, *, views: int, cut: int, layout: str) -> Pass:
    """A pass of `mode` that treats at most `cut` images at a time (always whole units), in the given memory layout."""
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    cut = max(1, cut // views) * views
    pieces = list(zip(images.split(cut), targets.split(cut), strict=True))
    if mode == "ours":
        far = any(p.device.type != "cpu" for p in model.parameters())
        options = {"physical": cut, "views": views} if far else {}
        engine = ClippedSum(model, LOSSES, clip=CLIP, one_view=views == 1, **options)
        return partial(_engine, engine, [(images, targets)], views)
    if mode == "vmap":
        return partial(_engine, ReferenceSum(model, LOSSES, clip=CLIP), pieces, views)
    if mode == "plain":
        return partial(_products if _is_linear(model) else _plain, model, pieces)
    if mode == "ghost":
        return _ghost(model, pieces)
    return _per_sample(mode, model, pieces, views)


def _plain(model: nn.Module, pieces: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Ordinary training: the gradient of the summed loss."""
    model.zero_grad()
    for images, targets in pieces:
        F.cross_entropy(model(images), targets, reduction="sum").backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def _is_linear(model: nn.Module) -> bool:
    return isinstance(model, nn.Sequential) and isinstance(model[-1], nn.Linear) and len(model) == 2


def _products(model: nn.Sequential, pieces: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """What a linear layer cannot do without: X W^T, and dY^T X for a dY at hand."""
    weight = next(model.parameters()).detach()
    total = torch.zeros_like(weight)
    for images, _ in pieces:
        rows = images.flatten(1)
        outputs = rows @ weight.T
        total.addmm_(outputs.T, rows)
    return [total]


def _engine(engine: Callable[..., Tensor], pieces: list[tuple[Tensor, Tensor]], views: int) -> list[Tensor]:
    return [sum(engine(x, y, [views] * (len(y) // views)).cpu() for x, y in pieces)]


def _per_sample(mode: str, model: nn.Module, pieces: list[tuple[Tensor, Tensor]], views: int) -> Pass:
    """Opacus: the gradient of every image, averaged over the views of a unit, clipped and added up."""
    from opacus.grad_sample.utils import wrap_model

    wrapped = wrap_model(model, grad_sample_mode=mode, batch_first=True, loss_reduction="sum")
    parameters = list(model.parameters())

    def once() -> list[Tensor]:
        totals = [torch.zeros_like(p) for p in parameters]
        for images, targets in pieces:
            F.cross_entropy(wrapped(images), targets, reduction="sum").backward()
            _add_clipped(totals, [_mean_of_views(p.grad_sample, views) for p in parameters])
            wrapped.zero_grad(set_to_none=True)
        return totals

    return once


def _mean_of_views(gradients: Tensor, views: int) -> Tensor:
    return gradients if views == 1 else gradients.unflatten(0, (-1, views)).mean(1)


def _add_clipped(totals: list[Tensor], gradients: list[Tensor]) -> None:
    """Scale each unit's gradient over all parameters to norm at most CLIP, and add the sum to `totals`."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients]).norm(dim=0)
    factors = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    for total, gradient in zip(totals, gradients, strict=True):
        total.add_(torch.tensordot(factors, gradient, dims=1))


def _ghost(model: nn.Module, pieces: list[tuple[Tensor, Tensor]]) -> Pass:
    """Opacus: the norms of the images' gradients by a first backward pass, the clipped sum by a second."""
    from opacus.grad_sample.utils import wrap_model
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = wrap_model(model, grad_sample_mode="ghost", batch_first=True, loss_reduction="sum", max_grad_norm=CLIP)
    parameters = list(model.parameters())
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(parameters, lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=len(pieces[0][1]),
        loss_reduction="sum",
    )
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum")

    def once() -> list[Tensor]:
        totals = [torch.zeros_like(p) for p in parameters]
        for images, targets in pieces:
            loss(wrapped(images), targets).backward()
            for total, p in zip(totals, parameters, strict=True):
                total.add_(p.grad)
        return totals

    return once
