"""Named recipes: functions that return settings, and whose docstrings state the expected cost and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import ModuleType
from typing import Any

from dpvision.errors import ConfigError, did_you_mean
from dpvision.settings.recipes import baselines, dp_randp, public_synthesis, releases
from dpvision.settings.release import Release
from dpvision.settings.training import Config


def _recipes_in(*modules: ModuleType, returns: type) -> dict[str, Callable[..., Any]]:
    """Return the functions of these modules that return such settings, by their names with hyphens."""
    functions = [
        f for module in modules for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__
    ]
    return {
        f.__name__.replace("_", "-"): f
        for f in functions
        if f.__annotations__.get("return") == returns.__name__ and not f.__name__.startswith("_")
    }


RECIPES: dict[str, Callable[..., Config]] = _recipes_in(baselines, dp_randp, public_synthesis, returns=Config)
RELEASES: dict[str, Callable[[], Release]] = _recipes_in(releases, returns=Release)  # for `dpvision release`


def recipe(name: str, *, epsilon: float | None = None) -> Config:
    """Return the training recipe with this name; if its settings depend on epsilon, use those for `epsilon`."""
    _require(name, RECIPES, others=RELEASES, verb="release")
    arguments = {"epsilon": epsilon} if epsilon and "epsilon" in signature(RECIPES[name]).parameters else {}
    return RECIPES[name](**arguments)


def release_recipe(name: str) -> Release:
    """Return the release recipe with this name."""
    _require(name, RELEASES, others=RECIPES, verb="train")
    return RELEASES[name]()


def _require(name: str, known: Mapping[str, object], *, others: Mapping[str, object], verb: str) -> None:
    if name in known:
        return
    if name in others:
        raise ConfigError(f"recipe {name!r} is for `dpvision {verb}`. Recipes for this command: {', '.join(known)}.")
    hint = did_you_mean(name, known, "`dpvision recipes` lists them.")
    raise ConfigError(f"there is no recipe named {name!r}. {hint}")
