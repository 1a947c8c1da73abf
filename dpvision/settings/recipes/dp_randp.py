"""DP-RandP: learning priors from random processes (Tang et al. 2023, arXiv 2306.06076).

Phase I is `dpvision pretrain`, which uses no private images; pass its weights as --pretrained. Phase II trains the head
and the normalisation before it in the first steps; Phase III trains all weights. --probe-steps 0 skips Phase II, and
--part probe --probe-steps 0 skips Phase III. Without --pretrained, training starts from random weights.

The tables have settings for some epsilons; any other epsilon uses those of the nearest one, with the noise it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpvision.settings.recipes.baselines import self_aug
from dpvision.settings.training import Config

Table = Mapping[float, dict[str, Any]]


def dp_randp(epsilon: float = 1.0) -> Config:
    """CIFAR-10: 96 steps for the head, then all of WRN-16-4, starting from weights trained on random images.

    Paper: DP-RandP (Tang et al. 2023), tables 1 and 11.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-randp --pretrained prior/weights.safetensors
    Hardware and minutes: like self-aug, days on 2 CPU cores; meant for an accelerator.
    Expect: 72.3% at epsilon 1 and 81.8% at epsilon 6 as published; not run to the end here.
    """
    return _phases("dp-randp", nearest(CIFAR10, epsilon), probe_steps=96, probe_lr=15.0)


def dp_randp_cifar100(epsilon: float = 3.0) -> Config:
    """CIFAR-100: like dp-randp, with larger learning rates.

    Paper: DP-RandP (Tang et al. 2023), table 12.
    Command: dpvision train cifar100.npz --epsilon 3 --recipe dp-randp-cifar100 --pretrained prior/weights.safetensors
    Hardware and minutes: like self-aug, days on 2 CPU cores; meant for an accelerator.
    Expect: not measured yet.
    """
    return _phases("dp-randp-cifar100", nearest(CIFAR100, epsilon), probe_steps=96, probe_lr=25.0)


def dp_randp_dermamnist(epsilon: float = 7.42) -> Config:
    """DermaMNIST: 48 steps for the head, then all of WRN-16-4, with batches of 1024.

    Paper: DP-RandP (Tang et al. 2023), tables 13 and 14.
    Command: dpvision train dermamnist.npz --epsilon 1 --recipe dp-randp-dermamnist --pretrained FILE
    Hardware and minutes: about 2 days on 2 CPU cores; meant for an accelerator.
    Expect: 71.2% at epsilon 1, 73.7% at 4 and 75.0% at 7.42 as published; not run to the end here.
    """
    return _phases("dp-randp-dermamnist", nearest(DERMAMNIST, epsilon), batch=1024, probe_steps=48)


def dp_randp_probe(epsilon: float = 1.0) -> Config:
    """Phase II only: a linear head on frozen features, with every image in each of 100 steps.

    Paper: DP-RandP (Tang et al. 2023), tables 4 and 15.
    Command: dpvision train cifar10.npz --epsilon 1 --recipe dp-randp-probe --pretrained prior/weights.safetensors
    Hardware and minutes: the features are computed once; then each step takes seconds on 2 CPU cores.
    Expect: 67.8% at epsilon 1 as published, with the authors' encoder; not measured yet.
    """
    settings = {"recipe": "dp-randp-probe", "model": "wrn-16-4", "part": "head", "full_batch": True, "steps": 100}
    return Config(**{**settings, "momentum": 0.9, **nearest(PROBE, epsilon)})


CIFAR10: Table = {
    1: {"steps": 875, "lr": 0.4},
    2: {"steps": 1125, "lr": 1.0},
    3: {"steps": 1593, "lr": 1.0},
    4: {"steps": 1687, "lr": 1.2},
    6: {"steps": 1843, "lr": 1.2},
    8: {"steps": 2468, "lr": 1.6},
}
CIFAR100: Table = {
    3: {"steps": 1593, "lr": 1.4},
    4: {"steps": 1687, "lr": 2.0},
    6: {"steps": 1843, "lr": 2.2},
    8: {"steps": 2468, "lr": 1.8},
}
DERMAMNIST: Table = {
    1: {"steps": 600, "lr": 0.2, "probe_lr": 2.0},
    4: {"steps": 800, "lr": 1.0, "probe_lr": 2.0},
    7.42: {"steps": 800, "lr": 1.2, "probe_lr": 2.8},
}
PROBE: Table = {
    0.1: {"lr": 0.8},
    0.2: {"lr": 2.2},
    0.5: {"lr": 5.5},
    1: {"lr": 10.0},
    2: {"lr": 20.0},
    3: {"lr": 40.0},
    4: {"lr": 40.0},
    6: {"lr": 60.0},
    8: {"lr": 60.0},
}


def _phases(name: str, row: dict[str, Any], **settings: Any) -> Config:
    return replace(self_aug(), **{"recipe": name, **settings, **row})


def nearest(table: Table, epsilon: float) -> dict[str, Any]:
    """Return the settings for the epsilon whose ratio to this one is closest to 1."""
    return table[min(table, key=lambda known: abs(math.log(known / epsilon)))]
