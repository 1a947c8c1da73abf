"""Networks with bounded activations: Papernot et al. 2021."""

from __future__ import annotations

from dpvision.settings.training import Config


def tanh_cnn() -> Config:
    """The convolutional network with tanh, which keeps gradients small, from random weights.

    Paper: Papernot et al. 2021 (Tempered Sigmoid Activations).
    Command: dpvision train mnist.npz --epsilon 3 --recipe tanh-cnn
    Hardware and minutes: minutes on 2 CPU cores; not measured yet.
    Expect: 98.1% on MNIST at epsilon 2.93 as published; no figure of our own yet.
    """
    return Config(recipe="tanh-cnn", model="tanh-cnn", batch=2048, lr=2.0, momentum=0.9, clip=0.1)
