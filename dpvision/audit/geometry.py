"""The geometry of the loss at a model's weights, measured on images of a data set.

Results from public images may be released if the weights may. Results from private images have no noise, so they are
written to the run's operator folder and nowhere else. Images on an account of the ledger are private and are refused
as public images, whatever the caller states.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from dpvision import __version__
from dpvision.audit.gradient_plane import Concentration, Group, measure_concentration
from dpvision.audit.hessian import PHYSICAL, Curvature, curvature, trainable
from dpvision.audit.membership import require_classes
from dpvision.audit.pictures import WARNING, plot_plane, plot_spectrum
from dpvision.core import files
from dpvision.data import Dataset, load
from dpvision.errors import ConfigError, DataError, PrivacyError
from dpvision.models import Featured, build, digest_file, load_public, split_head, train_only
from dpvision.models.featured import head_name
from dpvision.models.inputs import to_tensor
from dpvision.private.accounts.accounts import require_not_private
from dpvision.private.engine import ClippedSum, Loss
from dpvision.private.training.network import each_loss
from dpvision.released.model import load_model
from dpvision.storage import run_folder, safetensors

FORMAT = "dpvision-geometry-1"


@dataclass(frozen=True)
class Subject:
    """A network at its weights, the images and targets of its loss, and facts about both."""

    network: nn.Module
    inputs: Tensor
    targets: Tensor
    classes: tuple[str, ...]
    private: bool
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The data set and its split."""
        return f"{self.facts['data']} ({self.facts['split']})"

    def images_of(self, class_name: str) -> Group:
        """Return the images of one class."""
        if class_name not in self.classes:
            known = ", ".join(self.classes[:20])
            raise ConfigError(f"--pair: there is no class {class_name!r}. Fix: choose from {known}.")
        chosen = self.targets == self.classes.index(class_name)
        if int(chosen.sum()) < 2:
            raise DataError(
                f"{self.facts['data']}: fewer than 2 of the chosen images are of class {class_name!r}, too few for a "
                "plane. Fix: use a larger --most, or --pair with other classes."
            )
        return self.inputs[chosen], self.targets[chosen]


