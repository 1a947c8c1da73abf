"""One file with everything: it states what the run states, answers as the network does, and overwrites nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from dpvision.cli.train import write_report
from dpvision.errors import ConfigError, DataError
from dpvision.models import MODELS, build
from dpvision.models.tasks import Task
from dpvision.private.training import train
from dpvision.released.export import MAX_DIFFERENCE, require_same_outputs, to_onnx
from dpvision.released.model import load_model
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run
from tests.one_thread import one_thread
from tests.system.docs.examples import call

TASK = Task("classes", 3)

__all__ = ["one_thread"]

# Between them: standardised filters, group norm, transforms by matrices, patches. `make test-slow` has all networks.
QUICK = {"wrn-10-1": (1, 8, 8), "scatter-linear": (1, 8, 8), "patches-256": (1, 10, 10)}
SHAPES = {"vit-tiny": (1, 8, 8), "patches-two-layers": (3, 32, 32), "small-alexnet": (3, 32, 32)}
EACH = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in MODELS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on digits."""
    folder = tmp_path_factory.mktemp("exported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPVISION_HOME", str(folder / "home"))
        prepared = train.prepare("digits", Config(epsilon=3.0, steps=3))
        made = train.begin(prepared, folder / "run")
        assert train.proceed(made, prepared).complete
        write_report(made)
    return made


@pytest.mark.parametrize("name", EACH)
def test_every_network_can_be_exported(name: str) -> None:
    shape = QUICK.get(name) or SHAPES.get(name, (1, 28, 28))
    network = build(name, shape, classes=3, seed=0)
    with torch.no_grad():
        for weight in network.parameters():
            if not weight.any():  # a head of zeros would hide what comes before it
                nn.init.normal_(weight, std=0.1)
    graph = to_onnx(network, shape, TASK, name=name)
    assert require_same_outputs(graph, network, shape, TASK, name=name) < MAX_DIFFERENCE / 10
    assert b"/dpvision/" not in graph and str(Path.home()).encode() not in graph


def test_the_verb_writes_a_graph_with_its_card(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(run.folder.parent / "home"))
    out = tmp_path / "model.onnx"
    words = ["export", str(run.folder), "--to", "onnx", "--out", str(out)]
    assert call(words, monkeypatch) == 0
    with pytest.raises(DataError, match=r"is an ONNX graph, which other programs run\. Fix: give the folder"):
        load_model(out)
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    content = session.get_modelmeta().custom_metadata_map
    assert json.loads(content["card"]) == json.loads((run.folder / "card.json").read_text())
    assert json.loads(content["classes"]) == [str(n) for n in range(10)] and content["private"] == "yes"
    assert json.loads(content["input"])["shape"] == ["N", 8, 8, 1] and content["format"] == "dpvision-onnx-1"
    images = np.random.default_rng(0).integers(0, 256, (7, 8, 8, 1), dtype=np.uint8)
    scores, chances = session.run(["scores", "probabilities"], {"images": images})
    network = load_model(run.folder)
    with torch.no_grad():
        wanted = network.model((torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5)
    assert np.abs(wanted.numpy() - scores).max() < 1e-4 and chances.sum(1) == pytest.approx(1)
    with pytest.raises(ConfigError, match="so no file was written"):  # a graph of other weights
        require_same_outputs(
            out.read_bytes(), build("linear", (1, 8, 8), classes=10, seed=0), (1, 8, 8), TASK, name="linear"
        )
    before = out.read_bytes()
    assert call(words, monkeypatch) == 2 and out.read_bytes() == before
    assert call(["export", str(run.folder), "--to", "safetensors", "--out", str(out), "--force"], monkeypatch) == 2


def test_the_weights_with_their_card_predict_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(run.folder.parent / "home"))
    out = tmp_path / "model.safetensors"
    words = ["export", str(run.folder), "--to", "safetensors", "--out", str(out)]
    assert call(words, monkeypatch) == 0
    header, original = safetensors.read(out).header, safetensors.read(run.weights).header
    assert json.loads(header["card"])["weights_digest"] == original["digest"]
    replaced = ("digest", "card")  # the card of the whole run, in place of that in the header of the weights
    assert {k: v for k, v in header.items() if k in original and k not in replaced} == {
        k: v for k, v in original.items() if k not in replaced
    }
    whole = out.read_bytes()
    assert call(words, monkeypatch) == 2 and call([*words, "--force"], monkeypatch) == 0
    assert out.read_bytes() == whole
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(5):
        Image.fromarray(np.full((9, 8), 50 * number, np.uint8)).save(photos / f"{number}.png")
    (photos / "2.png").write_bytes(b"no image")
    capsys.readouterr()
    results = []
    for model in (out, run.folder):
        assert call(["predict", str(model), str(photos), "--probabilities"], monkeypatch) == 3
        output = capsys.readouterr()
        assert output.err.count("dpvision: ") == 1 and "a file cannot be read" in output.err
        results.append(output.out)
    assert results[0] == results[1]
    header_line, *lines = [line.split(",") for line in results[0].splitlines()]
    assert header_line[:4] == ["file", "class", "probability", "problem"] and header_line[4] == "probability of 0"
    assert [line[0] for line in lines] == [f"{n}.png" for n in range(5)] and len(header_line) == 14
    assert lines[2][1:3] == ["", ""] and "is neither a PNG" in lines[2][3]
    for line in lines[:2] + lines[3:]:
        assert sum(map(float, line[4:])) == pytest.approx(1, abs=1e-3) and line[2] == max(line[4:])


def test_what_has_no_place_in_a_graph_is_named() -> None:
    class Eigen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.eigvalsh(x[:, 0] + x[:, 0].mT)

    with pytest.raises(ConfigError, match=r"mine: cannot be exported to ONNX.*linalg.*--to safetensors"):
        to_onnx(Eigen(), (1, 4, 4), TASK, name="mine")
