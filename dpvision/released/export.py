"""Export a released network as one file: its weights or an ONNX graph, with its classes, its input and its card.

    safetensors   the weights by name, with a digest; `dpvision predict FILE IMAGES` needs nothing else
    onnx          the whole network for any ONNX runtime, including the preprocessing of its input

Both have the metadata of the weights (model, shape, classes, event, delta, private) and two more entries:

    card     the privacy card, as in card.json
    input    the images that the network takes, and their preprocessing

The graph takes bytes and is compared with the network before the file is written:

    images          in    uint8 (N, height, width, channels), 0 to 255; any N
    scores          out   float32 (N, outputs), before the softmax; of labels and grades, before the sigmoids
    probabilities   out   float32 (N, classes): of each class or grade, which sum to 1, or of each label

Convert images that are floats in [0, 1] to bytes by numpy.round(255 * x). One network of every family in
dpvision.models except dinov2 was exported and compared. A network with an operator that torch's exporter does not
support is refused, with the name of the operator. Encoders do not split a batch into pieces of fixed size, as training
does to get the same bits in any batch, so the last digits of the outputs may depend on the batch.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.tasks import Task
from dpvision.released.model import Model, load_model
from dpvision.storage import safetensors
from dpvision.views.eight_bit import to_floats

INSTALL = 'Fix: pip install -c constraints.txt -e ".[onnx]"; or use --to safetensors, which needs no other package.'
ALTERNATIVE = "Fix: use --to safetensors."
# Tolerance for probabilities, and for scores relative to the largest score if that is above 1.
MAX_DIFFERENCE = 1e-4
BATCHES = (1, 5)
OUTPUTS = ("scores", "probabilities")
Shape = tuple[int, int, int]


def export(weights: Path, card: Mapping[str, Any], out: Path, *, to: str, force: bool = False) -> float | None:
    """Write the file. For ONNX, return the largest difference of the graph's outputs from the network's.

    `weights` is a run's weights.safetensors, and `card` the card about them.
    """
    require_free(out, to=to, force=force)
    network, header = load_model(weights), _header(weights, card)
    if network.on_features:
        raise ConfigError(f"{weights}: is a head on features, and this file is all of it. Fix: copy the file.")
    if to == "safetensors":
        data, difference = safetensors.dump(network.model.state_dict(), header), None
    else:
        graph = to_onnx(network.model, network.shape, network.task, name=header["model"])
        difference = require_same_outputs(graph, network.model, network.shape, network.task, name=header["model"])
        data = _add_metadata(graph, {**header, "format": "dpvision-onnx-1"})
    files.write(out, data, mode=0o644)
    return difference


def require_free(out: Path, *, to: str, force: bool) -> None:
    """Refuse a name with the wrong ending, and a file that exists unless `force` is given."""
    if out.suffix != f".{to}":
        raise ConfigError(f"{out}: with --to {to}, the name must end in .{to}. Fix: choose another --out.")
    if out.is_dir() or (out.exists() and not force):
        raise ConfigError(f"{out}: already exists. Fix: choose another --out, or use --force to overwrite it.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}. Fix: create it, or choose another --out.")


def _header(weights: Path, card: Mapping[str, Any]) -> dict[str, str]:
    """Return the metadata of the weights, with the card, which must be about these weights."""
    header = safetensors.read(weights).header
    if card.get("weights_digest") != header["digest"]:
        raise DataError(f"{weights}: the card is for different weights. Fix: run `dpvision report` on the run first.")
    entries = {key: value for key, value in header.items() if key not in ("digest", "signature")}
    return {
        **entries,
        "card": json.dumps(dict(card), allow_nan=False),
        "input": json.dumps(_input(load_model(weights))),
    }


def _input(network: Model) -> dict[str, Any]:
    channels, height, width = network.shape
    return {
        "shape": ["N", height, width, channels],
        "type": "uint8",
        "channels": "gray" if channels == 1 else "RGB",
        "resize": "bilinear, antialiased (Pillow), to height x width",
        "scale": "(x / 255 - 0.5) / 0.5; inside an ONNX graph",
    }


class Classifier(nn.Module):
    """The network from bytes to scores and probabilities, with the scaling of inputs.to_tensor."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.model(to_floats(images.permute(0, 3, 1, 2)))
        return scores, self.task.chances(scores)


