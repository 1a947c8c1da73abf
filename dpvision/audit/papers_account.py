"""The published account of NeuroMixGDP beside a sound one: for comparison only. What it says cannot be released.

paper      mu = (m/n) sqrt(T) sqrt(e^(1/sigma^2) - 1), a central limit, at the rate m/n for every sampling
sound      a bound (PLD), and for hierarchical sampling at the rate inside the class: docs/hierarchical-sampling.md
"""

from __future__ import annotations

from dpvision.core import accountant
from dpvision.core.rounding import upper
from dpvision.errors import ConfigError
from dpvision.settings import gdp
from dpvision.settings.release import Release


def papers_sigma(config: Release) -> float:
    """The noise that the paper takes for the epsilon that is asked for."""
    assert config.degree and config.n and config.rows  # complete
    mu = gdp.mu_of_point(config.epsilon, config.delta)
    return gdp.central_limit_sigma(mu, rate=config.degree / config.n, steps=config.rows)


def compare(config: Release, classes: int) -> dict[str, str]:
    """In words."""
    if not config.is_sampled or config.sampling == "class-schedule":
        raise ConfigError(
            f"recipe {config.recipe} is not one of NeuroMixGDP, whose account this compares. Fix: --recipe neuromix, "
            "neuromix-hs or dpmix."
        )
    sigma = papers_sigma(config)
    truly = accountant.epsilon(config.event(sigma, classes), config.delta)
    return {
        "asked for": f"epsilon {config.epsilon:g} at delta {config.delta:g}, {config.sampling} sampling",
        "rows": f"{config.rows:,} of expected degree {config.degree:.4g} over n = {config.n:,}",
        "the paper's noise": f"sigma {sigma:.5g}",
        "which truly tells": f"epsilon {upper(truly, 4)}",
        "the sound noise": f"sigma {config.sigma:.5g}",
    }
