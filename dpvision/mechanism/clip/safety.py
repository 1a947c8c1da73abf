"""What must not be trained: layers that mix the images of a batch, keep statistics of them, or draw at random.

`refuse_unsafe` knows some of them by class. `verify` knows nothing and tries: on random images it computes every unit's
gradient in a batch by the rules, and alone by ordinary autograd. They agree only if the rules are right for this model
and no unit's gradient depends on another unit.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.errors import ConfigError, UnsafeLayer
from dpvision.mechanism.clip.clipped_sum import ClippedSum, Public
from dpvision.mechanism.clip.passes import Loss

MIXES_IMAGES = (nn.modules.batchnorm._BatchNorm,)
DRAWS = (nn.modules.dropout._DropoutNd, nn.RReLU)
TOLERANCE = 1e-6


def refuse_unsafe(model: nn.Module) -> None:
    """Refuse, by name, the modules that couple examples, keep statistics of the data, or draw at random."""
    for name, module in model.named_modules():
        what = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, MIXES_IMAGES) or getattr(module, "track_running_stats", False):
            raise UnsafeLayer(
                f"{what} mixes the examples of a batch or keeps statistics of them, so clipping one example does not "
                "bound its influence. Fix: use GroupNorm instead."
            )
        if isinstance(module, DRAWS) and module.training and getattr(module, "p", 1.0) > 0:
            raise UnsafeLayer(
                f"{what} draws from torch's global generator, so a run could not be resumed bit by bit. "
                "Fix: leave it out, or call .eval() on it."
            )


def verify(model: nn.Module, loss: Loss, shape: tuple[int, ...], classes: int, *, apart: bool = False) -> None:
    """By trial: the gradient of each unit in a batch equals that of the unit alone, or the model is refused.

    In float64, where rounding can not hide a difference nor a kink of the activation function make one; at weights that
    are moved a little, so that no path is closed by a zero; also beside units that are huge or not numbers at all. With
    `apart`, also where each view is differentiated at weights of its own.
    """
    model = copy.deepcopy(model).double()
    generator = torch.Generator().manual_seed(0)
    place = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(place))
    for views, first in (([2, 3, 2], 1.0), ([2, 2, 2], 1e6), ([2, 2], float("nan")), ([1, 1, 1, 1, 1], 1.0)):
        count = sum(views)
        images = (torch.rand(count, *shape, generator=generator, dtype=torch.float64) * 2 - 1).to(place)
        images[: views[0]] *= first
        targets = torch.randint(0, classes, (count,), generator=generator).to(place)
        with torch.no_grad():
            got = tuple(model(images).shape)
        if got != (count, classes):
            raise ConfigError(
                f"the model gives outputs of shape {got} for {count} images; with {classes} classes it must be "
                f"({count}, {classes})."
            )
        before = {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}
        together = ClippedSum(model, loss, clip=1.0, physical=count).gradients(images, targets, views)  # in one pass
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not torch.equal(tensor, before[name]):
                raise UnsafeLayer(f"{name}: a tensor that a pass over images changes would carry them out of here.")
        start = 0
        for unit, number in enumerate(views):
            part = slice(start, start + number)
            start += number
            if unit or first == 1.0:
                _compare(model, together[unit], _alone(model, loss, images[part], targets[part]).detach())
    if apart:
        _verify_apart(model, loss, images[:4], targets[:4], generator)


def _verify_apart(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, generator: torch.Generator) -> None:
    """Two units of two views, each view at weights of its own: the mean of ordinary gradients at these weights."""
    engine = ClippedSum(model, loss, clip=1.0)
    moves = [0.01 * torch.randn(engine.size, generator=generator, dtype=torch.float64).to(images) for _ in range(2)]
    together = engine.gradients(images, targets, [2, 2], Public(perturbations=moves))
    for unit in range(2):
        each = []
        for view, move in enumerate(moves):
            moved, row = copy.deepcopy(model), slice(2 * unit + view, 2 * unit + view + 1)
            trained = [p for p in moved.parameters() if p.requires_grad]
            vector_to_parameters(parameters_to_vector(trained).detach() + move, trained)
            each.append(_alone(moved, loss, images[row], targets[row]).detach())
        _compare(model, together[unit], (each[0] + each[1]) / 2)


def _alone(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    try:
        found = torch.autograd.grad(loss(model(images), targets).mean(), parameters, allow_unused=True)
    except ValueError as error:
        raise UnsafeLayer(
            f"the model can not treat an image when other images are not in the batch: {error}"
        ) from error
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found, strict=True)]
    )


def _compare(model: nn.Module, batch: Tensor, alone: Tensor) -> None:
    least = float(alone.norm()) * 1e-3
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part = slice(start, start + parameter.numel())
        off, size = float((batch[part] - alone[part]).norm()), float(alone[part].norm())
        if not off <= TOLERANCE * max(size, least):
            owner = name.rpartition(".")[0]
            kind = type(model.get_submodule(owner)).__name__
            raise UnsafeLayer(
                f"{name} ({kind}): its gradient for an image differs when other images are in the batch, by "
                f"{off / max(size, least):.1%}. Either a layer after it mixes the examples of a batch, or it is used "
                "in a way that has no rule. Fix: let every layer work on each image alone, or freeze this one."
            )
        start += parameter.numel()
