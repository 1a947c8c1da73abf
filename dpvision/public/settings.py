"""Settings of public training. Each is declared once; checks, cards and command-line options are derived from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from dpvision.errors import ConfigError
from dpvision.settings.setting import check, setting, word_list

GROUPS = 16  # of GroupNorm in a projection head
_data, _model, _training, _views = (partial(setting, group=g) for g in ("Data", "Model", "Optimisation", "Views"))


@dataclass(frozen=True)
class WarmUpSettings:
    """Settings of a warm-up. The defaults are those of Park et al. 2024 for CIFAR-10 (tables 12 and 3)."""

    model: str = _model("wrn-16-4", help="Network to train.")
    optimiser: str = _training(
        "sam",
        help="Plain SGD, sharpness-aware (sam, asam), or adversarial training (pgd).",
        choices=("sgd", "sam", "asam", "pgd"),
    )
    batch: int = _training(100, help="Number of images per step.", shown="100; 64 for cifar-100", at_least=1)
    epochs: int = _training(100, help="Number of passes over the images.", shown="100; 200 for cifar-100", at_least=1)
    steps: int | None = _training(None, help="Number of steps, instead of --epochs.", at_least=1)
    lr: float = _training(
        0.05,
        help="Initial learning rate; decays to 0 on a cosine schedule.",
        shown="0.05; 0.1 for cifar-100",
        at_least=0,
    )
    momentum: float = _training(0.9, help="Momentum of the optimiser.", at_least=0, below=1)
    decay: float = _training(5e-4, help="Weight decay.", shown="5e-4", at_least=0, below=1)
    rho: float = _training(0.1, help="Radius of sam and asam; 0.5 is usual for asam.", at_least=0)
    radius: float = _training(
        8 / 255,
        help="Radius of pgd, as a fraction of the range from black to white.",
        shown="8/255",
        at_least=0,
        below=1,
    )
    ascents: int = _training(10, help="Number of steps of pgd.", at_least=1, option=False)
    augment: tuple[str, ...] = _views(
        ("crop", "flip", "cutout"),
        help="Comma-separated augmentations (crop, flip, cutout, cutmix), or none. Do not flip digits or letters.",
        shown="crop,flip,cutout",
        from_text=lambda text: () if text == "none" else tuple(word_list(text)),
    )
    balance: bool = _data(False, help="Repeat PUBLIC until it has the same number of images as --also.")
    hold_out: float = _data(0.0, help="Fraction of PUBLIC to hold out for measuring accuracy.", at_least=0, below=1)
    seed: int = _training(0, help="Seed for the weights, views and data order.", at_least=0, below=1 << 63)

    def __post_init__(self) -> None:
        from dpvision.public.batches import require_augment  # imported here because torch takes seconds to load

        check(self)
        require_augment(self.augment)

    def total(self, images: int) -> int:
        """Return the total number of steps."""
        from dpvision.public.batches import steps_per_pass

        return self.steps or self.epochs * steps_per_pass(images, self.batch)

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of a step: lr (1 + cos(pi step / total)) / 2."""
        return self.lr * (1 + math.cos(math.pi * step / total)) / 2


@dataclass(frozen=True)
class PretrainSettings:
    """Settings of pretraining. The defaults are those of Tang et al. 2023, except for the number of steps."""

    process: str = _data(
        "stylegan-oriented",
        help="Random process that generates the images; `dpvision images` lists all processes.",
        shown="stylegan-oriented; for patches dead-leaves-mixed",
    )
    model: str = _model("wrn-16-4", help="Network to train, such as wrn-16-4.")
    side: int = _data(32, help="Pixels per side of the images to train on.", option=False)
    finer: int = _data(2, help="Factor by which images are drawn larger than the views cut from them.", at_least=1)
    images: int = _data(105_000, help="Number of distinct images.", option=False, at_least=1)
    batch: int = _training(256, help="Number of images per step.", at_least=2)
    steps: int = _training(82_000, help="Number of steps; 82,000 are 200 passes.", at_least=1)
    lr: float = _training(0.12, help="Learning rate for a batch of 256; scaled in proportion to --batch.", above=0)
    momentum: float = _training(0.9, help="Momentum.", option=False, at_least=0, below=1)
    decay: float = _training(1e-4, help="Weight decay.", option=False, at_least=0, below=1)
    hidden: int = _model(4096, help="Width of the projection head, which is discarded after training.", at_least=1)
    loss: str = _training("align-uniform", help="Contrastive loss.", choices=("align-uniform", "info-nce"))
    seed: int = _training(0, help="Seed for the images and weights.", at_least=0, below=1 << 63)

    def __post_init__(self) -> None:
        check(self)
        if self.hidden % GROUPS:
            raise ConfigError(f"hidden is {self.hidden}: it must be a multiple of {GROUPS}, such as 512.")
        if self.batch > self.images:
            raise ConfigError(
                f"batch is {self.batch:,}, but there are only {self.images:,} distinct images. Fix: use a "
                "smaller --batch, or a larger --count."
            )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step. It drops by a factor of 10 after 155/200, 170/200 and 185/200 of them."""
        drops = sum(200 * step >= part * self.steps for part in (155, 170, 185))
        return self.lr * self.batch / 256 * 0.1**drops


@dataclass(frozen=True)
class FitSettings:
    """Settings for fitting a diffusion model. The paper trains on 200 million images in total."""

    batch: int = _training(64, help="Number of images per step; 512 in the paper.", at_least=1)
    lr: float = _training(2e-3, help="Learning rate; 0.001 in the paper.", above=0)
    warm: int = _training(
        10_000, help="Length of the learning rate warm-up, in images; 10 million in the paper.", at_least=0
    )
    half_life: float = _training(
        500_000,
        help="Half-life of the weight average, in images; at most a twentieth of the images seen.",
        option=False,
        above=0,
    )
    seed: int = _training(0, help="Seed for the weights and training.", at_least=0, below=1 << 62)
    augment: float = _views(
        0.0, help="Probability of each augmentation (rotation, shift, ...); 0.12 in the paper.", at_least=0, at_most=1
    )
    flip: bool = _views(False, help="Also train on mirrored images. Do not use it for digits or letters.")
    pieces: int = _training(
        1, help="Number of microbatches per step, for batches that do not fit in memory.", at_least=1
    )

    def __post_init__(self) -> None:
        check(self)
        if self.pieces > self.batch:
            raise ConfigError(f"pieces is {self.pieces}: it must be at most the batch size, {self.batch}.")


@dataclass(frozen=True)
class GuideSettings:
    """Settings of a guide. Kim et al. use a batch of 128, a learning rate of 3e-4 and a weight decay of 1e-7."""

    samples: int = _data(
        2000,
        help="Number of samples to draw for training the discriminator.",
        shown="the number of public images",
        at_least=1,
    )
    extractor_steps: int = _training(
        1000, help="Number of steps to train a feature extractor that classifies public images.", at_least=1
    )
    steps: int = _training(
        1000,
        help="Number of steps to train the discriminator between public images and samples.",
        at_least=1,
    )
    batch: int = _training(64, help="Number of images per step, half of them real.", at_least=2)
    lr: float = _training(3e-4, help="Learning rate.", above=0)
    width: int = _model(32, help="Number of channels in both networks; a multiple of 4.", at_least=8, at_most=512)
    seed: int = _training(0, help="Seed for the weights and training.", at_least=0, below=1 << 62)

    def __post_init__(self) -> None:
        check(self)
        if self.width % 4:
            raise ConfigError(f"width is {self.width}: it must be a multiple of 4.")
