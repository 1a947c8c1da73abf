"""Discriminator guidance moves samples towards the real data, and a stopped fit resumes with the same result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpvision.errors import ConfigError, DataError
from dpvision.public.diffusion import guidance
from dpvision.public.diffusion.fit import FitSettings, fit
from dpvision.public.diffusion.guidance import GuideSettings, fit_guide, load_guide
from dpvision.public.diffusion.methods import heun, karras_sigmas
from dpvision.public.diffusion.model import ModelSpec
from dpvision.public.diffusion.sample import SampleSettings, sample
from dpvision.storage import safetensors
from examples.points import MLP, fit_points

KIND = ModelSpec((1, 8, 8), ("low", "high"), size="tiny")
SETTINGS = GuideSettings(samples=6, extractor_steps=2, steps=3, batch=4, width=8)
LABELS = np.arange(8) % 2


def wrong_model(x: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
    """The exact denoiser of N(0, 0.3^2) in the plane, which is not the distribution of the data."""
    return 0.09 / (0.09 + sigma.reshape(-1, 1) ** 2) * x


def test_in_the_plane_samples_move_to_the_real_points() -> None:
    torch.manual_seed(0)
    sigmas, labels = karras_sigmas(20), torch.arange(2000) % 2
    real = torch.tensor([[0.4, 0.0], [0.0, -0.4]])[labels] + 0.3 * torch.randn(2000, 2)
    drawn = heun(wrong_model, torch.randn(2000, 2, dtype=torch.float64), labels, sigmas=sigmas).float()

    def loss(network: MLP, chosen: Tensor) -> Tensor:
        return guidance.discriminator_loss(network, real[chosen], labels[chosen], drawn[chosen], labels[chosen])

    result = fit_points(MLP(2, classes=2, out=1), loss, count=2000, steps=500, lr=3e-3)
    noise = torch.randn(1000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    far = {}
    for weight in (0.0, 0.5, 1.0):
        guide = guidance.make_guide(result, weight=weight)
        with torch.no_grad():
            x = heun(wrong_model, noise, labels[:1000], sigmas=sigmas, guide=guide)
        centres = [x[labels[:1000] == label].mean(0) for label in (0, 1)]
        wanted = [torch.tensor([0.4, 0.0]), torch.tensor([0.0, -0.4])]
        far[weight] = max((a - b).norm().item() for a, b in zip(centres, wanted, strict=True))
    assert far[0.0] == pytest.approx(0.4, abs=0.03)
    assert 0.1 < far[0.5] < 0.3
    assert far[1.0] < 0.12


def test_a_guide_is_silent_outside_its_levels() -> None:
    guide = guidance.make_guide(lambda x, *_: x.sum(1, keepdim=True), weight=2.0)
    x, labels = torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    assert not guide(x, torch.full((3,), 0.01, dtype=torch.float64), labels).any()
    inside = guide(x, torch.full((3,), 1.0, dtype=torch.float64), labels)
    assert inside.dtype == torch.float64 and torch.allclose(inside, torch.tensor(2 / 1.25**0.5).double())
    assert not guide(x + 100, torch.full((3,), 1.0, dtype=torch.float64), labels).any()  # D is kept below 1 - 1e-5


def pictures() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.integers(0, 60, (8, 8, 8, 1)) + 180 * LABELS[:, None, None, None]).astype(np.uint8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "edm"
    fit(KIND, FitSettings(batch=4), pictures(), LABELS, folder, steps=2)
    return folder


@pytest.mark.parametrize("after", [0, 2, 4, 5])
def test_a_resumed_run_has_the_same_result(after: int, model: Path, tmp_path: Path) -> None:
    """Stopped before the samples, within the extractor, and within the discriminator."""
    asked = iter([False] * after + [True])
    arguments = (model, SETTINGS, pictures(), LABELS)
    assert fit_guide(*arguments, tmp_path / "straight")
    assert not fit_guide(*arguments, tmp_path / "stopped", stop=lambda: next(asked))
    assert fit_guide(*arguments, tmp_path / "stopped")
    one, other = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("straight", "stopped"))
    assert one == other


def test_samples_follow_the_guide_and_the_guide_its_model(model: Path, tmp_path: Path) -> None:
    assert fit_guide(model, SETTINGS, pictures(), LABELS, tmp_path / "guide")
    assert json.loads((tmp_path / "guide" / "card.json").read_text())["steps"] == 3
    draw = SampleSettings(count=4, steps=3)
    assert sample(model, draw, tmp_path / "alone.npz")
    guide, name = load_guide(tmp_path / "guide", model, weight=500.0)
    assert sample(model, draw, tmp_path / "led.npz", guide=guide, guided_by=name)
    alone, led = (np.load(tmp_path / f"{name}.npz")["train_images"] for name in ("alone", "led"))
    assert not np.array_equal(alone, led)
    other = tmp_path / "other"
    fit(KIND, FitSettings(batch=4, seed=1), pictures(), LABELS, other, steps=1)
    with pytest.raises(ConfigError, match="another model"):
        load_guide(tmp_path / "guide", other, weight=1.0)
    with pytest.raises(ConfigError, match="weight"):
        load_guide(tmp_path / "guide", model, weight=float("nan"))
    with pytest.raises(DataError, match="header"):
        load_guide(model, model, weight=1.0)
    with pytest.raises(DataError, match="synth guide"):
        load_guide(tmp_path, model, weight=1.0)
    with pytest.raises(ConfigError, match="another model, images or settings"):
        fit_guide(model, SETTINGS, 255 - pictures(), LABELS, tmp_path / "guide")


@pytest.mark.parametrize("at", ["-1", "-" + "9" * 400, "3", "9" * 400, '"x"'])
def test_a_state_with_an_impossible_step(at: str, model: Path, tmp_path: Path) -> None:
    asked = iter([False] * 5 + [True])
    assert not fit_guide(model, SETTINGS, pictures(), LABELS, tmp_path, stop=lambda: next(asked))
    path = tmp_path / "state.safetensors"
    content = {key: value for key, value in safetensors.read(path).header.items() if key != "digest"}
    forged = {**content, "at": f'{{"extractor": {at}, "discriminator": 0}}'}
    path.write_bytes(safetensors.dump(load_file(path), forged))
    with pytest.raises(DataError, match=r"not that of a guide.*Fix"):
        fit_guide(model, SETTINGS, pictures(), LABELS, tmp_path)


def test_invalid_settings() -> None:
    for wrong in ({"samples": 0}, {"batch": 1}, {"width": 9}, {"lr": 0.0}, {"seed": -1}):
        with pytest.raises(ConfigError):
            GuideSettings(**wrong)  # type: ignore[arg-type]
