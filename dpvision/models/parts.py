"""Which weights are trained: all, the head alone or with what is before it, or the biases and the head."""

from __future__ import annotations

from torch import nn

from dpvision.errors import ConfigError
from dpvision.models.centred import Centred
from dpvision.models.featured import Featured

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


def head_of(model: nn.Module, *, name: str = "") -> str:
    """The name of the classifier inside the model: its last linear layer."""
    linears = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if isinstance(model, Featured):
        linears = [n for n in linears if n == "rest" or n.startswith("rest.")]
    if not linears:
        raise ConfigError(
            f"{name or type(model).__name__}: it has no linear layer, so part 'head' means nothing. Fix: train 'all'."
        )
    return linears[-1]
