"""A fit learns, resumes with the same result, and refuses invalid data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.errors import ConfigError, DataError, DPVisionError
from dpvision.models.inputs import to_tensor
from dpvision.public.diffusion.fit import Fit, FitSettings, fit
from dpvision.public.diffusion.methods import METHODS
from dpvision.public.diffusion.model import ModelSpec, load_diffusion, to_bytes
from dpvision.public.trainer import Progress
from dpvision.storage import safetensors

KIND = ModelSpec((1, 8, 8), ("low", "high"), size="tiny")
SETTINGS = FitSettings(batch=4, warm=8, augment=0.5, flip=True)
LABELS = np.arange(12) % 2


def pictures() -> np.ndarray:
    """Dark and bright images."""
    rng = np.random.default_rng(0)
    return (rng.integers(0, 20, (12, 8, 8, 1)) + 180 * LABELS[:, None, None, None]).astype(np.uint8)


def learn(folder: Path, **changes) -> bool:  # type: ignore[no-untyped-def]
    arguments = {"spec": KIND, "settings": SETTINGS, "images": pictures(), "labels": LABELS, "steps": 4} | changes
    return fit(folder=folder, **arguments)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fits") / "one-step"
    learn(folder, steps=1)
    return folder


@pytest.fixture
def begun(fitted: Path, tmp_path: Path) -> Path:
    """A fit of one step, for this test alone."""
    return Path(shutil.copytree(fitted, tmp_path / "begun"))


@pytest.mark.parametrize(("method", "after"), [("edm", 0), ("edm", 3), ("ddpm", 1)])
def test_a_resumed_fit_has_the_same_bits(method: str, after: int, tmp_path: Path) -> None:
    spec, asked = replace(KIND, method=method), iter([False] * after + [True])
    assert learn(tmp_path / "straight", spec=spec)
    assert not learn(tmp_path / "stopped", spec=spec, stop=lambda: next(asked))
    assert not (tmp_path / "stopped" / "weights.safetensors").exists()
    assert learn(tmp_path / "stopped", spec=spec)
    one, other = (load_file(tmp_path / name / "state.safetensors") for name in ("straight", "stopped"))
    assert one.keys() == other.keys()
    assert all(bool((one[name] == other[name]).all()) for name in one)
    one, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "stopped"))
    assert one == other


def test_a_finished_fit_can_be_extended(tmp_path: Path) -> None:
    seen: list[Progress] = []
    assert learn(tmp_path / "a", steps=2) and learn(tmp_path / "a", steps=4, progress=seen.append)
    assert learn(tmp_path / "b")
    assert [at.step for at in seen] == [3, 4] and seen[-1].done == 1
    one, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("a", "b"))
    assert one == other
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    assert card["images_seen"] == 16 and card["steps"] == 4 and card["classes"] == ["low", "high"]
    assert (tmp_path / "b" / "grid-4.png").read_bytes().startswith(b"\x89PNG")


def test_a_fit_ends_after_its_minutes(tmp_path: Path) -> None:
    steps: list[int] = []
    assert learn(tmp_path, steps=None, minutes=0.005, progress=lambda at: steps.append(at.step))
    assert steps and json.loads((tmp_path / "card.json").read_text())["seconds"] >= 0.3


def test_pieces_of_a_batch_give_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a loss without random numbers, pieces of 2 + 2 + 1 images give the gradient of 5 images at once."""

    def loss(network, y, labels, numbers):  # type: ignore[no-untyped-def]
        return (network(y, torch.zeros(len(y)), labels, numbers) - y).square().mean()

    monkeypatch.setitem(METHODS, "edm", replace(METHODS["edm"], loss=loss))
    y, labels = to_tensor(pictures()[:5]), torch.from_numpy(LABELS[:5])
    results = {}
    for pieces in (1, 3):
        task = Fit(KIND, replace(SETTINGS, batch=5, pieces=pieces), pictures(), LABELS)
        results[pieces] = task._gradients(y, labels, torch.ones(5, 9))
    assert results[1][0] == pytest.approx(results[3][0], rel=1e-5)
    assert any(gradient.any() for gradient in results[1][1])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(results[1][1], results[3][1], strict=True))


