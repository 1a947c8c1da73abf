"""The trunk of a network under a projection: contrastive losses act on the projection, which is thrown away afterwards.

The trunk is what comes before the head, its last normalisation and its pooling; these two are for private images to
learn first (Tang et al. 2023).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.models import Shape, build
from dpvision.models.featured import head_of

GROUPS = 16
OUT = 128


class Encoder(nn.Module):
    """Images -> rows of length 1."""

    def __init__(self, name: str, shape: Shape, *, hidden: int = 4096, seed: int = 0) -> None:
        super().__init__()
        model = build(name, shape, classes=2, seed=seed)
        self.trunk = trunk_of(model, name)
        head = head_of(model) + "."
        self._others = {n: t.clone() for n, t in model.state_dict().items() if not n.startswith(head)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            width = self.trunk(torch.zeros(1, *shape)).flatten(1).shape[1]
            self.projection = projection(width, hidden)

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.projection(self.trunk(images).flatten(1)), dim=1)

    def weights(self) -> dict[str, Tensor]:
        """The trunk's, by the names that they have in the whole network, and what it has besides but the head."""
        return {**self._others, **self.trunk.state_dict()}


def projection(width: int, hidden: int) -> nn.Sequential:
    """Two hidden layers with GroupNorm, then a linear map to 128 numbers."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Linear(width, hidden, bias=False), nn.GroupNorm(GROUPS, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(hidden, OUT))


def trunk_of(model: nn.Module, name: str) -> nn.Sequential:
    """What comes before the head, its pooling and the normalisation before that, if there is one."""
    if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear):
        raise ConfigError(f"{name}: only a sequence of layers with a linear head can be pretrained. Fix: wrn-16-4.")
    end = len(model) - 1
    while end and not any(p.requires_grad for p in model[end - 1].parameters()):
        end -= 1
    if end and not any(isinstance(m, nn.Conv2d | nn.Linear) for m in model[end - 1].modules()):
        end -= 1
    if not end:
        raise ConfigError(f"{name}: nothing comes before its head, so there is nothing to pretrain. Fix: wrn-16-4.")
    return nn.Sequential(*list(model)[:end])
