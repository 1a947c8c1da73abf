"""A network as an ONNX graph that prepares its input itself, checked against the network before anybody sees it.

    images          in    uint8 (N, height, width, channels), 0 to 255; any N
    scores          out   float32 (N, classes), before the softmax
    probabilities   out   float32 (N, classes)

Images that were floats in [0, 1] become bytes by numpy.round(255 * x). One network of every family in dpvision.models
was exported and compared, but for dinov2. A network whose operators torch's exporter does not know is refused by the
operator's name; none of ours is known to be one.

Features come without the pieces of a fixed size that give training the same bits in any batch, so that the last digits
may differ from batch to batch.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpvision.errors import ConfigError
from dpvision.views.eight_bit import to_floats

NEED = 'Fix: pip install -c constraints.txt -e ".[onnx]"; or --to safetensors, which needs nothing.'
OTHERWISE = "Fix: --to safetensors."
# Of scores, in units of the largest one, or of 1 if all are smaller; and of probabilities.
MOST_APART = 1e-4
BATCHES = (1, 5)
NAMES = ("scores", "probabilities")
Shape = tuple[int, int, int]


class Whole(nn.Module):
    """From bytes to scores and probabilities; the scaling is that of inputs.to_tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.model(to_floats(images.permute(0, 3, 1, 2)))
        return scores, scores.softmax(1)


def graph_of(model: nn.Module, shape: Shape, *, name: str) -> bytes:
    """The graph, or a ConfigError that names the operators that have no place in one."""
    _require_packages()
    images = torch.from_numpy(_random_images(shape, 2))
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                Whole(model.eval()),
                (images,),
                dynamo=True,
                verbose=False,
                input_names=["images"],
                output_names=list(NAMES),
                dynamic_shapes=({0: torch.export.Dim("N", min=1)},),
            )
        assert program is not None
        return _without_traces(program.model_proto)
    except Exception as exc:  # the exporter wraps whatever a network raises, in many kinds
        raise ConfigError(f"{name}: cannot become an ONNX graph, because of {_reason(exc)}. {OTHERWISE}") from exc


def require_same(graph: bytes, model: nn.Module, shape: Shape, *, name: str) -> float:
    """How far the graph's answers to random images, by onnxruntime, are from the network's: at most MOST_APART."""
    _require_packages()
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in BATCHES:
        images = _random_images(shape, count)
        with torch.no_grad():
            wanted = Whole(model.eval())(torch.from_numpy(images))
        try:
            found = session.run(list(NAMES), {"images": images})
        except Exception as exc:  # those of onnxruntime have no common root of their own
            raise ConfigError(f"{name}: its ONNX graph does not run with {count} images ({exc}). {OTHERWISE}") from exc
        for ours, its in zip(wanted, found, strict=True):
            apart = np.abs(ours.numpy() - its).max() / max(1.0, float(ours.abs().max()))
            worst = max(worst, float(apart)) if np.isfinite(apart) else np.inf
    if not worst <= MOST_APART:
        raise ConfigError(
            f"{name}: answers of its ONNX graph are {worst:.2g} from those of the network, and {MOST_APART:g} is "
            f"allowed, so no file was written. {OTHERWISE}"
        )
    return worst


def with_entries(graph: bytes, entries: Mapping[str, str]) -> bytes:
    """The graph with texts beside it: metadata_props, which runtimes show by name."""
    import onnx

    model = onnx.load_from_string(graph)
    for key, value in sorted(entries.items()):
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _without_traces(model: Any) -> bytes:
    """The exporter writes down where in the source each operation came from: paths of this machine."""
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
    """The operators that the exporter does not know, or the first line of what it says."""
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
        raise ConfigError(f"--to onnx needs onnx, onnxscript and onnxruntime ({exc}). {NEED}") from exc


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of things that nobody asked for, such as torchvision."""
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
