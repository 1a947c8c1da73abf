"""Which settings of a run are not those of its recipe: somebody chose them, and no epsilon says by looking at what."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace

from dpvision.errors import ConfigError
from dpvision.settings.setting import declared
from dpvision.settings.training import Config


def chosen(config: Config) -> list[str] | None:
    """The names of these settings; None where the recipe is not one that dpvision has."""
    from dpvision.settings.recipes import recipe

    try:
        usual = recipe(config.recipe, epsilon=config.epsilon)
    except ConfigError:
        return None
    # What a run is about, or follows from the other settings, is not chosen against the recipe.
    usual = replace(usual, **{k: getattr(config, k) for k, of in declared(Config).items() if not of.on_card})
    with suppress(ConfigError):  # where the recipe can not be as it is, such as a batch above n
        usual = replace(usual, n=config.n).complete(config.n or 0)
    differ = [f.name for f in fields(Config) if getattr(config, f.name) != getattr(usual, f.name)]
    return [name for name in differ if getattr(usual, name) is not None and name != "final_noise"]
