"""Recipes by name; each is a function that returns a complete frozen config, with what to expect in its docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature

from dpvision.errors import ConfigError, did_you_mean
from dpvision.settings.recipes import baselines, dp_randp, public_synthesis, releases
from dpvision.settings.release import Release
from dpvision.settings.training import Config

RECIPES: dict[str, Callable[..., Config]] = {
    "default": baselines.default,
    "linear": baselines.linear,
    "small-cnn": baselines.small_cnn,
    "scatter-linear": baselines.scatter_linear,
    "scatter-cnn": baselines.scatter_cnn,
    "tanh-cnn": baselines.tanh_cnn,
    "dp-sgd": baselines.dp_sgd,
    "self-aug": baselines.self_aug,
    "dp-mix-self": baselines.dp_mix_self,
    "dp-mix-diff": baselines.dp_mix_diff,
    "pure-dp-mix-diff": baselines.pure_dp_mix_diff,
    "finetune-head": baselines.finetune_head,
    "finetune-all": baselines.finetune_all,
    "patches": baselines.patches,
    "dp-randp": dp_randp.dp_randp,
    "dp-randp-cifar100": dp_randp.dp_randp_cifar100,
    "dp-randp-dermamnist": dp_randp.dp_randp_dermamnist,
    "dp-randp-probe": dp_randp.dp_randp_probe,
    "cold": public_synthesis.cold,
    "warm": public_synthesis.warm,
    "warmsyn": public_synthesis.warmsyn,
    "extended": public_synthesis.extended,
    "warm-cifar100": public_synthesis.warm_cifar100,
    "warmsyn-cifar100": public_synthesis.warmsyn_cifar100,
    "extended-cifar100": public_synthesis.extended_cifar100,
    "cold-small": public_synthesis.cold_small,
    "warm-small": public_synthesis.warm_small,
    "warmsyn-small": public_synthesis.warmsyn_small,
    "extended-small": public_synthesis.extended_small,
}

# Recipes of `dpvision release`.
RELEASES: dict[str, Callable[[], Release]] = {
    "moments": releases.moments,
    "class-schedule": releases.class_schedule,
    "neuromix": releases.neuromix,
    "neuromix-hs": releases.neuromix_hs,
    "neuromix-cifar100": releases.neuromix_cifar100,
    "dpmix": releases.dpmix,
    "dp-merf": releases.dp_merf,
    "dp-hp": releases.dp_hp,
    "p3gm": releases.p3gm,
}


def recipe(name: str, *, epsilon: float | None = None) -> Config:
    """The training recipe of this name; recipes of papers with settings for each epsilon take those of `epsilon`."""
    _require(name, RECIPES, others=RELEASES, verb="release")
    arguments = {"epsilon": epsilon} if epsilon and "epsilon" in signature(RECIPES[name]).parameters else {}
    return RECIPES[name](**arguments)


def release_recipe(name: str) -> Release:
    """The release recipe of this name."""
    _require(name, RELEASES, others=RECIPES, verb="train")
    return RELEASES[name]()


def _require(name: str, known: Mapping[str, object], *, others: Mapping[str, object], verb: str) -> None:
    if name in known:
        return
    if name in others:
        raise ConfigError(f"recipe {name!r} is a recipe of `dpvision {verb}`. Recipes here: {', '.join(known)}.")
    hint = did_you_mean(name, known, "`dpvision recipes` lists them.")
    raise ConfigError(f"there is no recipe named {name!r}. {hint}")
