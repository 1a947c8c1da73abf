"""Use a released model: load it from its weights file, measure its accuracy, classify images."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpvision.data import Dataset, Split, identify, image_batches, limits, load, load_rows, row_batches
from dpvision.data.facts import FEWEST, MOST
from dpvision.errors import ConfigError, DataError
from dpvision.models import build
from dpvision.models.head_on_features import HeadOnFeatures
from dpvision.models.inputs import Inputs, to_tensor
from dpvision.models.inputs import predict as predict_all
from dpvision.models.tasks import Task
from dpvision.released import evaluation
from dpvision.released.groups import measure_groups
from dpvision.released.measures import measure
from dpvision.settings.training import HEAD_ON_FEATURES, TASKS
from dpvision.storage import safetensors
from dpvision.storage.run_folder import Run


@dataclass(frozen=True)
class Model:
    """A released model, the shape of its images (channels, height, width), and its classes.

    A head on features takes rows of features instead of images; their shape is (1, 1, d).
    """

    model: nn.Module
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    kind: str = "classes"
    """What it answers: one of the classes, several labels, or a grade (models/tasks.py)."""
    reading: dict[str, Any] = field(default_factory=lambda: {"rule": 1})
    """The rule, window, columns and test share that the model was trained with, as arguments of `data.load`."""

    @property
    def on_features(self) -> bool:
        """Whether the model takes rows of features instead of images."""
        return isinstance(self.model, HeadOnFeatures)

    @property
    def task(self) -> Task:
        """What the model answers about an image."""
        return Task(self.kind, len(self.classes))

    def load(self, source: str, *, size: Any, group: str | None = None) -> Dataset:
        """Load labelled images, or rows of features, that fit the model and have its classes."""
        asked: dict[str, Any] = {"classes": list(self.classes), "task": self.kind, "group": group}
        if self.on_features:
            return load_rows(source, **asked)
        return load(source, size=size or self.shape[1:], channels=self.shape[0], **asked, **self.reading)

    @property
    def reading_files(self) -> dict[str, Any]:
        """How single image files are read, as arguments of `data.image_batches`."""
        return {name: value for name, value in self.reading.items() if name in ("rule", "window")}

    def inputs(self, split: Split) -> Inputs:
        """Return a split as inputs of the model."""
        return Inputs(split, np.asarray(split.images).reshape(len(split), -1) if self.on_features else None)


def load_model(run: Path, *, device: torch.device | str = "cpu") -> Model:
    """Load the model from a run folder or from a weights.safetensors file."""
    path = run / "weights.safetensors" if run.is_dir() else run
    if not path.exists():
        fix = Run(run).advise() if (run / "operator").is_dir() else "give the folder of a run"
        raise DataError(f"{path}: there is no released model here. Fix: {fix}.")
    if path.suffix == ".onnx":
        raise DataError(
            f"{path}: is an ONNX graph, which other programs run. Fix: give the folder of the run, or a file of "
            "`dpvision export --to safetensors`."
        )
    header = safetensors.read(path).header
    try:
        if header["format"] != "dpvision-weights-1":
            raise ValueError(f"format {header['format']!r}")
        channels, height, width = (int(x) for x in json.loads(header["shape"]))
        classes = tuple(str(c) for c in json.loads(header["classes"]))
        name = header["model"]
        widest = limits.COLUMNS if name == HEAD_ON_FEATURES else 4096
        kind = header.get("task", "classes")
        if kind not in TASKS:
            raise ValueError(f"task {kind!r}")
        possible = FEWEST[kind] <= len(classes) <= MOST[kind]
        if not (channels in (1, 3) and 0 < height <= 4096 and 0 < width <= widest and possible):
            raise ValueError("an impossible shape or number of classes")
        reading = _reading(header)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise DataError(f"{path}: its header does not describe a model of dpvision ({exc}).") from exc
    with torch.device("meta"):  # shapes only: a forged header must not allocate a large model
        sketch = _build(name, (channels, height, width), Task(kind, len(classes)).outputs)
    tensors, _ = safetensors.load(path, sketch.state_dict())
    model = _build(name, (channels, height, width), Task(kind, len(classes)).outputs)
    model.load_state_dict(tensors)
    return Model(model.eval().to(device), (channels, height, width), classes, kind, reading)


def _reading(header: dict[str, str]) -> dict[str, Any]:
    """How the images of a model are read; a model without an entry is of the time when there was rule 1 only."""
    reading = {"rule": 1, **json.loads(header.get("reading", "{}"))}
    kinds = {
        "rule": int,
        "test_share": int | float | None,
        "window": str | None,
        "columns": str | None,
        "skip_broken": bool,
    }
    if any(name not in kinds or not isinstance(value, kinds[name]) for name, value in reading.items()):
        raise ValueError("reading: unknown entries")
    return reading


def _build(name: str, shape: tuple[int, int, int], outputs: int) -> nn.Module:
    return (
        HeadOnFeatures(shape[2], outputs) if name == HEAD_ON_FEATURES else build(name, shape, classes=outputs, seed=0)
    )


def evaluate(
    run: Path,
    source: str,
    *,
    split: str,
    size: tuple[int, int] | None = None,
    group: str | None = None,
    keep: bool = False,
    examples: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Return the accuracy on one split of a data set that has the classes and the shape of the model.

    With `keep`, the evaluation on the test split of the run's own data is also written to its folder, for the report.
    """
    if keep and (split != "test" or not (run / "operator").is_dir()):
        raise ConfigError(
            f"{run}: --keep is for the test split of a run. Fix: use --split test, and give the folder of the run."
        )
    if group is not None and split != "test":
        raise ConfigError(f"--group is about the test split, not {split}. Fix: leave --split or --group out.")
    network = load_model(run, device=device)
    evaluation.require_examples_possible(network.kind, examples)
    data = network.load(source, size=size, group=group)
    chosen = data.require_split(split, source=source)
    _require_same_shape(source, chosen.images.shape, network)
    labels = np.asarray(chosen.labels)
    predictions = predict_all(network.model, network.inputs(chosen), network.task)
    if keep:
        if identify(data.train)[0] != Run(run).facts().get("fingerprint"):
            raise ConfigError(
                f"{source}: not the data that {run} was trained on, so --keep is refused. Fix: give that data set."
            )
        digest = safetensors.read(Run(run).weights).header["digest"]
        evaluation.write(run, chosen, predictions, network.task, weights=digest, examples=examples)
    figures = measure(predictions, labels, network.task)
    short = evaluation.summary(figures)
    assert short is not None
    of_classes = (
        {}
        if network.kind == "labels"
        else dict(
            zip(
                ("majority_class", "majority_share"),
                (network.classes[evaluation.majority(figures)[0]], evaluation.majority(figures)[1]),
                strict=True,
            )
        )
    )
    return {
        **short,
        **of_classes,
        "split": split,
        "task": network.kind,
        "always": evaluation.describe_trivial(figures, network.classes),
        "warning": evaluation.warning(figures, network.classes),
        "class_names": list(network.classes),
        "classes": evaluation.by_class(figures, network.classes),
        **(
            {}
            if chosen.groups is None
            else {"groups": measure_groups(predictions, labels, network.task, chosen.groups, chosen.persons)}
        ),
    }


