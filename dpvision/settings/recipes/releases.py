"""Settings of `dpvision release`, by name."""

from __future__ import annotations

from dpvision.settings.release import Release


def moments() -> Release:
    """Noisy class sums, counts and a second moment, from which rows are drawn as Gaussians.

    Paper: none. Features are whitened by their statistics over dead-leaves images, so no photographs are needed.
    Command: dpvision release mnist.npz --epsilon 1
    Hardware and minutes: 2 CPU cores, less than 1.3 min on MNIST, features included.
    Expect: 97.4% on MNIST at epsilon 1, 94.9% at 0.1, 98.4% at 8 (rows; means of 5).
    """
    return Release(recipe="moments")


def class_schedule() -> Release:
    """Rows that are noisy means of records of one class; the class of each row is public, so its label needs no noise.

    Paper: none. A record is only in rows of its own class, with the degree that is best for a data set of one class.
    Command: dpvision release mnist.npz --epsilon 1 --recipe class-schedule
    Hardware and minutes: as moments.
    Expect: 96.0% on MNIST at epsilon 1 (one release).
    """
    return Release(recipe="class-schedule", kind="mixtures", sampling="class-schedule")


def neuromix() -> Release:
    """NeuroMixGDP: rows are noisy means of a few records' features and labels, drawn by Poisson sampling.

    Paper: Li et al. 2023, Algorithm 1 with the degree of Theorem 3.2 and a sound account (PLD, not the central limit).
    Command: dpvision release mnist.npz --epsilon 1 --recipe neuromix
    Hardware and minutes: as moments.
    Expect: 96.8% on MNIST at epsilon 1 (mean of 5); published, with another learner: 89.8%.
    """
    return Release(recipe="neuromix", kind="mixtures", sampling="poisson")


def neuromix_hs() -> Release:
    """NeuroMixGDP with hierarchical sampling: classes are drawn first, then records of them. Accounted per class.

    Paper: Li et al. 2023, Procedure 2. Its Proposition E.3 takes the rate over all records and is wrong, as released
    labels show which classes were drawn (docs/hierarchical-sampling.md); a sound account needs more noise.
    Command: dpvision release mnist.npz --epsilon 1 --recipe neuromix-hs
    Hardware and minutes: as moments.
    Expect: 96.0% on MNIST at epsilon 1 (one release); published, at a claimed 1: 92.7%.
    """
    return Release(recipe="neuromix-hs", kind="mixtures", sampling="hierarchical")


def neuromix_cifar100() -> Release:
    """NeuroMixGDP-HS as it was published for CIFAR-100: 64 records of 3 classes a row; features of DINOv2.

    Paper: Li et al. 2023, with SimCLR's features. It claims epsilon 1 for a noise that gives 7.9.
    Command: dpvision release cifar100.npz --epsilon 1 --recipe neuromix-cifar100
    Hardware and minutes: 2 CPU cores; about half an hour for features, not measured with these images.
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
    Hardware and minutes: as moments, without features.
    Expect: not measured on MNIST.
    """
    return Release(recipe="dpmix", kind="mixtures", sampling="poisson", encoder="pixels", rank=0)


def dp_merf() -> Release:
    """DP-MERF: a network makes rows whose mean embeddings, by random Fourier features, are like the noisy ones.

    Paper: Harder et al. 2021 (arXiv 2002.11603), of pixels. The kernel's length scale is a public number; the published
    code computes it from private images at no charge. One noisy sum is released; the rest is post-processing.
    Command: dpvision release mnist.npz --epsilon 1 --recipe dp-merf
    Hardware and minutes: 2 CPU cores, seconds on the digits; not measured on MNIST.
    Expect: 87.2% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="dp-merf", kind="merf", encoder="pixels", rank=0)


def dp_hp() -> Release:
    """DP-HP: as dp-merf, with mean embeddings by Hermite polynomials of each pixel and of pairs of pixels.

    Paper: Vinaroz et al. 2022 (arXiv 2106.05042). Products are drawn beforehand and are in the one noisy sum; the
    published code draws and releases others in every epoch.
    Command: dpvision release mnist.npz --epsilon 1 --recipe dp-hp
    Hardware and minutes: 2 CPU cores, seconds on the digits; not measured on MNIST.
    Expect: 88.9% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="dp-hp", kind="hermite", encoder="pixels", rank=0)


def p3gm() -> Release:
    """P3GM in a simple form: rows from a noisy Gaussian for each class, in the space of 20 noisy principal components.

    Paper: Takagi et al. 2021 (arXiv 2006.12101), without its network: rows are mapped back by the components alone.
    Every record is in two noisy sums: the second moment, and the moments of each class in the components' space.
    Command: dpvision release mnist.npz --epsilon 1 --recipe p3gm
    Hardware and minutes: 2 CPU cores, seconds on the digits; not measured on MNIST.
    Expect: 85.0% on the digits at epsilon 8 (one release, linear discriminant of the rows); moments had 94.7%.
    """
    return Release(recipe="p3gm", kind="p3gm", encoder="pixels", rank=0)
