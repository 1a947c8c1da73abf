"""Recipes by name; each is a function that returns a complete frozen config, with what to expect in its docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature

from dpvision.errors import ConfigError, did_you_mean
from dpvision.settings.recipes.default import default
from dpvision.settings.recipes.finetune import finetune_all, finetune_head
from dpvision.settings.recipes.linear import linear
from dpvision.settings.recipes.patches import patches
from dpvision.settings.recipes.public import (
    cold,
    cold_small,
    extended,
    extended_cifar100,
    extended_small,
    warm,
    warm_cifar100,
    warm_small,
    warmsyn,
    warmsyn_cifar100,
    warmsyn_small,
)
from dpvision.settings.recipes.randp import dp_randp, dp_randp_cifar100, dp_randp_dermamnist, dp_randp_probe
from dpvision.settings.recipes.releases import class_schedule, dpmix, moments, neuromix, neuromix_cifar100, neuromix_hs
from dpvision.settings.recipes.scatter import scatter_cnn, scatter_linear
from dpvision.settings.recipes.scratch import dp_mix_diff, dp_mix_self, dp_sgd, pure_dp_mix_diff, self_aug
from dpvision.settings.recipes.small_cnn import small_cnn
from dpvision.settings.recipes.tanh import tanh_cnn
from dpvision.settings.release import Release
from dpvision.settings.training import Config

RECIPES: dict[str, Callable[..., Config]] = {
    "default": default,
    "linear": linear,
    "small-cnn": small_cnn,
    "scatter-linear": scatter_linear,
    "scatter-cnn": scatter_cnn,
    "tanh-cnn": tanh_cnn,
    "dp-sgd": dp_sgd,
    "self-aug": self_aug,
    "dp-mix-self": dp_mix_self,
    "dp-mix-diff": dp_mix_diff,
    "pure-dp-mix-diff": pure_dp_mix_diff,
    "finetune-head": finetune_head,
    "finetune-all": finetune_all,
    "patches": patches,
    "dp-randp": dp_randp,
    "dp-randp-cifar100": dp_randp_cifar100,
    "dp-randp-dermamnist": dp_randp_dermamnist,
    "dp-randp-probe": dp_randp_probe,
    "cold": cold,
    "warm": warm,
    "warmsyn": warmsyn,
    "extended": extended,
    "warm-cifar100": warm_cifar100,
    "warmsyn-cifar100": warmsyn_cifar100,
    "extended-cifar100": extended_cifar100,
    "cold-small": cold_small,
    "warm-small": warm_small,
    "warmsyn-small": warmsyn_small,
    "extended-small": extended_small,
}

# Of `dpvision release`.
RELEASES: dict[str, Callable[[], Release]] = {
    "moments": moments,
    "class-schedule": class_schedule,
    "neuromix": neuromix,
    "neuromix-hs": neuromix_hs,
    "neuromix-cifar100": neuromix_cifar100,
    "dpmix": dpmix,
}


def recipe(name: str, *, epsilon: float | None = None) -> Config:
    """Some papers name other settings for other epsilons; such a recipe is told."""
    _require(name, RECIPES, others=RELEASES, verb="release")
    told = {"epsilon": epsilon} if epsilon and "epsilon" in signature(RECIPES[name]).parameters else {}
    return RECIPES[name](**told)


def release_recipe(name: str) -> Release:
    """Of a release."""
    _require(name, RELEASES, others=RECIPES, verb="train")
    return RELEASES[name]()


def _require(name: str, known: Mapping[str, object], *, others: Mapping[str, object], verb: str) -> None:
    if name in known:
        return
    if name in others:
        raise ConfigError(f"recipe {name!r} is one of `dpvision {verb}`. Here there is: {', '.join(known)}.")
    hint = did_you_mean(name, known, "`dpvision recipes` lists them.")
    raise ConfigError(f"there is no recipe named {name!r}. {hint}")
