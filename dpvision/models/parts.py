"""Selection of the weights to train: all, the head, the head and the layer before it, or the biases and the head.

The layer before a head may subtract the mean of the features, which is learned from a gradient like any other weight.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models.featured import CLASS_SHARES, Featured, head_name, split_head

PARTS = ("all", "head", "centred-head", "probe", "bias")
CENTRE = "centre"  # the weights that part "centred-head" trains in its first step
SHARES = "shares"  # the shares of the classes, which the objective "balanced" estimates in one step
MIN_SHARE = 0.1  # of a class, as a fraction of that of equally frequent classes: a noisy share may be near or below 0


def train_only(model: nn.Module, part: str, *, name: str = "") -> None:
    """Set `requires_grad` of every parameter. The prefix of frozen features stays frozen for any part.

    all            everything except the mean of the features
    head           the classifier: the last linear layer
    centred-head   the mean of the features in one step, then the head on features minus their mean
    probe          the head and the normalisation right before it (Tang et al. 2023, Phase II)
    bias           the head and every parameter named bias, in normalisations too (BitFiT, Ben Zaken et al. 2022)
    """
    name = name or type(model).__name__
    if part not in (*PARTS, CENTRE, SHARES):
        raise ConfigError(f"{name}: there is no part {part!r} to train. There are: {', '.join(PARTS)}.")
    centre = {f"{n}.centre" for n, m in model.named_modules() if isinstance(m, Centred)}
    if part in ("centred-head", CENTRE) and not centre:
        raise ConfigError(f"{name}: it does not subtract the mean of its features. Fix: use --part head.")
    frozen = isinstance(model, Featured)
    trainable = {n for n, _ in model.named_parameters() if n not in centre and not (frozen and n.startswith("prefix."))}
    if part in (CENTRE, SHARES):
        trainable = set()
    chosen = trainable if part == "all" else {n for n in trainable if n.startswith(head_name(model, name=name) + ".")}
    if part in ("centred-head", CENTRE):
        chosen = chosen | centre
    if part == "probe":
        chosen = chosen | {n for n in trainable if n.startswith(norm_before_head(model, name=name) + ".")}
    if part == "bias":
        biases = {n for n in trainable if n.rpartition(".")[2] == "bias"}
        if biases <= chosen:
            raise ConfigError(
                f"{name}: only its head has a bias, so part 'bias' is the same as part 'head'. Fix: use --part head."
            )
        chosen = chosen | biases
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter_name in chosen)


def norm_before_head(model: nn.Module, *, name: str = "") -> str:
    """Return the name of the normalisation before the head, with no other trainable layer in between."""
    layers = [n for n, m in model.named_modules() if m._parameters]
    before = layers[: layers.index(head_name(model, name=name))]
    if not before or not isinstance(model.get_submodule(before[-1]), nn.GroupNorm | nn.LayerNorm):
        raise ConfigError(
            f"{name or type(model).__name__}: there is no normalisation right before its head, so part 'probe' is the "
            "same as part 'head'. Fix: use --part head."
        )
    return before[-1]


def centred_linear(width: int, classes: int) -> nn.Sequential:
    """Build a linear classifier with zero weights on features minus their mean. Centred rows need no bias."""
    head = nn.Linear(width, classes, bias=False)
    nn.init.zeros_(head.weight)
    return nn.Sequential(Centred(width), head)


class CentredRows(Featured):
    """A linear classifier on the features before a network's head: as rows of norm 1, minus their learned mean."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        width = network.get_submodule(head_name(network)).get_parameter("weight").shape[1]
        parts = before_head(network)
        super().__init__(nn.Sequential(parts.prefix, UnitRows()), centred_linear(width, classes), piece=parts.piece)
        self._head = head_name(network) + "."
        self._rename = getattr(network, "from_published", None)

    def from_published(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's published weights under their names here, without the head and with a centre of 0."""
        if "rest.0.centre" in tensors:
            return tensors  # weights of such a classifier
        tensors = tensors if self._rename is None else self._rename(tensors)
        frozen = {f"prefix.0.{name}": tensor for name, tensor in tensors.items() if not name.startswith(self._head)}
        return {**frozen, "rest.0.centre": torch.zeros_like(self.get_parameter("rest.0.centre"))}


def before_head(model: nn.Module) -> Featured:
    """Return the model itself if it is a frozen part followed by only a head, or else split it before its head."""
    if isinstance(model, Featured):
        learned = [m for m in model.rest.modules() if m._parameters and not isinstance(m, Centred)]
        if len(learned) == 1:
            return model
    return split_head(model)


def zero_centres(model: nn.Module) -> None:
    """Set every `Centred.centre` to zero, because the initial weights may contain other values."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Centred):
                module.centre.zero_()


class UnitRows(nn.Module):
    """Flatten the features of each image to a row, and scale the row to norm 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.flatten(1), dim=1)


class Centred(nn.Module):
    """Subtract `centre` from each row and scale the row to norm 1. The centre is zero until it is learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x - self.centre, dim=1)


class ClassShares(nn.Module):
    """The share of each class, zero until it is learned; the outputs of every image are these shares.

    A balanced training run keeps them as a parameter of its model, which the model itself does not use.

    With the loss `share_loss`, the gradient of an image is minus its class as a unit vector. So a single step from zero
    over all images, with learning rate 1, moves the shares to those of the classes. An image that is not finite has no
    finite gradient, and adds nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shares = model.get_parameter(CLASS_SHARES)

    def forward(self, x: Tensor) -> Tensor:
        return self.shares * (1.0 + (0.0 * x).flatten(1).sum(1, keepdim=True))  # NaN for images that are not finite

    def offset(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of the shares, up to a constant: zero until they are learned."""
        shares = self.shares.detach().to(outputs)
        return torch.where(shares.any(), shares.clamp(min=MIN_SHARE / len(shares)).log(), torch.zeros_like(shares))


def share_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return minus the output of each image's class; targets are classes or distributions over the classes."""
    if targets.dim() == 1:
        return -outputs.gather(1, targets[:, None])[:, 0]
    return -(outputs * targets).sum(1)


class Agreement(nn.Module):
    """The loss -<x, centre> of each row x, whose gradient is -x for any centre.

    A single step from zero over all rows, with learning rate 1, moves the centre to their mean.
    """

    def __init__(self, centred: Centred) -> None:
        super().__init__()
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        return -(x * self.centred.centre).sum(1, keepdim=True)