def load_subject(
    weights: Path,
    source: str,
    *,
    private: bool,
    model: str | None = None,
    split: str = "train",
    most: int = 512,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Subject:
    """Load the network with its weights, and at most `most` images of a split, chosen by `seed`."""
    if most < 1:
        raise ConfigError(f"--most {most}: at least one image is needed.")
    whole, data, part = _load_network(weights, source, model)
    records = data.require_split(split, source=source)
    if not private:
        splits = [data.train] if records is data.train else [data.train, records]
        require_not_private(source, splits, fix="use --private with the folder of a run, or use public images")
    train_only(whole, part)
    rows = np.random.default_rng(seed).permutation(len(records))[:most]
    rows.sort()  # packed data are read sequentially
    inputs, network = to_tensor(np.asarray(records.images[rows])).to(device), whole.to(device)
    parts = split_head(whole) if part == "head" else whole if isinstance(whole, Featured) else None
    if parts is not None:  # images pass through the frozen part only once
        inputs, network = parts.features(inputs), parts.rest
    facts = {
        "format": FORMAT,
        "dpvision": __version__,
        "data": data.name,
        "split": split,
        "images": len(rows),
        "seed": seed,
        "weights": digest_file(_weights_file(weights)),
        "part": part,
    }
    labels = torch.from_numpy(np.asarray(records.labels[rows], dtype=np.int64)).to(device)
    return Subject(network.eval(), inputs, labels, data.classes, private, facts)


def _weights_file(weights: Path) -> Path:
    return weights / "weights.safetensors" if weights.is_dir() else weights


def _load_network(weights: Path, source: str, model: str | None) -> tuple[nn.Module, Dataset, str]:
    """Load the network, named by a run, by a file's header or by `model`; return it, its data and its trained part."""
    file = _weights_file(weights)
    header = safetensors.read_header(file) if file.is_file() else {}
    if weights.is_dir() or not file.is_file() or header.get("format") == "dpvision-weights-1":
        if model is not None and model != header.get("model", model):
            raise ConfigError(f"{weights}: its model is {header['model']}, not {model}. Fix: omit --model.")
        loaded = load_model(weights)
        require_classes(loaded.kind)
        data = loaded.load(source, size=None)
        part = run_folder.Run(weights).config().part if weights.is_dir() else "all"
        return loaded.model, data, "head" if part == "centred-head" else part
    if model is None:
        raise ConfigError(f"{weights}: its header names no network. Fix: add --model NAME, or give a run folder.")
    data = load(source)
    height, width, channels = data.train.images.shape[1:]
    network = build(model, (channels, height, width), classes=len(data.classes), seed=0)
    load_public(network, file)
    _require_head(file, network)
    return network, data, "all"


def _require_head(file: Path, network: nn.Module) -> None:
    """Refuse public weights without a head, because the loss of a random head is meaningless."""
    head = head_name(network) + "."
    with safe_open(file, framework="numpy") as tensors:
        names = set(tensors.keys())
        shapes = {n: tuple(tensors.get_slice(n).get_shape()) for n in names if n.startswith(head)}
    expected = {n: tuple(t.shape) for n, t in network.state_dict().items() if n.startswith(head)}
    if shapes != expected:
        raise DataError(
            f"{file}: it has no head for the classes of this data set, so there is no loss to measure. Fix: use "
            "weights that were trained on these classes."
        )


@dataclass(frozen=True)
class Output:
    """A folder for results. Private results are readable by their owner only."""

    folder: Path
    private: bool

    def write(self, name: str, data: bytes | str) -> Path:
        """Write one file; create the folder if necessary."""
        self.folder.mkdir(parents=not self.private, exist_ok=True, mode=0o700 if self.private else 0o755)
        files.write(self.folder / name, data, mode=0o600 if self.private else 0o644)
        return self.folder / name


def choose_output(weights: Path, out: Path, *, private: bool) -> Output:
    """Return the folder of the results: `out`, or for private images a folder `out` in the run's operator folder."""
    folder = out
    if private:
        run = run_folder.Run(Path(os.path.abspath(weights)))
        if not run.operator.is_dir() or not (run.folder / "config.toml").exists():
            raise ConfigError(
                f"{weights}: not the folder of a run, and results from private data are written only to a run's "
                "operator folder. Fix: give the run folder instead of its weights."
            )
        if len(out.parts) != 1 or out.name in ("", ".."):
            raise ConfigError(
                f"--out {out}: results from private data stay in {run.operator}. Fix: give --out a name, not a path."
            )
        folder = run.operator / out
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder}: already exists. Fix: choose another --out.")
    return Output(folder, private)


@dataclass(frozen=True)
class LossSummary:
    """The loss on one data set at one set of weights."""

    loss: float
    accuracy: float
    gradient: float  # norm of the mean gradient
    clipped: float  # norm of the mean of per-image clipped gradients, without noise


@dataclass(frozen=True)
class Geometry:
    """All measurements; `groups` names the two groups of images whose mean gradients span the plane."""

    curvature: Curvature
    summary: LossSummary
    groups: tuple[str, str]
    plane: Concentration
    private: bool


