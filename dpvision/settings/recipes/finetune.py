"""Public weights, adapted privately: De et al. 2022, DP-Mix (Bao et al. 2023), BitFiT (Bu et al. 2022)."""

from __future__ import annotations

from dataclasses import replace

from dpvision.settings.training import Config


def finetune_head() -> Config:
    """A linear classifier on the features of a public vision transformer; features are computed once.

    Paper: De et al. 2022 (fine-tuning the classifier layer); DINOv2 ViT-S/14 as the public network.
    Command: dpvision train DATA --epsilon 3 --recipe finetune-head --pretrained dinov2.safetensors
    Hardware and minutes: features once, at some 60 ms an image and core; then 60 steps of 500 images in 18 seconds.
    Expect: 80.0% of CIFAR-10 from 1,000 training images at epsilon 8 (500 test images, one training).
    """
    return Config(recipe="finetune-head", model="dinov2-vits14", part="head", lr=4.0, momentum=0.9)


def finetune_all() -> Config:
    """All weights of a public vision transformer.

    Paper: De et al. 2022 (fine-tuning all layers).
    Command: dpvision train DATA --epsilon 3 --recipe finetune-all --pretrained dinov2.safetensors
    Hardware and minutes: meant for an accelerator. On 2 CPU cores beside other work an image took 1.8 seconds, so 6
    steps of 64 images of 154 pixels took 12 minutes.
    Expect: nothing of a few steps (12.0% of CIFAR-10 after those 6); not run to its end here.
    """
    return replace(finetune_head(), recipe="finetune-all", part="all", lr=0.5, momentum=0.0)
