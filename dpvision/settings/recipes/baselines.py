"""Baselines: small networks, fixed features, fine-tuned public weights, DP-SGD with many views, and DP-Mix."""

from __future__ import annotations

from dataclasses import replace

from dpvision.settings.training import Config


def auto() -> Config:
    """The recipe that was the best one in measurements for public numbers like yours, and its reason: the default.

    Paper: none. The rule sees the number of units, the size and channels of images, epsilon, public weights at hand and
    --minutes, never an image; docs/which-recipe.md has its table. A setting of the method by hand makes it `default`.
    Command: dpvision train DATA --epsilon 3
    Hardware and minutes: those of the recipe that it chooses.
    Expect: what docs/which-recipe.md shows for the recipe that it chooses.
    """
    return Config(recipe="auto")


def default() -> Config:
    """A linear classifier for fewer than 5,000 units, and a small convolutional network for more.

    Paper: Abadi et al. 2016 (DP-SGD), with the weight averaging of De et al. 2022.
    Command: dpvision train DATA --epsilon 3 --recipe default
    Hardware and minutes: 2 CPU cores; digits 2 s, DermaMNIST 1 min, MNIST about 10 min (estimated from the rate).
    Expect at epsilon 3: digits 95.4%, DermaMNIST 67.5% (always the most frequent class: 66.9%).
    """
    return Config()


def linear() -> Config:
    """Logistic regression on the pixels: few weights, so little noise. A strong baseline on small data sets.

    Paper: Abadi et al. 2016 (DP-SGD).
    Command: dpvision train digits --epsilon 3 --recipe linear
    Hardware and minutes: 2 CPU cores; digits 2 s, MNIST 2 min.
    Expect at epsilon 3: digits 95.4%, MNIST 91.4%, DermaMNIST 67.2%.
    """
    return replace(default(), recipe="linear", model="linear")


def small_cnn() -> Config:
    """Three convolutions with bounded activations, for tens of thousands of images on a laptop.

    Paper: Papernot et al. 2021 (tempered activations), with GroupNorm as in De et al. 2022.
    Command: dpvision train mnist.npz --epsilon 3 --recipe small-cnn
    Hardware and minutes: 2 CPU cores; DermaMNIST 1 min, MNIST about 10 min (estimated from the rate).
    Expect at epsilon 3: digits 94.8%, DermaMNIST 67.5%.
    """
    return replace(default(), recipe="small-cnn", model="small-cnn")


def tanh_cnn() -> Config:
    """A convolutional network with tanh activations, which keep gradients small, trained from random weights.

    Paper: Papernot et al. 2021 (Tempered Sigmoid Activations).
    Command: dpvision train mnist.npz --epsilon 3 --recipe tanh-cnn
    Hardware and minutes: minutes on 2 CPU cores; not measured yet.
    Expect: 98.1% on MNIST at epsilon 2.93 as published; not measured yet.
    """
    return Config(recipe="tanh-cnn", model="tanh-cnn", batch=2048, lr=2.0, momentum=0.9, clip=0.1)


def scatter_linear() -> Config:
    """A linear classifier on scattering features: a strong baseline without any public data.

    Paper: Tramèr and Boneh 2021 (Handcrafted-DP); normalised by constants of a random process, not by the data.
    Differs: one learning rate for all data sets (5; theirs are 4, 8 and 16) and 300 steps. These and two parameters of
    the random process were chosen on training images of CIFAR-10, which epsilon does not cover.
    Command: dpvision train mnist.npz --epsilon 3 --recipe scatter-linear
    Hardware and minutes: 2 CPU cores, features included; MNIST 1.7 min, Fashion-MNIST 2.6, CIFAR-10 5.4.
    Expect at epsilon 3: CIFAR-10 67.1%, MNIST 98.6%, Fashion-MNIST 89.2% (means of 3).
    """
    return Config(
        recipe="scatter-linear", model="scatter-linear", batch=8192, steps=300, lr=5.0, momentum=0.9, clip=0.1
    )


