"""Adam (Kingma and Ba 2015) with all that it remembers within reach, so that a stopped fit goes on exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


@contextmanager
def coins(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Within, torch's coins are a function of (seed, step) and the device; outside, nothing has changed."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(mixed(seed, step))
        yield


def mixed(*numbers: int | str) -> int:
    """A seed for each tuple, with no order in them."""
    return int.from_bytes(hashlib.blake2b("/".join(map(str, numbers)).encode(), digest_size=7).digest(), "big")


class Adam:
    """m <- b1 m + (1 - b1) g, v <- b2 v + (1 - b2) g^2, w <- w - rate m^ / (sqrt(v^) + eps), algorithm 1."""

    def __init__(self, network: nn.Module) -> None:
        self.names = [name for name, _ in network.named_parameters()]
        self.weights = list(network.parameters())
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights]

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        """Zero for weights that had no part in it, such as those of an augmentation that is off."""
        return torch.autograd.grad(loss, self.weights, materialize_grads=True)

    @torch.no_grad()
    def descend(self, gradients: Sequence[Tensor], *, step: int, rate: float) -> None:
        """`step` counts from 1."""
        correct_1, correct_2 = 1 - BETA_1**step, 1 - BETA_2**step
        for w, g, m, v in zip(self.weights, gradients, self.first, self.second, strict=True):
            m.lerp_(g, 1 - BETA_1)
            v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
            w.addcdiv_(m, (v / correct_2).sqrt_().add_(EPSILON), value=-rate / correct_1)

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments by name: what a file must hold, and where it is read to."""
        parts: dict[str, list[Tensor]] = {"first": self.first, "second": self.second}
        parts["network"] = list(self.weights)
        return {f"{part}.{name}": t for part, each in parts.items() for name, t in zip(self.names, each, strict=True)}