def measure(
    subject: Subject,
    *,
    top: int = 5,
    probes: int = 32,
    pair: Sequence[str] = (),
    other: Subject | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Geometry:
    """Measure spectrum and trace on all images, and gradients in a plane.

    The plane is that of a pair of classes, by default the two with most images; or that of two data sets, `subject` and
    `other`, with all of their images or those of one class.
    """
    if top < 1 or probes < 2:
        raise ConfigError(f"--top {top} --probes {probes}: at least 1 eigenvalue and 2 probes are needed.")
    names, groups = _two_groups(subject, pair, other)
    network, inputs, targets = subject.network, subject.inputs, subject.targets
    plane = measure_concentration(network, each_loss, groups, progress=lambda *count: progress("gradients", *count))
    summary = summarise_loss(network, each_loss, inputs, targets)
    bend = curvature(network, each_loss, inputs, targets, top=top, probes=probes, progress=progress)
    return Geometry(bend, summary, names, plane, subject.private or (other is not None and other.private))


def summarise_loss(model: nn.Module, loss: Loss, images: Tensor, targets: Tensor, *, clip: float = 1.0) -> LossSummary:
    """Compute loss, accuracy and gradient norms at the model's weights; targets are classes."""
    parameters, n = trainable(model), len(images)
    total, right = 0.0, 0
    mean = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=images.device)
    for start in range(0, n, PHYSICAL):
        chunk = slice(start, start + PHYSICAL)
        with torch.enable_grad():
            outputs = model(images[chunk])
            summed = loss(outputs, targets[chunk]).sum()
            gradients = torch.autograd.grad(summed, parameters, materialize_grads=True)
        mean += torch.cat([g.flatten() for g in gradients]).double() / n
        total += float(summed.detach())
        right += int((outputs.argmax(1) == targets[chunk]).sum())
    clipped = ClippedSum(model, loss, clip=clip)(images, targets, [1] * n) / n
    return LossSummary(total / n, right / n, float(mean.norm()), float(clipped.norm()))


def _two_groups(subject: Subject, pair: Sequence[str], other: Subject | None) -> tuple[tuple[str, str], list[Group]]:
    """Return the names and images of the two groups that span the plane."""
    if other is not None:
        if len(pair) > 1:
            raise ConfigError(f"--pair {','.join(pair)}: with two data sets, give one class or none.")
        both = (subject, other)
        return (subject.name, other.name), [s.images_of(pair[0]) if pair else (s.inputs, s.targets) for s in both]
    if not pair:
        counts = np.bincount(subject.targets.cpu().numpy(), minlength=len(subject.classes))
        pair = [subject.classes[i] for i in np.argsort(-counts, kind="stable")[:2]]
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ConfigError(f"--pair {','.join(pair)}: two classes are needed, such as --pair dog,bird.")
    return (pair[0], pair[1]), [subject.images_of(name) for name in pair]


def save(output: Output, subject: Subject, geometry: Geometry) -> list[Path]:
    """Write plots and geometry.json; the latter is written last, so that it exists only if all files do."""
    private = output.private
    if geometry.private and not private:
        raise PrivacyError(f"{output.folder}: this folder may be released, and the results are from private images.")
    return [
        output.write("spectrum.svg", plot_spectrum(geometry.curvature, private=private)),
        output.write("gradients.svg", plot_plane(geometry.plane, geometry.groups, private=private)),
        output.write("geometry.json", json.dumps(_as_json(subject, geometry), indent=1) + "\n"),
    ]


def _as_json(subject: Subject, geometry: Geometry) -> dict[str, Any]:
    eigenvalues, trace, plane = geometry.curvature.eigenvalues, geometry.curvature.trace, geometry.plane
    return {
        **({"warning": WARNING} if geometry.private else {}),
        **subject.facts,
        "private": geometry.private,
        **asdict(geometry.summary),
        "parameters": geometry.curvature.weights,
        "eigenvalues": list(eigenvalues.values),
        "eigenvalue_errors": list(eigenvalues.errors),
        **{name: getattr(eigenvalues, name) for name in ("converged", "products", "lowest", "lowest_error")},
        "ratio": geometry.curvature.ratio,
        "trace": trace.value,
        "trace_error": trace.error,
        "probes": trace.probes,
        "plane": {
            "between": plane.between,
            "means": plane.means,
            "groups": [
                {
                    "of": name,
                    "within": cloud.within,
                    "mean": list(cloud.mean),
                    "points": cloud.points.tolist(),
                    "norms": cloud.norms.tolist(),
                }
                for name, cloud in zip(geometry.groups, (plane.first, plane.second), strict=True)
            ],
        },
    }
