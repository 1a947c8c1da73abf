"""--symmetry chooses a model of its own, in training and in releases, whose features have names of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError
from dpvision.models import MODELS, build
from dpvision.models.featured import Featured
from dpvision.private.training.choice import choose_recipe
from dpvision.private.training.network import Network
from dpvision.private.training.public_inputs import PublicInputs
from dpvision.public.dictionary import DictionarySettings
from dpvision.settings.recipes import recipe, release_recipe
from dpvision.settings.symmetry import FAMILIES, SYMMETRIES, with_symmetry
from dpvision.settings.training import Config, merge

SHAPE = (3, 32, 32)


def test_every_model_with_a_symmetry_can_be_built() -> None:
    for family in FAMILIES:
        assert family.keys() <= set(SYMMETRIES)
        for name in family.values():
            assert name in MODELS or name.removesuffix("-centred") in MODELS
            assert isinstance(build(name, SHAPE, classes=2, seed=0), Featured)


def test_the_model_of_a_symmetry() -> None:
    assert with_symmetry("patches-256@64", "rotations") == "patches-256-rotations@64"
    assert with_symmetry("patches-1024-rotations", "mirror") == with_symmetry("patches", "mirror") == "patches-1024"
    assert with_symmetry("small-cnn", None) == "small-cnn"
    for model, symmetry in (("small-cnn", "mirror"), ("scatter-linear", "rotations")):
        with pytest.raises(ConfigError, match=f"symmetry is '{symmetry}': there is no {model} with it"):
            with_symmetry(model, symmetry)


def test_settings_name_the_model_and_complete_twice_alike() -> None:
    config = replace(recipe("patches", epsilon=3), symmetry="rotations").complete(7007)
    assert config.model == "patches-1024-rotations" and config.complete(7007) == config
    release = replace(release_recipe("moments"), symmetry="rotations").complete(7007, 7, 3)
    assert release.encoder == "patches-256-rotations"
    with pytest.raises(ConfigError, match="the rows are features already"):
        Config(head="lda", symmetry="mirror").complete(7007)


def test_auto_keeps_a_symmetry_and_never_chooses_one() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 32, 32, 3), dtype=np.uint8)
    data = Dataset("arrays", ("a", "b"), Split(pixels, np.arange(5000) % 2, None), None, None, ())
    chosen = {}
    for symmetry in (None, "rotations"):
        config = merge(recipe("auto", epsilon=3), {} if symmetry is None else {"symmetry": symmetry}, source="test")
        assert config.recipe == "auto"
        chosen[symmetry] = choose_recipe(config, data, 5000, torch.device("cpu")).complete(5000)
    assert chosen[None].model == "patches-1024" and chosen[None].recipe == "patches"
    assert chosen["rotations"].model == "patches-1024-rotations" and chosen["rotations"].recipe == "patches"


def test_features_of_two_symmetries_have_different_names() -> None:
    """Even with the same weights in the dictionary, neither it nor cached features are taken for the others'."""
    split = Split(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64), None)
    names = ("patches-256-plain", "patches-256", "patches-256-rotations")
    assert len({DictionarySettings(name, SHAPE).name for name in names}) == len(names)
    keys = set()
    for name in names:
        network = Network(Config(model=name, part="head"), SHAPE, 2, PublicInputs())
        parts = network.split(network.build())
        assert parts is not None
        keys.add(network.features_key(split, parts))
    assert len(keys) == len(names) == len({key[1:] for key in keys})
