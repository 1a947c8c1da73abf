"""The registry agrees with the networks, and names nothing that is not pinned."""

from __future__ import annotations

import re

import pytest
import torch

from dpvision.errors import ConfigError
from dpvision.models import MODELS, build
from dpvision.models.featured import head_name
from dpvision.storage.weights import NETWORKS, entry_of, is_name


@pytest.mark.parametrize("name", NETWORKS)
def test_it_states_what_the_network_computes_with(name: str) -> None:
    entry = NETWORKS[name]
    assert {name, *entry.networks} <= MODELS.keys()
    with torch.device("meta"):
        model = build(name, (3, 20, 40), classes=2, seed=0)
        head = model.get_submodule(head_name(model))
    assert head.weight.shape[1] == entry.features
    assert entry.normalisation is not None
    mean, std = (torch.tensor(values, device="cpu").view(1, 3, 1, 1) for values in entry.normalisation)
    torch.testing.assert_close(model.prepare.scale, 0.5 / std)
    torch.testing.assert_close(model.prepare.shift, (0.5 - mean) / std)
    rows, columns = model.prepare.size
    assert (rows == columns) == ("224x224" in entry.input), "only squares are squeezed"
    assert str(min(rows, columns)) in entry.input


@pytest.mark.parametrize("name", NETWORKS)
def test_every_source_is_pinned_or_is_said_to_be_a_conversion(name: str) -> None:
    entry = NETWORKS[name]
    assert entry.licence and entry.trained_on
    if entry.conversion:
        assert entry.repository is entry.url is entry.sha256 is None
        return
    assert entry.source.startswith("https://") and entry.file.endswith(".safetensors")
    assert re.fullmatch(r"[0-9a-f]{40}", entry.revision or "") and re.fullmatch(r"[0-9a-f]{64}", entry.sha256 or "")
    assert entry.size and entry.size > 4 * entry.features  # type: ignore[operator]


def test_networks_with_the_same_weights_share_an_entry() -> None:
    assert entry_of("dinov2-vits14-112") is entry_of("dinov2-vits14-224") is NETWORKS["dinov2-vits14"]


def test_timm_networks_have_their_own_repository() -> None:
    entry = entry_of("timm:vit_small_patch16_224.augreg_in1k")
    assert (
        entry.source == "https://huggingface.co/timm/vit_small_patch16_224.augreg_in1k/resolve/main/model.safetensors"
    )
    assert entry.sha256 is None and is_name("timm:resnet18.a1_in1k")


@pytest.mark.parametrize(
    "name", ["", "timm:", "timm:a/b", "timm:../x", "timm:a b", "dinov2", "../dinov2-vits14", "linear"]
)
def test_other_names_are_none(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ConfigError, match="no public weights named"):
        entry_of(name)
