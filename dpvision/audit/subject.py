"""What the geometry of a loss is measured on: a network at its weights, and some images of a data set.

Images that are on an account of the ledger are private, whatever the caller says: as public ones they are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from dpvision import __version__
from dpvision.audit.gradient_plane import Group
from dpvision.data import Dataset, load
from dpvision.errors import ConfigError, DataError
from dpvision.models import Featured, build, digest_file, load_public, split_head, train_only
from dpvision.models.featured import head_name
from dpvision.models.inputs import to_tensor
from dpvision.private.accounts.taken_as_public import require_not_private
from dpvision.released.model import load_model
from dpvision.storage import run_folder, safetensors

FORMAT = "dpvision-geometry-1"


@dataclass(frozen=True)
class Subject:
    """What is differentiated, what goes into it, and what both are."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...]
    private: bool
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.facts['data']} ({self.facts['split']})"


def subject(
    weights: Path,
    source: str,
    *,
    private: bool,
    model: str | None = None,
    split: str = "train",
    most: int = 512,
    seed: int = 0,
) -> Subject:
    """The network with its weights and `most` images of a split, drawn by `seed`."""
    if most < 1:
        raise ConfigError(f"--most {most}: at least one image is needed.")
    whole, data, part = _network(weights, source, model)
    found = {"train": data.train, "val": data.val, "test": data.test}[split]
    if found is None:
        raise DataError(f"{source}: it has no {split} split. Fix: --split train, or data with one.")
    if not private:
        splits = [data.train] if found is data.train else [data.train, found]
        require_not_private(source, splits, fix="--private with the folder of a run, or public images")
    train_only(whole, part)
    rows = np.random.default_rng(seed).permutation(len(found))[:most]
    rows.sort()  # read in order, as a packed store likes it
    inputs, network = to_tensor(np.asarray(found.images[rows])), whole
    parts = split_head(whole) if part == "head" else whole if isinstance(whole, Featured) else None
    if parts is not None:  # the frozen part is passed once
        inputs, network = parts.features(inputs), parts.rest
    file = weights / "weights.safetensors" if weights.is_dir() else weights
    facts = {
        "format": FORMAT,
        "dpvision": __version__,
        "data": data.name,
        "split": split,
        "images": len(rows),
        "seed": seed,
        "weights": digest_file(file),
        "part": part,
    }
    labels = torch.from_numpy(np.asarray(found.labels[rows], dtype=np.int64))
    return Subject(network.eval(), inputs, labels, data.classes, private, facts)


def of_class(looked: Subject, name: str) -> Group:
    """The images of one class."""
    if name not in looked.classes:
        raise ConfigError(f"--pair: there is no class {name!r}. There are: {', '.join(looked.classes[:20])}.")
    chosen = looked.targets == looked.classes.index(name)
    if int(chosen.sum()) < 2:
        raise DataError(
            f"{looked.facts['data']}: fewer than 2 of the images looked at are of class {name!r}, too few for a plane. "
            "Fix: a larger --most, or --pair with other classes."
        )
    return looked.inputs[chosen], looked.targets[chosen]


def _network(weights: Path, source: str, model: str | None) -> tuple[nn.Module, Dataset, str]:
    """The model of a run, of a file that says what it is, or of one for which `model` says it; its data; its part."""
    file = weights / "weights.safetensors" if weights.is_dir() else weights
    said = safetensors.read_header(file) if file.is_file() else {}
    if weights.is_dir() or not file.is_file() or said.get("format") == "dpvision-weights-1":
        if model is not None and model != said.get("model", model):
            raise ConfigError(f"{weights}: its model is {said['model']}, not {model}. Fix: leave out --model.")
        made = load_model(weights)
        data = load(source, classes=list(made.classes), size=made.shape[1:], channels=made.shape[0])
        part = run_folder.Run(weights).config().part if weights.is_dir() else "all"
        return made.model, data, "head" if part == "centred-head" else part
    if model is None:
        raise ConfigError(f"{weights}: does not say which network it is of. Fix: --model NAME, or the folder of a run.")
    data = load(source)
    height, width, channels = data.train.images.shape[1:]
    network = build(model, (channels, height, width), classes=len(data.classes), seed=0)
    load_public(network, file)
    _require_head(file, network)
    return network, data, "all"


def _require_head(file: Path, network: nn.Module) -> None:
    """Public weights may lack the head; a loss through one that was drawn at random would tell nothing."""
    head = head_name(network) + "."
    with safe_open(file, framework="numpy") as tensors:
        names = set(tensors.keys())
        found = {n: tuple(tensors.get_slice(n).get_shape()) for n in names if n.startswith(head)}
    wanted = {n: tuple(t.shape) for n, t in network.state_dict().items() if n.startswith(head)}
    if found != wanted:
        raise DataError(
            f"{file}: it has no head for the classes of this data, so there is no loss to look at. Fix: weights that "
            "were trained for them."
        )
