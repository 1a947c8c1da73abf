"""Classifiers on centred rows of any network's features, and features of reduced images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dpvision.errors import ConfigError
from dpvision.models import Featured, build, load_public
from dpvision.models.featured import reduce, shape_at

IMAGES = torch.rand(5, 1, 20, 28, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("name", ["linear-centred", "scatter-linear-centred", "small-cnn-centred", "scatter-linear@16"])
def test_features_of_an_image_do_not_depend_on_the_others(name: str) -> None:
    model = build(name, (1, 20, 28), classes=3, seed=0)
    assert isinstance(model, Featured)
    together = model.features(IMAGES)
    for place in range(len(IMAGES)):
        assert torch.equal(model.features(IMAGES[place : place + 1]), together[place : place + 1])
    if name.endswith("-centred"):
        torch.testing.assert_close(together.norm(dim=1), torch.ones(5))
        learned = [n for n, p in model.named_parameters() if not n.startswith("prefix.")]
        assert learned == ["rest.0.centre", "rest.1.weight"]


def test_the_features_are_those_before_the_head() -> None:
    plain, centred = (
        build(name, (1, 20, 28), classes=3, seed=0) for name in ("scatter-linear", "scatter-linear-centred")
    )
    assert isinstance(plain, Featured) and isinstance(centred, Featured)
    rows = plain.features(IMAGES).flatten(1)
    torch.testing.assert_close(centred.features(IMAGES), rows / rows.norm(dim=1, keepdim=True))


def test_a_reduced_pixel_is_the_mean_over_its_area() -> None:
    small = reduce(IMAGES, size=(10, 14))
    torch.testing.assert_close(small[2, 0, 3, 5], IMAGES[2, 0, 6:8, 10:12].mean())
    model, at_ten = (
        build("scatter-linear@10", (1, 20, 28), classes=2, seed=0),
        build("scatter-linear", (1, 10, 14), classes=2, seed=0),
    )
    assert isinstance(model, Featured) and isinstance(at_ten, Featured)
    torch.testing.assert_close(model.features(IMAGES), at_ten.features(small))
    assert shape_at(64, (3, 224, 336)) == (3, 64, 96)


def test_what_cannot_be_reduced_is_refused() -> None:
    with pytest.raises(ConfigError, match="would not reduce"):
        build("patches-256@64", (3, 32, 32), classes=2, seed=0)
    with pytest.raises(ConfigError, match="learns from pixels"):
        build("small-cnn@16", (3, 32, 32), classes=2, seed=0)
    with pytest.raises(ConfigError, match="no model named"):
        build("nothing-centred", (3, 32, 32), classes=2, seed=0)


def test_published_weights_load_under_a_centred_head(tmp_path: Path) -> None:
    network = build("small-cnn", (1, 20, 28), classes=7, seed=5)
    file = tmp_path / "weights.safetensors"
    save_file(network.state_dict(), file)
    centred = build("small-cnn-centred", (1, 20, 28), classes=3, seed=0)
    assert isinstance(centred, Featured)
    before = centred.features(IMAGES)
    load_public(centred, file)
    assert not torch.equal(before, centred.features(IMAGES))
    rows = network[:-1](IMAGES)  # type: ignore[index]
    torch.testing.assert_close(centred.features(IMAGES), torch.nn.functional.normalize(rows, dim=1))
    again = tmp_path / "again.safetensors"
    save_file(centred.state_dict(), again)
    load_public(build("small-cnn-centred", (1, 20, 28), classes=3, seed=1), again)
