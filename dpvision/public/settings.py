"""What a warm-up is set to, and the published settings by name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpvision.errors import ConfigError
from dpvision.public.batches import per_pass, require_augment

OPTIMISERS = ("sgd", "sam", "asam", "pgd")


@dataclass(frozen=True)
class Settings:
    """Of one warm-up; the defaults are those for CIFAR-10 of Park et al. 2024 (Table 12, and Table 3 for augment)."""

    model: str = "wrn-16-4"
    optimiser: str = "sam"
    batch: int = 100
    epochs: int = 100
    steps: int | None = None  # instead of epochs
    lr: float = 0.05  # falls to 0 along a half wave of a cosine
    momentum: float = 0.9
    decay: float = 5e-4
    rho: float = 0.1  # radius of sam and asam
    radius: float = 8 / 255  # of pgd, as a share of the range from black to white
    ascents: int = 10  # of pgd
    augment: tuple[str, ...] = ("crop", "flip", "cutout")
    balance: bool = False  # public images are repeated until they are as many as the synthetic ones
    hold_out: float = 0.0  # share of the public images that is only looked at, at the end
    seed: int = 0

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise ConfigError(f"there is no optimiser named {self.optimiser!r}. There are: {', '.join(OPTIMISERS)}.")
        require_augment(self.augment)
        for name in ("batch", "epochs", "steps", "ascents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: it must be 1 or more.")
        for name, least, below in (
            ("lr", 0, math.inf),
            ("rho", 0, math.inf),
            ("radius", 0, 1),
            ("momentum", 0, 1),
            ("decay", 0, 1),
            ("hold_out", 0, 1),
            ("seed", 0, 1 << 63),
        ):
            if not least <= getattr(self, name) < below:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {least} and below {below}.")

    def total(self, images: int) -> int:
        """Steps in all."""
        return self.steps or self.epochs * per_pass(images, self.batch)

    def rate(self, step: int, total: int) -> float:
        """lr (1 + cos(pi step / total)) / 2."""
        return self.lr * (1 + math.cos(math.pi * step / total)) / 2


CIFAR_10 = Settings()
CIFAR_100 = Settings(batch=64, epochs=200, lr=0.1)
NAMED = {"cifar-10": CIFAR_10, "cifar-100": CIFAR_100}