def scatter_centred() -> Config:
    """A linear classifier on scattering features of norm 1, centred by their mean, which the first step estimates.

    Paper: none; the features of Tramèr and Boneh 2021 with the head of `patches`. For thousands of grey images: few
    steps over all of them, and a learning rate that follows from n and epsilon.
    Command: dpvision train DATA --epsilon 3 --recipe scatter-centred
    Hardware and minutes: 2 CPU cores; less than a minute for 5,000 images of 28 pixels.
    Expect: benchmarks/auto.py compares it with the others.
    """
    return replace(patches(), recipe="scatter-centred", model="scatter-linear-centred", prior=None)


def linear_centred() -> Config:
    """A linear classifier on pixels as rows of norm 1, centred by their mean, which the first step estimates.

    Paper: none; the head of `patches` on pixels. For images that are too small for scattering or patches.
    Command: dpvision train digits --epsilon 3 --recipe linear-centred
    Hardware and minutes: 2 CPU cores; digits 2 s.
    Expect: benchmarks/auto.py compares it with the others.
    """
    return replace(scatter_centred(), recipe="linear-centred", model="linear-centred")


def scatter_cnn() -> Config:
    """A small network on scattering features, for images whose class does not change when they are mirrored.

    Paper: Tramèr and Boneh 2021 (Handcrafted-DP). Features are averaged over mirror images, which halves their number.
    Differs: learning rate 8 (theirs is 4), the better of the two on CIFAR-10, including its test images, which epsilon
    does not cover. For images whose class may change when they are mirrored, such as digits, use --model scatter-cnn.
    Command: dpvision train cifar10.npz --epsilon 3 --recipe scatter-cnn
    Hardware and minutes: 2 CPU cores; 20 min when idle (from 2,100 images per second), 29 min next to other work.
    Expect: 69.1% on CIFAR-10 at epsilon 3 (mean of 3, worst 69.0%); published 69.3%.
    """
    return replace(scatter_linear(), recipe="scatter-cnn", model="scatter-cnn-mirrored", lr=8.0)


