"""Public training, sampling and dictionaries on a stand-in accelerator: the CPU's results, and nothing on other devices.

Without a stand-in (tests/standin needs a C++ compiler) these tests are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dpvision.models import build, seeded
from dpvision.public.batches import Source
from dpvision.public.contrastive import PretrainSettings, load_trunk, pretrain, retrieval_accuracy
from dpvision.public.dictionary import DictionarySettings, compute
from dpvision.public.diffusion.fit import FitSettings, fit
from dpvision.public.diffusion.guidance import GuideSettings, fit_guide, load_guide
from dpvision.public.diffusion.model import ModelSpec
from dpvision.public.diffusion.sample import SampleSettings, sample
from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages
from dpvision.public.quality.evaluation import evaluate
from dpvision.public.warmup import WarmUpSettings, warm_up

pytest.importorskip("tests.standin")  # before the first backward pass of the process
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
LABELS = np.arange(24) % 2
PRETRAIN = PretrainSettings(
    process="dead-leaves-squares", model="wrn-10-1", side=16, finer=1, images=24, batch=8, steps=3, hidden=32
)
WARM = WarmUpSettings(model="wrn-10-1", batch=8, steps=3, augment=("crop", "flip"))
SPEC, FIT = ModelSpec((3, 16, 16), ("a", "b"), size="tiny"), FitSettings(batch=4, warm=0, augment=0.5)
GUIDE = GuideSettings(samples=8, extractor_steps=2, steps=2, batch=4, width=8)


@pytest.fixture(autouse=True)
def second_device() -> Iterator[None]:
    """Device 1 while device 0 is the current one, which must stay unused."""
    before = torch.standin.memory_allocated(0)  # type: ignore[attr-defined]
    yield
    assert torch.standin.memory_allocated(0) == before  # type: ignore[attr-defined]


def _do_pretrain(folder: Path, device: str, **control) -> None:  # type: ignore[no-untyped-def]
    pretrain(PRETRAIN, folder, device=device, **control)


def _do_warm(folder: Path, device: str, **control) -> None:  # type: ignore[no-untyped-def]
    warm_up(WARM, [Source("public", IMAGES, LABELS, "digest")], folder, classes=("a", "b"), device=device, **control)


def _do_fit(folder: Path, device: str, **control) -> None:  # type: ignore[no-untyped-def]
    fit(SPEC, FIT, IMAGES, LABELS, folder, steps=3, device=device, **control)


def _difference(one: Path, other: Path) -> float:
    first, second = load_file(one / "weights.safetensors"), load_file(other / "weights.safetensors")
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize("run", [_do_pretrain, _do_warm, _do_fit])
def test_training_on_a_device_gives_the_weights_of_the_cpu(run: Callable[..., None], tmp_path: Path) -> None:
    run(tmp_path / "cpu", "cpu")
    run(tmp_path / "device", "standin:1")
    assert _difference(tmp_path / "cpu", tmp_path / "device") < 1e-5
    devices = [json.loads((tmp_path / name / "card.json").read_text())["devices"] for name in ("cpu", "device")]
    assert devices[0] == ["cpu"] and devices[1][0].startswith("standin")


@pytest.mark.parametrize("run", [_do_pretrain, _do_warm, _do_fit])
def test_a_run_that_continues_on_another_device_states_both(run: Callable[..., None], tmp_path: Path) -> None:
    asked, reports = iter([False, False, True]), list[str]()
    run(tmp_path, "cpu", stop=lambda: next(asked), report=reports.append)
    assert not reports
    run(tmp_path, "standin:1", report=reports.append)
    assert len(reports) == 1 and "on cpu so far and continues on standin" in reports[0]
    devices = json.loads((tmp_path / "card.json").read_text())["devices"]
    assert devices[0] == "cpu" and devices[1].startswith("standin") and len(devices) == 2


def test_samples_and_guide_on_a_device_are_those_of_the_cpu(tmp_path: Path) -> None:
    _do_fit(tmp_path / "model", "cpu")
    images = {}
    for device in ("cpu", "standin:1"):
        folder = tmp_path / device
        fit_guide(tmp_path / "model", GUIDE, IMAGES, LABELS, folder, device=device)
        guide, name = load_guide(folder, tmp_path / "model", weight=1.0, device=torch.device(device))
        for sampler in ("heun", "ancestral"):
            out = tmp_path / f"{sampler}-{device}.npz"
            settings = SampleSettings(count=4, batch=4, sampler=sampler, steps=3)
            sample(tmp_path / "model", settings, out, guide=guide, guided_by=name, device=device)
            images[sampler, device] = np.load(out)["train_images"].astype(int)
    assert _difference(tmp_path / "cpu", tmp_path / "standin:1") < 1e-5
    for sampler in ("heun", "ancestral"):
        assert abs(images[sampler, "cpu"] - images[sampler, "standin:1"]).max() <= 1


def test_a_dictionary_on_a_device_is_that_of_the_cpu() -> None:
    settings = DictionarySettings("patches-two-layers", (3, 16, 16), images=40, patches=2000)
    one, other = (compute(settings, device=device).state_dict() for device in ("cpu", "standin:1"))
    assert all(tensor.device.type == "cpu" for tensor in other.values())
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-3  # scales are about 100


def test_views_are_recognised_on_a_device(tmp_path: Path) -> None:
    trunk = load_trunk(PRETRAIN)
    accuracies = [
        retrieval_accuracy(trunk.to(device), PRETRAIN.process, side=16, first=24, classes=20, device=device)
        for device in ("cpu", "standin:1")
    ]
    assert accuracies[0] == accuracies[1] > 0


@pytest.mark.parametrize("network", ["scattering", "classifier"])
def test_quality_on_a_device_has_the_figures_of_the_cpu(network: str) -> None:
    def images(seed: int) -> LabelledImages:
        pixels = np.random.default_rng(seed).integers(0, 256, (120, 16, 16, 3), dtype=np.uint8)
        return LabelledImages("images", pixels, np.arange(120) % 2)

    settings = ClassifierSettings(model="small-cnn", steps=3)
    one, other = (
        evaluate(images(0), images(1), network=network, classes=("a", "b"), settings=settings, device=device)
        for device in ("cpu", "standin:1")
    )
    assert one.figures == pytest.approx(other.figures, rel=1e-3)


def _two_steps(model: torch.nn.Module, x: Tensor, device: str) -> Tensor:
    model = model.to(device)
    for _ in range(2):
        loss = model(x.to(device)).square().mean()
        with torch.no_grad():
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.sub_(0.1 * g)
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


@pytest.mark.parametrize("name", ["resnet-9-small", "small-alexnet", "vit-tiny", "tanh-cnn", "dinov2-vits14-112"])
def test_networks_have_deterministic_gradients(name: str) -> None:
    """The stand-in refuses the operations that have no deterministic gradient on CUDA."""
    torch.use_deterministic_algorithms(True)
    x = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    one, other = (_two_steps(build(name, (3, 16, 16), classes=2, seed=0), x, d) for d in ("cpu", "standin:1"))
    assert float((one - other).abs().max()) < 1e-4


def test_seeded_numbers_leave_all_generators_as_they_were() -> None:
    devices = ["cpu", "standin:0", "standin:1"]

    def numbers() -> list[float]:
        return [float(torch.rand(1, device=device)) for device in devices]

    torch.manual_seed(7)
    expected = numbers()
    torch.manual_seed(7)
    with seeded(1, torch.device("standin:1")):
        drawn = float(torch.rand(1, device="standin:1"))
    assert numbers() == expected
    with seeded(1, torch.device("standin:1")):
        assert float(torch.rand(1, device="standin:1")) == drawn
