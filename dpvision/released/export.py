"""A released network as one file for other people: weights or a graph, with its classes, its input and its card.

    safetensors   the weights by name, sealed; `dpvision predict FILE IMAGES` needs nothing else
    onnx          the whole network, input preparation included, for any ONNX runtime (onnx_graph.py)

Both carry the same entries: what the weights say of themselves (model, shape, classes, event, delta, private), and

    card     the privacy card, as in card.json
    input    what images the network takes, and how they are prepared
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.released.model import Model, load_model
from dpvision.storage import safetensors


def export(weights: Path, card: Mapping[str, Any], out: Path, *, to: str, force: bool = False) -> float | None:
    """Write the file; of ONNX, return how far its answers are from the network's, which is checked before.

    `weights` is a run's weights.safetensors, and `card` the card about them.
    """
    require_free(out, to=to, force=force)
    network, header = load_model(weights), _header(weights, card)
    if to == "safetensors":
        data, apart = safetensors.dump(network.model.state_dict(), header), None
    else:
        from dpvision.released import onnx_graph

        graph = onnx_graph.graph_of(network.model, network.shape, name=header["model"])
        apart = onnx_graph.require_same(graph, network.model, network.shape, name=header["model"])
        data = onnx_graph.with_entries(graph, {**header, "format": "dpvision-onnx-1"})
    files.write(out, data, mode=0o644)
    return apart


def require_free(out: Path, *, to: str, force: bool) -> None:
    """A file that is there is kept, and one has the name that its readers know it by."""
    if out.suffix != f".{to}":
        raise ConfigError(f"{out}: a file of --to {to} ends in .{to}. Fix: another --out.")
    if out.is_dir() or (out.exists() and not force):
        raise ConfigError(f"{out}: is there already. Fix: another --out, or --force to write over it.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}. Fix: make it first, or another --out.")


def _header(weights: Path, card: Mapping[str, Any]) -> dict[str, str]:
    """What the weights say of themselves, with the card that is about these very weights."""
    said = safetensors.read(weights).header
    if card.get("weights_digest") != said["digest"]:
        raise DataError(f"{weights}: the card is about other weights. Fix: `dpvision report` on the run, then again.")
    kept = {key: value for key, value in said.items() if key not in ("digest", "signature")}
    return {**kept, "card": json.dumps(dict(card), allow_nan=False), "input": json.dumps(_input(load_model(weights)))}


def _input(network: Model) -> dict[str, Any]:
    channels, height, width = network.shape
    return {
        "shape": ["N", height, width, channels],
        "type": "uint8",
        "channels": "gray" if channels == 1 else "RGB",
        "resize": "bilinear, antialiased (Pillow), to height x width",
        "scale": "(x / 255 - 0.5) / 0.5; inside an ONNX graph",
    }