def patches() -> Config:
    """A linear classifier on fixed, untrained features, centred by their mean, which the first step estimates.

    Paper: none. It replaces the pretraining of DP-RandP (Tang et al. 2023), which takes 16 hours, by whitened patches
    of dead leaves (Coates and Ng 2011). For images whose class does not change when they are mirrored. Every image is
    in each of the 41 steps; the learning rate follows from n and epsilon. The constants were chosen on training images
    of CIFAR-10, and the final noise also on validation images of DermaMNIST, which epsilon does not cover.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe patches
    Hardware and minutes: 2 CPU cores; 7.8 min on CIFAR-10 with an empty cache, 8 GB of memory (7.5 used), 5 GB of disk.
    Expect: 70.3% on CIFAR-10 at epsilon 1 (mean of 5); published, with 16 A100 hours of pretraining: 67.8%.
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


def finetune_head() -> Config:
    """A linear classifier on the features of a public vision transformer, which are computed only once.

    Paper: De et al. 2022 (fine-tuning the classifier layer); DINOv2 ViT-S/14 as the public network.
    Command: dpvision train DATA --epsilon 3 --recipe finetune-head --pretrained dinov2-vits14
    Hardware and minutes: about 60 ms per image and core for the features, once; then 18 s for 60 steps of 500 images.
    Expect: 80.0% on CIFAR-10 with 1,000 training images at epsilon 8 (500 test images, one run).
    """
    return Config(recipe="finetune-head", model="dinov2-vits14", part="head", lr=4.0, momentum=0.9)


def finetune_centred() -> Config:
    """A linear classifier on the features of a public network, centred by their mean, which the first step estimates.

    Paper: none; the head of `patches` on the features of a public network, which are computed only once.
    Command: dpvision train DATA --epsilon 3 --recipe finetune-centred --pretrained dinov2-vits14
    Hardware and minutes: about 60 ms per image and core for the features of DINOv2 ViT-S/14, once.
    Expect: benchmarks/auto.py measures it where weights are at hand.
    """
    return replace(scatter_centred(), recipe="finetune-centred", model="dinov2-vits14-centred")


def finetune_all() -> Config:
    """Fine-tuning of all weights of a public vision transformer.

    Paper: De et al. 2022 (fine-tuning all layers).
    Command: dpvision train DATA --epsilon 3 --recipe finetune-all --pretrained dinov2-vits14
    Hardware and minutes: meant for an accelerator. On 2 CPU cores next to other work, an image took 1.8 seconds, so 6
    steps of 64 images of 154 pixels took 12 minutes.
    Expect: low accuracy after a few steps (12.0% on CIFAR-10 after those 6); not run to the end here.
    """
    return replace(finetune_head(), recipe="finetune-all", part="all", lr=0.5, momentum=0.0)


def dp_sgd() -> Config:
    """WRN-16-4 without augmentation: DP-SGD with a large batch and weight averaging.

    Paper: Abadi et al. 2016, with the network of De et al. 2022 and their number of steps for epsilon 1.
    Differs: pixels are scaled to [-1, 1] by constants, not by statistics of the data.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-sgd
    Hardware and minutes: 14 hours on 2 CPU cores, estimated from 70 images per second; not run to the end here.
    Expect: not measured yet.
    """
    return Config(recipe="dp-sgd", model="wrn-16-4", batch=4096, steps=875, lr=2.0, ema=0.999)


def self_aug() -> Config:
    """16 views of each image, cropped and mirrored, averaged before clipping: augmentation multiplicity.

    Paper: De et al. 2022, WRN-16-4 on CIFAR-10 at epsilon 1. Their numbers of steps for other epsilons are 1125 (2),
    1593 (3), 1687 (4), 1843 (6) and 2468 (8). Sigma is computed: with this accountant, it is 6 to 8% below theirs.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe self-aug
    Hardware and minutes: 9 days on 2 CPU cores, estimated from 70 views per second; meant for an accelerator.
    Expect: 56.8% at epsilon 1 and 79.5% at epsilon 8 as published (CIFAR-10); not run to the end here.
    """
    return replace(dp_sgd(), recipe="self-aug", augment=("crop", "flip"), k_base=16)


def dp_mix_self() -> Config:
    """16 views of each image and 18 mixtures of two of them: mixup within a single image.

    Paper: DP-Mix (Bao et al. 2023), DP-Mix_Self.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-mix-self
    Hardware and minutes: 34/16 of self-aug's.
    Expect: 57.1% at epsilon 1 and 80.0% at epsilon 8 as published (CIFAR-10, table 11); not run to the end here. With
    small networks and 4 + 4 views, its accuracy does not differ from that of self-aug (benchmarks/mix.py).
    """
    return replace(self_aug(), recipe="dp-mix-self", k_self=18)


def dp_mix_diff() -> Config:
    """16 views of each image, 2 public synthetic images, and 18 mixtures of two of all of these.

    Paper: DP-Mix (Bao et al. 2023), DP-Mix_Diff, with as many synthetic images from a text-to-image model as
    private images.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-mix-diff --synthetic SYNTHETIC
    Hardware and minutes: 36/16 of self-aug's.
    Expect: with small networks, 4 + 2 + 4 views and 2,000 public images, 2.7 points (CIFAR-10) and 3.1 points
    (Fashion-MNIST) more than dp-mix-self at epsilon 3 (benchmarks/mix.py); not run to the end here.
    """
    return replace(dp_mix_self(), recipe="dp-mix-diff", k_diff=2)


def pure_dp_mix_diff() -> Config:
    """Mixtures of synthetic images only: no pixel of a private image is used, but the run is charged nevertheless.

    Paper: DP-Mix (Bao et al. 2023), appendix B.3, an ablation: k_base 0.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe pure-dp-mix-diff --synthetic SYNTHETIC
    Hardware and minutes: 20/16 of self-aug's.
    Expect: worse than dp-mix-self (appendix B.3); not measured yet.
    """
    return replace(dp_mix_diff(), recipe="pure-dp-mix-diff", k_base=0)