def to_onnx(model: nn.Module, shape: Shape, task: Task, *, name: str) -> bytes:
    """Return the network as an ONNX graph, or raise a ConfigError that names the unsupported operators."""
    _require_packages()
    images = torch.from_numpy(_random_images(shape, 2))
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                Classifier(model.eval(), task),
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("N", min=1)},),
            )
        assert program is not None
        return _without_traces(program.model_proto)
    except Exception as exc:  # the exporter wraps whatever a network raises, in many kinds
        raise ConfigError(f"{name}: cannot be exported to ONNX, because of {_reason(exc)}. {ALTERNATIVE}") from exc


def require_same_outputs(graph: bytes, model: nn.Module, shape: Shape, task: Task, *, name: str) -> float:
    """Return the largest difference between the outputs of onnxruntime and of the network on random images.

    Refuse a graph that differs by more than MAX_DIFFERENCE or does not run.
    """
    _require_packages()
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in BATCHES:
        images = _random_images(shape, count)
        with torch.no_grad():
            expected = Classifier(model.eval(), task)(torch.from_numpy(images))
        try:
            outputs = session.run(list(OUTPUTS), {"images": images})
        except Exception as exc:  # onnxruntime's exceptions have no common base class
            raise ConfigError(
                f"{name}: its ONNX graph does not run with {count} images ({exc}). {ALTERNATIVE}"
            ) from exc
        for ours, theirs in zip(expected, outputs, strict=True):
            difference = np.abs(ours.numpy() - theirs).max() / max(1.0, float(ours.abs().max()))
            worst = max(worst, float(difference)) if np.isfinite(difference) else np.inf
    if not worst <= MAX_DIFFERENCE:
        raise ConfigError(
            f"{name}: the outputs of its ONNX graph differ from those of the network by {worst:.2g}, more than the "
            f"tolerance of {MAX_DIFFERENCE:g}, so no file was written. {ALTERNATIVE}"
        )
    return worst


def _add_metadata(graph: bytes, entries: Mapping[str, str]) -> bytes:
    """Return the graph with these entries as metadata_props, which runtimes expose by name."""
    import onnx

    model = onnx.load_from_string(graph)
    for key, value in sorted(entries.items()):
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _without_traces(model: Any) -> bytes:
    """Remove the exporter's notes about the source of each operation, which contain paths of this machine."""
    del model.metadata_props[:]
    for graph in (model.graph, *model.functions):
        del graph.metadata_props[:]
        for entry in (*graph.node, *graph.value_info, *getattr(graph, "input", ()), *getattr(graph, "output", ())):
            if not isinstance(entry, str):
                del entry.metadata_props[:]
                entry.doc_string = ""
    for value in model.graph.initializer:
        del value.metadata_props[:]
    return bytes(model.SerializeToString(deterministic=True))


def _random_images(shape: Shape, count: int) -> np.ndarray:
    channels, height, width = shape
    return np.random.default_rng(count).integers(0, 256, (count, height, width, channels), dtype=np.uint8)


def _reason(exc: BaseException) -> str:
    """Return the names of unsupported operators, or else the first line of the exporter's error."""
    texts = []
    while exc is not None:
        texts.append(str(exc))
        exc = exc.__cause__ or exc.__context__  # type: ignore[assignment]
    unknown = sorted(
        set(re.findall(r"No (?:ONNX function|decompositions registered)[^']*?'?(aten[\w.:]+)", "\n".join(texts)))
    )
    if unknown:
        return f"the operator {', '.join(unknown)}"
    return next((line.strip() for text in reversed(texts) for line in text.splitlines() if line.strip()), "an error")


def _require_packages() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as exc:
        raise ConfigError(f"--to onnx needs onnx, onnxscript and onnxruntime ({exc}). {INSTALL}") from exc


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes about packages that are not used here, such as torchvision."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
