"""Which weights are trained: all, the head alone or with what is before it, or the biases and the head.

What may be before a head is the mean of its features, which is learned as any other weight, by a gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.featured import Featured, head_of

PARTS = ("all", "head", "centred-head", "probe", "bias")
CENTRE = "centre"  # part of part "centred-head", in its first step


def train_only(model: nn.Module, part: str, *, name: str = "") -> None:
    """Set `requires_grad` of every parameter. A prefix of fixed features stays frozen whatever the part.

    all            everything but the mean of features
    head           the classifier: the last linear layer
    centred-head   the mean of the features in one step, then the head on features less their mean
    probe          the head and the normalisation that its input went through last (Tang et al. 2023, Phase II)
    bias           every parameter named bias, of normalisations too, and the head (BitFiT, Ben Zaken et al. 2022)
    """
    name = name or type(model).__name__
    if part not in (*PARTS, CENTRE):
        raise ConfigError(f"{name}: there is no part {part!r} to train. There are: {', '.join(PARTS)}.")
    centre = {f"{n}.centre" for n, m in model.named_modules() if isinstance(m, Centred)}
    if part in ("centred-head", CENTRE) and not centre:
        raise ConfigError(f"{name}: it does not take the mean off its features. Fix: --part head.")
    fixed = isinstance(model, Featured)
    able = {n for n, _ in model.named_parameters() if n not in centre and not (fixed and n.startswith("prefix."))}
    if part == CENTRE:
        able = set()
    chosen = able if part == "all" else {n for n in able if n.startswith(head_of(model, name=name) + ".")}
    if part in ("centred-head", CENTRE):
        chosen = chosen | centre
    if part == "probe":
        chosen = chosen | {n for n in able if n.startswith(norm_before_head(model, name=name) + ".")}
    if part == "bias":
        biases = {n for n in able if n.rpartition(".")[2] == "bias"}
        if biases <= chosen:
            raise ConfigError(f"{name}: it has no bias but its head's, so part 'bias' is part 'head'. Fix: use 'head'.")
        chosen = chosen | biases
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in chosen)


def norm_before_head(model: nn.Module, *, name: str = "") -> str:
    """The name of the last normalisation before the classifier, with no other layer that learns between them."""
    layers = [n for n, m in model.named_modules() if m._parameters]
    before = layers[: layers.index(head_of(model, name=name))]
    if not before or not isinstance(model.get_submodule(before[-1]), nn.GroupNorm | nn.LayerNorm):
        raise ConfigError(
            f"{name or type(model).__name__}: no normalisation comes right before its head, so part 'probe' is part "
            "'head'. Fix: use 'head'."
        )
    return before[-1]


def centred_linear(width: int, classes: int) -> nn.Sequential:
    """A linear classifier on features less their mean, from zero weights; rows around zero need no bias."""
    head = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(head.weight)
    return nn.Sequential(Centred(width), head)


def start_at_zero(model: nn.Module) -> None:
    """Weights to start from may bring a centre of their own."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Centred):
                module.centre.zero_()


class Centred(nn.Module):
    """Rows to rows of length 1 without what all of them share. Until `centre` is learned it is zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x - self.centre, dim=1)


class Agreement(nn.Module):
    """-<x, centre> for each row x. Its gradient is -x whatever the centre is: one step from zero, at the rate 1, over
    all rows takes the centre to their mean."""

    def __init__(self, centred: Centred) -> None:
        super().__init__()
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        return -(x * self.centred.centre).sum(1, keepdim=True)