def test_it_learns_and_the_weights_are_read_back(tmp_path: Path) -> None:
    losses: list[float] = []
    settings = FitSettings(batch=16, lr=1e-3, warm=160)
    learn(tmp_path, settings=settings, steps=80, progress=lambda at: losses.append(at.loss))
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:10])
    kind, network, _ = load_diffusion(tmp_path)
    assert kind == KIND and not any(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((0, 8, 8, 1), np.uint8), "labels": np.zeros(0, int)}, "there are none"),
        ({"labels": np.zeros(12, int)}, "'high' has none.*Fix"),
        ({"labels": LABELS + 1}, "from 0 to 1"),
        ({"images": pictures()[:, :4]}, "not .* images"),
        ({"labels": LABELS[:3]}, "not .* images"),
    ],
)
def test_invalid_data(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        learn(tmp_path / "new", **changes)
    assert not (tmp_path / "new").exists()


def test_invalid_settings(tmp_path: Path) -> None:
    for changes in ({"steps": None}, {"steps": 0}, {"steps": None, "minutes": float("nan")}):
        with pytest.raises(ConfigError):
            learn(tmp_path / "new", **changes)
    for wrong in ({"batch": 0}, {"lr": float("nan")}, {"seed": -1}, {"augment": 2.0}, {"pieces": 9, "batch": 8}):
        with pytest.raises(ConfigError):
            FitSettings(**wrong)
    for wrong in ({"method": "gan"}, {"size": "huge"}, {"shape": (2, 8, 8)}, {"classes": ()}):
        with pytest.raises(ConfigError):
            replace(KIND, **wrong)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("words")
    with pytest.raises(ConfigError, match="other files"):
        learn(tmp_path)


def test_another_model_other_settings_and_other_images_are_not_mixed(begun: Path) -> None:
    for changes, message in (
        ({"spec": replace(KIND, method="ddpm")}, "other settings"),
        ({"settings": replace(SETTINGS, lr=0.5)}, "other settings"),
        ({"images": 255 - pictures()}, "other public images"),
    ):
        with pytest.raises(ConfigError, match=message):
            learn(begun, **changes)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("step", "text"),
        ("step", "-1"),
        ("seconds", "nan"),
        ("settings", "[" * 20_000),
        ("public", None),
        ("model", "{"),
    ],
)
def test_a_forged_state_is_one_clear_error(entry: str, value: str | None, begun: Path) -> None:
    file = begun / "state.safetensors"
    header = {k: v for k, v in safetensors.read(file).header.items() if k != "digest" and (k != entry or value)}
    file.write_bytes(safetensors.dump(load_file(file), header | ({entry: value} if value else {})))
    with pytest.raises(DPVisionError):
        learn(begun)


@pytest.mark.parametrize(
    "model",
    ["{", "[]", '{"shape": [1, 8, 8]}', '{"shape": [1, 1e9, 8], "classes": ["a"], "method": "edm", "size": "tiny"}'],
)
def test_forged_weights_are_one_clear_error(model: str, begun: Path) -> None:
    file = begun / "weights.safetensors"
    header = {k: v for k, v in safetensors.read(file).header.items() if k != "digest"} | {"model": model}
    file.write_bytes(safetensors.dump(load_file(file), header))
    with pytest.raises(DataError, match=r"weights\.safetensors"):
        load_diffusion(begun)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="synth fit"):
        load_diffusion(tmp_path)


def test_pixels_there_and_back() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    assert np.array_equal(to_bytes(to_tensor(every)), every)
    assert np.array_equal(to_bytes(to_tensor(every / np.float32(255))), every)
    assert to_bytes(to_tensor(every) * 1.5).max() == 255
