"""What is left open in the settings of a training, computed from public numbers only: n and the other settings."""

from __future__ import annotations

import math
from dataclasses import replace

from dpvision.core.events import Budget, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import calibrate, quick
from dpvision.settings.training import Config


def complete(config: Config, n: int) -> Config:
    """All that was left open, from `n` units and nothing else."""
    n = n if config.n is None else config.n
    if n < 2:
        raise ConfigError(f"n is {n}: private training needs at least 2 units.")
    model = config.model or ("patches-1024" if config.prior or config.recipe == "patches" else default_model(n))
    prior = config.prior or ("patches" if model.startswith("patches-") and not config.pretrained else None)
    batch = n if config.full_batch else default_batch(n) if config.batch is None else config.batch
    if batch > n:
        raise ConfigError(
            f"batch is {batch} and n is {n}: the expected batch cannot exceed n. Fix: --batch {default_batch(n)}."
        )
    if config.delta * n >= 1:
        raise ConfigError(
            f"delta is {config.delta:g} and n is {n}: to tell all about one unit in {1 / config.delta:.3g} would be "
            f"allowed. Fix: a --delta well below {1 / n:.2g}, such as 1e-5."
        )
    steps = default_steps(n, batch) if config.steps is None else config.steps
    sigma = config.sigma
    if sigma is None:
        sigma = calibrate.sigma(Budget(config.epsilon, config.delta), rate=batch / n, steps=steps)
    lr = config.lr
    if config.final_noise is not None:
        lr = rate_of_noise(config.final_noise, config.momentum, sigma=sigma * config.clip / batch, steps=steps)
    whole = replace(
        config, n=n, model=model, prior=prior, batch=batch, steps=steps, sigma=sigma, lr=lr, final_noise=None
    )
    if config.probe_share is not None:
        whole = replace(whole, probe_share=None, probe_steps=steps_of_share(config.probe_share, whole))
        if config.probe_share and not whole.probe_steps:
            raise ConfigError(
                f"probe_share is {config.probe_share:g}: the first step alone tells more than that share of epsilon. "
                "Fix: a larger share, or --probe-steps."
            )
    if whole.probe_steps > steps:
        raise ConfigError(f"probe_steps is {whole.probe_steps}, and there are {steps} steps. Fix: fewer of them.")
    return whole


def default_model(n: int) -> str:
    """With few units the noise on many weights outweighs what they can learn: measured in benchmarks/RESULTS.md."""
    return "linear" if n < 5000 else "small-cnn"


def default_batch(n: int) -> int:
    return max(1, min(n // 2, 4096))


def default_steps(n: int, batch: int) -> int:
    """50 expected passes over few units, 30 over many: there, more would cost hours and gain little."""
    return max(1, round((50 if n < 5000 else 30) * n / batch))


def rate_of_noise(wanted: float, momentum: float, *, sigma: float, steps: int) -> float:
    """lr such that lr / (1 - momentum) * sigma * sqrt(steps) is `wanted`: `sigma` is the noise in one step's gradient.

    Panda et al. 2022 (arXiv 2212.04486): the best total rate grows linearly in epsilon; so it does in n / sigma.
    """
    return wanted * (1 - momentum) / (sigma * math.sqrt(steps))


def steps_of_share(share: float, config: Config) -> int:
    """How many of the first steps tell at most this share of the whole training's epsilon."""
    assert config.batch and config.n and config.sigma and config.steps
    event = PoissonGaussian(config.batch / config.n, config.sigma, config.steps)
    most = share * quick.epsilon(event, config.delta)
    low, high = 0, config.steps
    while low < high:
        middle = (low + high + 1) // 2
        fits = quick.epsilon(replace(event, steps=middle), config.delta) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
