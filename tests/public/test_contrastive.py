"""Pretraining on random images resumes with the same result, and private training loads its weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.errors import ConfigError, DPVisionError
from dpvision.models import build, load_public
from dpvision.public import contrastive
from dpvision.public.batches import choose_batch
from dpvision.public.contrastive import (
    Encoder,
    PretrainSettings,
    draw_pairs,
    load_trunk,
    pretrain,
    retrieval_accuracy,
    trunk_of,
)
from dpvision.storage import safetensors
from tests.system.runs.commands import run

SETTINGS = PretrainSettings(
    process="dead-leaves-squares", model="wrn-10-1", side=16, finer=1, images=24, batch=8, steps=6, hidden=32
)


def test_a_stopped_pretraining_resumes_with_the_same_result(tmp_path: Path) -> None:
    assert pretrain(SETTINGS, tmp_path / "straight")
    asked = iter([False, False, True])
    assert not pretrain(SETTINGS, tmp_path / "stopped", stop=lambda: next(asked))
    assert not (tmp_path / "stopped" / "card.json").exists()
    with pytest.raises(ConfigError, match="other settings"):
        pretrain(replace(SETTINGS, lr=0.5), tmp_path / "stopped")
    assert pretrain(SETTINGS, tmp_path / "stopped")
    one, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "stopped"))
    assert one == other
    with pytest.raises(ConfigError, match="finished"):
        pretrain(SETTINGS, tmp_path / "stopped")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("step", "text"),
        ("step", "-1"),
        ("step", "1" + "0" * 30),
        ("step", None),
        ("settings", "{"),
        ("settings", "[" * 20_000),
        ("settings", None),
        ("seconds", "nan"),
        ("curve", "3"),
        ("curve", "[[1, NaN]]"),
    ],
)
def test_a_forged_state_is_one_clear_error(entry: str, value: str | None, tmp_path: Path) -> None:
    asked = iter([False, False, True])
    assert not pretrain(SETTINGS, tmp_path, stop=lambda: next(asked))
    file = tmp_path / "state.safetensors"
    header = {k: v for k, v in safetensors.read(file).header.items() if k != "digest" and (k != entry or value)}
    file.write_bytes(safetensors.dump(load_file(file), header | ({entry: value} if value else {})))
    with pytest.raises(DPVisionError):
        pretrain(SETTINGS, tmp_path)
    assert not (tmp_path / "card.json").exists()


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    assert not pretrain(SETTINGS, tmp_path, stop=lambda: next(asked))
    file = tmp_path / "state.safetensors"
    header = {k: v for k, v in safetensors.read(file).header.items() if k != "digest"}
    file.write_bytes(safetensors.dump({n: t * float("nan") for n, t in load_file(file).items()}, header))
    with pytest.raises(DPVisionError, match="not finite"):
        pretrain(SETTINGS, tmp_path)


def test_private_training_starts_from_the_trunk(tmp_path: Path) -> None:
    assert pretrain(SETTINGS, tmp_path)
    model = build("wrn-10-1", (3, 16, 16), classes=5, seed=9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    digest = load_public(model, tmp_path / "weights.safetensors")
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["digest"] == digest and card["process"] == "dead-leaves-squares" and card["images_seen"] == 48
    trunk = set(Encoder("wrn-10-1", (3, 16, 16), hidden=32).trunk.state_dict())
    weights = [name for name in trunk if name.endswith("weight") and "norm" not in name]
    assert weights and not any(torch.equal(model.state_dict()[name], before[name]) for name in weights)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before.keys() - trunk)
    assert len(before) - len(trunk) == 4, "the last normalisation and the head are for private images"


def test_the_trunk_before_and_after_training(tmp_path: Path) -> None:
    assert pretrain(SETTINGS, tmp_path)
    before, after = load_trunk(SETTINGS).state_dict(), load_trunk(SETTINGS, tmp_path).state_dict()
    assert all(torch.equal(before[n], t) for n, t in Encoder("wrn-10-1", (3, 16, 16)).trunk.state_dict().items())
    saved = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(saved[n], t) for n, t in after.items())
    assert any(not torch.equal(before[n], t) for n, t in after.items())


def test_views_are_recognised_by_maps_and_by_rows() -> None:
    """Some trunks end in maps, which are averaged; that of small-alexnet ends in rows."""
    maps, process = torch.nn.Identity(), SETTINGS.process  # the mean colour of an image
    rows = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    share = retrieval_accuracy(maps, process, side=16, first=0, classes=50)
    assert share == retrieval_accuracy(rows, process, side=16, first=0, classes=50) > 0
    assert (
        0
        <= retrieval_accuracy(
            load_trunk(replace(SETTINGS, model="small-alexnet")), process, side=16, first=0, classes=5
        )
        <= 1
    )


def test_the_command_line_gives_the_same_weights(tmp_path: Path) -> None:
    words = (
        "pretrain --process dead-leaves-squares --model wrn-10-1 --size 16 --finer 1 --count 24 --batch 8 --hidden 32"
    )
    code, out, err = run(*words.split(), "--steps", "6", "--out", tmp_path / "prior", home=tmp_path / "home")
    assert code == 0 and "recognised in another view" in out, err
    assert pretrain(SETTINGS, tmp_path / "same")
    one, other = (tmp_path / name / "weights.safetensors" for name in ("prior", "same"))
    assert one.read_bytes() == other.read_bytes()


def test_every_pass_sees_every_image_once() -> None:
    passes = [
        np.concatenate([choose_batch(np.arange(25), s, batch=8, seed=1) for s in range(3 * p, 3 * p + 3)])
        for p in (0, 1)
    ]
    for order in passes:
        assert len(set(order.tolist())) == 24 and order.max() < 25
    assert (passes[0] != passes[1]).any()


def test_views_of_one_image_differ_and_belong_together() -> None:
    kind = {"side": 16, "finer": 2, "batch": 8, "images": 24, "seed": 0, "workers": 1}
    one, other = next(draw_pairs("dead-leaves-squares", steps=range(2, 3), **kind))
    assert one.shape == (8, 3, 16, 16) and one.abs().max() <= 1
    assert not torch.equal(one, other)
    assert torch.equal(one, list(draw_pairs("dead-leaves-squares", steps=range(3), **kind))[2][0]), (
        "a step by its number"
    )
    means = [x.mean((2, 3)).flatten() for x in (one, other)]
    own = (means[0] - means[1]).abs().mean()
    strangers = (means[0] - means[1].view(8, 3).roll(1, 0).flatten()).abs().mean()
    assert own < strangers


def test_invalid_networks_and_settings_are_named() -> None:
    for name in ("linear", "vit-tiny"):
        with pytest.raises(ConfigError, match=name):
            trunk_of(build(name, (3, 32, 32), classes=2, seed=0), name)
    with pytest.raises(ConfigError, match="loss is 'triplet'"):
        PretrainSettings(loss="triplet")
    with pytest.raises(ConfigError, match="batch is 10"):
        PretrainSettings(batch=10, images=5)


@pytest.mark.parametrize("workers", [1, 2])
def test_images_that_are_kept_are_those_that_are_drawn(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over three passes, each without another image, from the middle of the first."""

    def views() -> torch.Tensor:
        stream = draw_pairs(
            "dead-leaves-squares", side=8, finer=2, batch=4, images=9, steps=range(1, 6), seed=3, workers=workers
        )
        return torch.cat([torch.cat(both) for both in stream])

    kept = views()
    monkeypatch.setattr(contrastive, "MAX_CACHE_BYTES", 0)
    assert torch.equal(kept, views())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"of a run")
    with pytest.raises(ConfigError, match="has other files in it"):
        pretrain(SETTINGS, tmp_path)
    code, _, err = run("pretrain", "--model", "patches-256", "--out", tmp_path, home=tmp_path / "home")
    assert code == 2 and "has other files in it" in err
    assert (tmp_path / "weights.safetensors").read_bytes() == b"of a run"
