"""Recipes by name; each is a function that returns a complete frozen config, with what to expect in its docstring."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from dpvision.config import Config
from dpvision.errors import ConfigError
from dpvision.recipes.default import default
from dpvision.recipes.linear import linear
from dpvision.recipes.small_cnn import small_cnn

RECIPES: dict[str, Callable[[], Config]] = {
    "default": default,
    "linear": linear,
    "small-cnn": small_cnn,
}


def recipe(name: str) -> Config:
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        hint = f" Did you mean {near[0]!r}?" if near else " `dpvision recipes` lists them."
        raise ConfigError(f"there is no recipe named {name!r}.{hint}")
    return RECIPES[name]()
