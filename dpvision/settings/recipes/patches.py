"""A linear classifier on patches of images that no camera took: nothing public is needed, nothing is trained before."""

from __future__ import annotations

from dpvision.settings.training import Config


def patches() -> Config:
    """A linear classifier on features that nothing was trained for, less their mean, which the first step learns.

    Paper: none. It is the frozen start of DP-RandP (Tang et al. 2023) without its 16 hours of pretraining: patches of
    dead leaves, whitened (Coates and Ng 2011). For images that mean the same in a mirror. Every image in each of 41
    steps; the learning rate follows from n and epsilon. Its constants were chosen on
    training images of CIFAR-10, the final noise also on validation images of DermaMNIST; no epsilon counts that.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe patches
    Hardware and minutes: 2 CPU cores, 7.8 min from nothing on CIFAR-10, 8 GB of memory (7.5 seen) and 5 of disk.
    Expect: 70.3% on CIFAR-10 at epsilon 1 (mean of 5); published with 16 A100 hours of pretraining: 67.8%.
    """
    return Config(
        recipe="patches",
        prior="patches",
        part="centred-head",
        full_batch=True,
        steps=41,
        final_noise=0.9,
        momentum=0.8,
        release="last",
    )
