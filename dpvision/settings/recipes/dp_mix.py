"""Mixtures of an image's own views, and of public images: DP-Mix (Bao et al. 2023)."""

from __future__ import annotations

from dataclasses import replace

from dpvision.settings.recipes.baselines import self_aug
from dpvision.settings.training import Config


def dp_mix_self() -> Config:
    """16 views of each image and 18 mixtures of two of them: mixup that never leaves the image.

    Paper: DP-Mix (Bao et al. 2023), DP-Mix_Self.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-mix-self
    Hardware and minutes: 34/16 of self-aug's.
    Expect: 57.1% at epsilon 1 and 80.0% at epsilon 8 as published (CIFAR-10, table 11); not run to its end here. With
    small networks and 4 + 4 views no different from self-aug (benchmarks/mix.py).
    """
    return replace(self_aug(), recipe="dp-mix-self", k_self=18)


def dp_mix_diff() -> Config:
    """16 views of each image, 2 public synthetic images, and 18 mixtures of two of all these.

    Paper: DP-Mix (Bao et al. 2023), DP-Mix_Diff; as many synthetic images as private ones, by a text-to-image model.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-mix-diff --synthetic SYNTHETIC
    Hardware and minutes: 36/16 of self-aug's.
    Expect: with small networks, 4 + 2 + 4 views and 2,000 public images 2.7 points (CIFAR-10) and 3.1 (Fashion-MNIST)
    more than dp-mix-self at epsilon 3 (benchmarks/mix.py); not run to its end here.
    """
    return replace(dp_mix_self(), recipe="dp-mix-diff", k_diff=2)


def pure_dp_mix_diff() -> Config:
    """Mixtures of synthetic images alone: no pixel of a private image enters, and it is charged nevertheless.

    Paper: DP-Mix (Bao et al. 2023), appendix B.3, an ablation: k_base 0.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe pure-dp-mix-diff --synthetic SYNTHETIC
    Hardware and minutes: 20/16 of self-aug's.
    Expect: worse than dp-mix-self (appendix B.3); no figure of our own yet.
    """
    return replace(dp_mix_diff(), recipe="pure-dp-mix-diff", k_base=0)
