"""The verb geometry on real runs: private results stay in the operator folder, and public images are labelled public."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dpvision.audit import geometry
from dpvision.audit.geometry import load_subject
from dpvision.audit.hessian import PHYSICAL, curvature
from dpvision.cli import main
from dpvision.core import files
from dpvision.data import load
from dpvision.errors import PrivacyError
from dpvision.models import build
from dpvision.private.training import train
from dpvision.private.training.network import each_loss
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from tests.private.engine.oracle import unit_gradients

Run = Callable[..., tuple[int, str, str]]
FEW = ("--most", 60, "--probes", 4)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Calls the command line in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)

    def once(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capsys.readouterr()

    return once


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A small private training run on digits, which charges their ledger."""
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=200, steps=5, model="linear"))
    made = train.begin(prepared, tmp_path / "trained")
    assert train.proceed(made, prepared).complete
    return made.folder


def _public(path: Path, *, seed: int = 0, count: int = 300) -> Path:
    """Synthetic images of ten classes and the size of digits."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    pixels = rng.integers(0, 120, (count, 8, 8))
    pixels[np.arange(count), labels % 8] += 100
    np.savez(path, train_images=pixels.astype(np.uint8), train_labels=labels)
    return path


def _weights(path: Path, model: str = "linear", classes: int = 10) -> Path:
    network = build(model, (1, 8, 8), classes=classes, seed=3)
    torch.manual_seed(0)
    tensors = {n: t + 0.1 * torch.randn_like(t) for n, t in network.state_dict().items()}
    files.write(path, safetensors.dump(tensors, {"format": "some"}))
    return path


def _files(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.blake2b(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_private_results_are_written_to_the_operator_folder_only(run: Run, trained: Path, tmp_path: Path) -> None:
    before = _files(tmp_path)
    code, out, err = run("geometry", trained, "digits", "--private", *FEW)
    assert code == 0, err
    assert "PRIVATE" in out and "(not for release)" in out
    folder = trained / "operator" / "geometry"
    new = {Path(p) for p in _files(tmp_path).keys() - before.keys()}
    assert new == {folder / name for name in ("geometry.json", "spectrum.svg", "gradients.svg")}
    assert all(_files(tmp_path)[p] == digest for p, digest in before.items()), "nothing else is changed"
    assert folder.stat().st_mode & 0o777 == 0o700 and all(p.stat().st_mode & 0o777 == 0o600 for p in new)
    content = json.loads((folder / "geometry.json").read_text())
    assert content["private"] is True and "NOT FOR RELEASE" in content["warning"]
    assert b"NOT FOR RELEASE" in (folder / "spectrum.svg").read_bytes()
    assert b"NOT FOR RELEASE" in (folder / "gradients.svg").read_bytes()
    assert f"lambda_1           {content['eigenvalues'][0]:.5g}" in out


def test_private_images_are_refused_as_public_images(run: Run, trained: Path, tmp_path: Path) -> None:
    """A subset of them among other images, in another file, is refused too."""
    digits = load("digits").train
    part = tmp_path / "part.npz"
    pixels = np.concatenate([digits.images[:40], np.load(_public(tmp_path / "p.npz"))["train_images"][..., None]])
    np.savez(part, train_images=pixels, train_labels=np.arange(len(pixels)) % 10)
    before = _files(tmp_path)
    for source in ("digits", part):
        code, out, err = run("geometry", trained, source, *FEW)
        assert code == 4 and "--private" in err and not out
    code, out, err = run("geometry", trained, tmp_path / "p.npz", "--beside", "digits", *FEW)
    assert code == 4 and not out
    assert _files(tmp_path) == before


@pytest.mark.parametrize("out", ["../elsewhere", "a/b", "..", "."])
def test_private_results_cannot_be_written_elsewhere(run: Run, trained: Path, tmp_path: Path, out: str) -> None:
    before = _files(tmp_path)
    code, _, err = run("geometry", trained, "digits", "--private", "--out", out, *FEW)
    assert code == 2 and "stay in" in err
    code, _, err = run("geometry", trained, "digits", "--private", "--out", tmp_path / "x", *FEW)
    assert code == 2 and "stay in" in err
    code, _, err = run("geometry", trained / "weights.safetensors", "digits", "--private", *FEW)
    assert code == 2 and "run folder" in err
    (tmp_path / "aside").mkdir()
    (trained / "operator" / "link").symlink_to(tmp_path / "aside")
    code, _, err = run("geometry", trained, "digits", "--private", "--out", "link", *FEW)
    assert code == 2 and "already exists" in err
    assert _files(tmp_path) == before


def test_the_library_refuses_to_release_private_results_too(trained: Path, tmp_path: Path) -> None:
    subject = load_subject(trained, "digits", private=True, most=40)
    measured = geometry.measure(subject, probes=2)
    output = geometry.choose_output(trained, tmp_path / "shown", private=False)
    with pytest.raises(PrivacyError, match="private images"):
        geometry.save(output, subject, measured)
    public = load_subject(trained, str(_public(tmp_path / "p.npz")), private=False, most=40)
    with pytest.raises(PrivacyError, match="private images"):
        geometry.save(output, public, geometry.measure(public, probes=2, other=subject))
    assert not (tmp_path / "shown").exists()


def test_public_images_with_a_run_and_with_a_file(run: Run, trained: Path, tmp_path: Path) -> None:
    source = _public(tmp_path / "public.npz")
    code, out, err = run("geometry", trained, source, *FEW)
    assert code == 0, err
    assert "assumed to be PUBLIC" in out and "may be released if the weights may be released" in out
    of_run = json.loads(Path("geometry/geometry.json").read_text())
    assert "warning" not in of_run and of_run["private"] is False and of_run["images"] == 60
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in Path("geometry").iterdir())
    code, _, err = run("geometry", trained, source, *FEW)
    assert code == 2 and "already exists" in err
    code, _, err = run("geometry", trained / "weights.safetensors", source, *FEW, "--out", "again")
    assert code == 0, err
    assert json.loads(Path("again/geometry.json").read_text()) == of_run, "the header of a run's file names its model"
    assert Path("again/gradients.svg").read_bytes() == Path("geometry/gradients.svg").read_bytes()


def test_results_of_a_weights_file_equal_those_of_the_function(run: Run, tmp_path: Path) -> None:
    source, weights = _public(tmp_path / "public.npz"), _weights(tmp_path / "cnn.safetensors", "small-cnn")
    code, out, err = run("geometry", weights, source, "--model", "small-cnn", "--pair", "3,7", "--top", 3, *FEW)
    assert code == 0, err
    content = json.loads(Path("geometry/geometry.json").read_text())
    network = build("small-cnn", (1, 8, 8), classes=10, seed=0)
    network.load_state_dict(safetensors.load(weights, network.state_dict())[0])
    subject = load_subject(weights, str(source), private=False, model="small-cnn", most=60)
    again = curvature(network, each_loss, subject.inputs, subject.targets, top=3, probes=4)
    assert content["eigenvalues"] == pytest.approx(list(again.eigenvalues.values), rel=1e-6)
    assert content["trace"] == pytest.approx(again.trace.value, rel=1e-6) and content["parameters"] == again.weights
    assert "lambda_1/lambda_3" in out and "within '3'" in out and "within '7'" in out
    assert [g["of"] for g in content["plane"]["groups"]] == ["3", "7"]
    assert all(len(g["points"]) == len(g["norms"]) > 1 for g in content["plane"]["groups"])


def test_the_plane_of_two_data_sets(run: Run, tmp_path: Path) -> None:
    one, two = _public(tmp_path / "one.npz"), _public(tmp_path / "two.npz", seed=1)
    weights = _weights(tmp_path / "w.safetensors")
    code, out, err = run("geometry", weights, one, "--model", "linear", "--beside", two, "--pair", "4", *FEW)
    assert code == 0, err
    assert "one (train)" in out and "two (train)" in out
    plane = json.loads(Path("geometry/geometry.json").read_text())["plane"]
    assert [g["of"] for g in plane["groups"]] == ["one (train)", "two (train)"]
    assert plane["between"] > 0.5, "both are of one class and one distribution"
    code, _, err = run("geometry", weights, one, "--model", "linear", "--beside", two, "--pair", "4,5", "-o", "b")
    assert code == 2 and "one class or none" in err


def test_a_head_that_was_trained_alone_is_measured_alone(run: Run, tmp_path: Path) -> None:
    source = _public(tmp_path / "public.npz")
    prepared = train.prepare("digits", Config(epsilon=3.0, batch=200, steps=3, model="small-cnn", part="head"))
    made = train.begin(prepared, tmp_path / "head")
    assert train.proceed(made, prepared).complete
    code, _, err = run("geometry", made.folder, source, *FEW)
    assert code == 0, err
    content = json.loads(Path("geometry/geometry.json").read_text())
    head = prepared.network.build()[-1]
    assert content["part"] == "head" and content["parameters"] == sum(p.numel() for p in head.parameters())


def test_every_mistake_is_refused_with_a_fix(run: Run, tmp_path: Path) -> None:
    source, weights = _public(tmp_path / "public.npz"), _weights(tmp_path / "w.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    linear = ("--model", "linear")
    other = _weights(tmp_path / "five.safetensors", classes=5)
    mistakes: list[tuple[tuple[object, ...], int, str]] = [
        ((weights, source), 2, "--model NAME"),
        ((weights, source, "--model", "linaer"), 2, "Did you mean 'linear'"),
        ((tmp_path / "nothing", source), 3, "there is no such file or folder"),
        ((tmp_path, source), 3, "the folder of a run"),
        ((tmp_path / "broken.safetensors", source, *linear), 3, "broken.safetensors"),
        ((other, source, *linear), 3, "no head"),
        ((weights, source, "--model", "small-cnn"), 3, "Fix"),
        ((weights, source, *linear, "--split", "test"), 3, "no test split"),
        ((weights, source, *linear, "--most", 0), 2, "--most"),
        ((weights, source, *linear, "--top", 0), 2, "--top"),
        ((weights, source, *linear, "--pair", "3,frog"), 2, "frog"),
        ((weights, source, *linear, "--pair", "3"), 2, "two classes"),
        ((weights, source, *linear, "--most", 5), 3, "larger --most"),
        ((weights, tmp_path / "no.npz", *linear), 3, "no.npz"),
    ]
    for words, expected, text in mistakes:
        code, _, err = run("geometry", *words)
        assert code == expected and text in err, (words, code, err)
    assert not Path("geometry").exists()


def _class_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % 4
    return torch.randn(count, 1, 4, 4, generator=rng) + targets.view(-1, 1, 1, 1) / 2, targets


def test_the_summary_of_a_loss_equals_a_naive_loop() -> None:
    model = build("small-cnn", (1, 4, 4), classes=4, seed=0)
    images, targets = _class_images(PHYSICAL + 5, 0)
    summary = geometry.summarise_loss(model, each_loss, images, targets, clip=0.3)
    rows = unit_gradients(model, images, targets, [1] * len(images))
    clipped = rows * (0.3 / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    outputs = model(images)
    assert summary.loss == pytest.approx(float(F.cross_entropy(outputs, targets).detach()), rel=1e-5)
    assert summary.accuracy == pytest.approx(float((outputs.argmax(1) == targets).float().mean()))
    assert summary.gradient == pytest.approx(float(rows.mean(0).norm()), rel=1e-4)
    assert summary.clipped == pytest.approx(float(clipped.mean(0).norm()), rel=1e-4)
    assert summary.clipped < summary.gradient
