"""Named settings of `dpvision release`."""

from __future__ import annotations

from dpvision.settings.release import Release


def moments() -> Release:
    """Noisy class sums, counts and a second moment, from which rows are drawn as Gaussians.

    Paper: none. Features are whitened with their statistics on dead-leaves images, so no photographs are needed.
    Command: dpvision release mnist.npz --epsilon 1
    Hardware and minutes: 2 CPU cores; less than 1.3 min on MNIST, including features.
    Expect: 97.4% on MNIST at epsilon 1, 94.9% at 0.1, 98.4% at 8 (classifiers trained on the rows; means of 5).
    """
    return Release(recipe="moments")


def class_schedule() -> Release:
    """Rows that are noisy means of records of one class; the class of each row is public, so its label needs no noise.

    Paper: none. A record is only in rows of its own class, with the optimal degree for a data set of one class.
    Command: dpvision release mnist.npz --epsilon 1 --recipe class-schedule
    Hardware and minutes: like moments.
    Expect: 96.0% on MNIST at epsilon 1 (one release).
    """
    return Release(recipe="class-schedule", kind="mixtures", sampling="class-schedule")


def neuromix() -> Release:
    """NeuroMixGDP: rows are noisy means of the features and labels of a few records, drawn by Poisson sampling.

    Paper: Li et al. 2023, Algorithm 1, with the degree of Theorem 3.2 and sound accounting (PLD, no central limit).
    Command: dpvision release mnist.npz --epsilon 1 --recipe neuromix
    Hardware and minutes: like moments.
    Expect: 96.8% on MNIST at epsilon 1 (mean of 5); published, with another learner: 89.8%.
    """
    return Release(recipe="neuromix", kind="mixtures", sampling="poisson")


def neuromix_hs() -> Release:
    """NeuroMixGDP with hierarchical sampling: classes are drawn first, then their records. Accounted per class.

    Paper: Li et al. 2023, Procedure 2. Its Proposition E.3 uses the rate over all records and is wrong, since released
    labels reveal which classes were drawn (docs/hierarchical-sampling.md); sound accounting needs more noise.
    Command: dpvision release mnist.npz --epsilon 1 --recipe neuromix-hs
    Hardware and minutes: like moments.
    Expect: 96.0% on MNIST at epsilon 1 (one release); published, at a claimed epsilon of 1: 92.7%.
    """
    return Release(recipe="neuromix-hs", kind="mixtures", sampling="hierarchical")


def neuromix_cifar100() -> Release:
    """NeuroMixGDP-HS as published for CIFAR-100: 64 records of 3 classes per row, here with features of DINOv2.

    Paper: Li et al. 2023, with SimCLR's features. They claim epsilon 1 for noise that gives 7.9.
    Command: dpvision release cifar100.npz --epsilon 1 --recipe neuromix-cifar100
    Hardware and minutes: 2 CPU cores; about half an hour for the features, not measured on these images.
    Expect: not measured.
    """
    return Release(
        recipe="neuromix-cifar100",
        kind="mixtures",
        sampling="hierarchical",
        encoder="dinov2-vits14",
        degree=64.0,
        drawn=3.0,
        rank=0,
    )


def dpmix() -> Release:
    """DPMix: noisy mixtures of raw pixels and labels. The least accurate of these recipes, for comparison.

    Paper: Lee et al. 2019 (Synthesizing differentially private datasets using random mixing), as in Li et al. 2023.
    Command: dpvision release mnist.npz --epsilon 1 --recipe dpmix
    Hardware and minutes: like moments, without features.
    Expect: not measured on MNIST.
    """
    return Release(recipe="dpmix", kind="mixtures", sampling="poisson", encoder="pixels", rank=0)


def dp_merf() -> Release:
    """DP-MERF: a network generates rows whose mean embeddings, by random Fourier features, match the noisy ones.

    Paper: Harder et al. 2021 (arXiv 2002.11603), on pixels. The kernel's length scale is a public number; the published
    code computes it from private images without charging it. One noisy sum is released; the rest is post-processing.
    Command: dpvision release mnist.npz --epsilon 1 --recipe dp-merf
    Hardware and minutes: 2 CPU cores; seconds on the digits, not measured on MNIST.
    Expect: 87.2% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="dp-merf", kind="merf", encoder="pixels", rank=0)


def dp_hp() -> Release:
    """DP-HP: like dp-merf, with mean embeddings by Hermite polynomials of single pixels and of pairs of pixels.

    Paper: Vinaroz et al. 2022 (arXiv 2106.05042). Products are drawn beforehand and are part of the one noisy sum; the
    published code draws and releases new ones in every epoch.
    Command: dpvision release mnist.npz --epsilon 1 --recipe dp-hp
    Hardware and minutes: 2 CPU cores; seconds on the digits, not measured on MNIST.
    Expect: 88.9% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="dp-hp", kind="hermite", encoder="pixels", rank=0)


def p3gm() -> Release:
    """P3GM, simplified: rows are drawn from a noisy Gaussian per class, in the space of 20 noisy principal components.

    Paper: Takagi et al. 2021 (arXiv 2006.12101), without its network: rows are mapped back by the components only.
    Every record is in two noisy sums: the second moment, and the moments of each class in the components' space.
    Command: dpvision release mnist.npz --epsilon 1 --recipe p3gm
    Hardware and minutes: 2 CPU cores; seconds on the digits, not measured on MNIST.
    Expect: 85.0% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="p3gm", kind="p3gm", encoder="pixels", rank=0)
