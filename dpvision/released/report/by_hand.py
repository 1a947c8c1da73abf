"""Which settings of a run are not those of its recipe: somebody chose them, and no epsilon says by looking at what."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

from dpvision.errors import ConfigError
from dpvision.settings.training import UPKEEP, Config

# What a run is about, or follows from the other settings; the recipe does not say it.
GIVEN = (
    "recipe",
    "epsilon",
    "delta",
    "unit",
    "classes",
    "size",
    "channels",
    "skip_broken",
    "pretrained",
    "synthetic",
    "prior",
    "sigma",
    "seed",
    "physical",
    "canaries",
    *UPKEEP,
)


def chosen(config: Config) -> list[str] | None:
    """The names of these settings; None where the recipe is not one that dpvision has."""
    from dpvision.settings.recipes import recipe

    try:
        usual = recipe(config.recipe, epsilon=config.epsilon)
    except ConfigError:
        return None
    usual = replace(usual, **{name: getattr(config, name) for name in GIVEN})
    with suppress(ConfigError):  # where the recipe can not be as it is, such as a batch above n
        usual = replace(usual, n=config.n).complete(config.n or 0)
    differ = [f.name for f in fields(Config) if getattr(config, f.name) != getattr(usual, f.name)]
    return [name for name in differ if getattr(usual, name) is not None and name != "final_noise"]