def predict(
    run: Path,
    images: Path,
    write: Callable[[str], object],
    *,
    probabilities: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
    at_a_time: int = 256,
    device: torch.device | str = "cpu",
) -> int:
    """Write a CSV line (file, class, probability, problem) for each image, and return the number of problems.

    The line of a file that cannot be read has the reason and no class. With `probabilities`, a column for each class
    follows. If the model answers several labels, the line is (file, problem) and 1 or 0 for each label. At most
    `at_a_time` images are in memory.
    """
    network = load_model(run, device=device)
    channels, *sides = network.shape
    several, shown = network.kind == "labels", network.classes if probabilities else ()
    head = ("file", "problem", *network.classes) if several else ("file", "class", "probability", "problem")
    write(_line(*head, *(f"probability of {name}" for name in shown)))
    done = failed = 0
    if network.on_features:
        batches = row_batches(images, width=network.shape[2], at_a_time=at_a_time)
    else:
        batches = image_batches(
            images, size=(sides[0], sides[1]), channels=channels, at_a_time=at_a_time, **network.reading_files
        )
    for batch in batches:
        inputs = torch.from_numpy(batch.images) if network.on_features else to_tensor(batch.images)
        with torch.no_grad():
            inputs = inputs.to(device)
            outputs = network.model(inputs) if len(inputs) else torch.empty(0, network.task.outputs)
            chances = network.task.chances(outputs)
            answers, shares_of = iter(network.task.answers(chances).cpu()), iter(chances.cpu())
        for name, problem in zip(batch.names, batch.problems, strict=True):
            if problem is not None:
                failed += 1
                empty = [""] * (len(head) - 2 + len(shown))
                write(_line(name, problem, *empty) if several else _line(name, "", "", problem, *empty[2:]))
                continue
            shares, answer = next(shares_of).tolist(), next(answers).tolist()
            rest = [f"{share:.4f}" for share in shares] if probabilities else ()
            if several:
                write(_line(name, "", *map(str, answer), *rest))
            else:
                write(_line(name, network.classes[answer], f"{shares[answer]:.4f}", "", *rest))
        done += len(batch.names)
        progress(done, batch.total)
    return failed


def _line(*cells: str) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([_inert(cell) for cell in cells])
    return out.getvalue()


def _inert(text: str) -> str:
    """Return a cell that a spreadsheet does not read as a formula, nor a terminal as a control sequence."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "'" + shown if shown[:1] in ("=", "+", "-", "@") else shown


def _require_same_shape(source: str, shape: tuple[int, ...], network: Model) -> None:
    height, width, channels = shape[1:]
    if (channels, height, width) != network.shape:
        raise DataError(
            f"{source}: its images are {height}x{width}x{channels}, and the model takes "
            f"{network.shape[1]}x{network.shape[2]}x{network.shape[0]}. Fix: use images of "
            f"that shape, or for image files --size {network.shape[1]}x{network.shape[2]}."
        )
