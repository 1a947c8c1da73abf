"""The geometry of the loss around a model's weights, measured on a data set and written where it may be.

What is measured on public images may be released wherever the weights may. What is measured on private ones is neither
clipped nor noised: it goes to the run's operator folder and nowhere else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpvision.audit import dynamics, geometry_pictures
from dpvision.audit.gradient_plane import Cloud, Concentration, Group, concentration
from dpvision.audit.hessian import Curvature, curvature
from dpvision.audit.subject import Subject, of_class
from dpvision.core import files
from dpvision.errors import ConfigError, PrivacyError
from dpvision.private.training.prepare import each_loss
from dpvision.storage import run_folder

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Place:
    """A folder for what is measured; of private data only the owner can read it."""

    folder: Path
    private: bool

    def write(self, name: str, data: bytes | str) -> Path:
        self.folder.mkdir(parents=not self.private, exist_ok=True, mode=0o700 if self.private else 0o755)
        files.write(self.folder / name, data, mode=0o600 if self.private else 0o644)
        return self.folder / name


@dataclass(frozen=True)
class Geometry:
    """All that was measured; `groups` are the two whose mean gradients span the plane."""

    curvature: Curvature
    point: dynamics.Point
    groups: tuple[str, str]
    plane: Concentration
    private: bool


def place(weights: Path, out: Path, *, private: bool) -> Place:
    """Where results go: `out`, or a folder of that name in the operator folder of the run."""
    folder = out
    if private:
        run = run_folder.Run(Path(os.path.abspath(weights)))
        if not run.operator.is_dir() or not (run.folder / "config.toml").exists():
            raise ConfigError(
                f"{weights}: not the folder of a run, and what is measured on private data is written into a run's "
                "operator folder only. Fix: give the run folder instead of its weights."
            )
        if len(out.parts) != 1 or out.name in ("", ".."):
            raise ConfigError(
                f"--out {out}: what is measured on private data stays in {run.operator}. Fix: --out with a name alone."
            )
        folder = run.operator / out
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder}: exists already. Fix: another --out.")
    return Place(folder, private)


def measure(
    looked: Subject,
    *,
    top: int = 5,
    probes: int = 32,
    pair: Sequence[str] = (),
    beside: Subject | None = None,
    progress: Progress = lambda *_: None,
) -> Geometry:
    """Spectrum and trace on all the images, and a plane.

    The plane is that of a pair of classes, by default the two with most images; or that of the data set and another
    one beside it, of all their images or of those of one class.
    """
    if top < 1 or probes < 2:
        raise ConfigError(f"--top {top} --probes {probes}: at least 1 eigenvalue and 2 probes are needed.")
    names, groups = _two_groups(looked, pair, beside)
    network, inputs, targets = looked.network, looked.inputs, looked.targets
    flat = concentration(network, each_loss, groups, progress=lambda *at: progress("gradients", *at))
    point = dynamics.at(network, each_loss, inputs, targets)
    bent = curvature(network, each_loss, inputs, targets, top=top, probes=probes, progress=progress)
    return Geometry(bent, point, names, flat, looked.private or (beside is not None and beside.private))


def save(where: Place, looked: Subject, found: Geometry) -> list[Path]:
    """geometry.json last: where it is, all is."""
    if found.private and not where.private:
        raise PrivacyError(f"{where.folder}: is for what may be released, and this was measured on private images.")
    private = where.private
    return [
        where.write("spectrum.svg", geometry_pictures.spectrum(found.curvature, private=private)),
        where.write("gradients.svg", geometry_pictures.plane(found.plane, found.groups, private=private)),
        where.write("geometry.json", json.dumps(as_json(looked, found), indent=1) + "\n"),
    ]


def as_json(looked: Subject, found: Geometry) -> dict[str, Any]:
    """Everything that was measured, by name."""
    values, trace, flat = found.curvature.eigenvalues, found.curvature.trace, found.plane
    warning = {"warning": geometry_pictures.WARNING} if found.private else {}
    return {
        **warning,
        **looked.facts,
        "private": found.private,
        **asdict(found.point),
        "parameters": found.curvature.weights,
        "eigenvalues": list(values.values),
        "eigenvalue_errors": list(values.errors),
        "converged": values.converged,
        "products": values.products,
        "lowest": values.lowest,
        "lowest_error": values.lowest_error,
        "ratio": found.curvature.ratio,
        "trace": trace.value,
        "trace_error": trace.error,
        "probes": trace.probes,
        "plane": {
            "between": flat.between,
            "means": flat.means,
            "groups": [
                {"of": name, **_cloud(cloud)}
                for name, cloud in zip(found.groups, (flat.first, flat.second), strict=True)
            ],
        },
    }


def _cloud(cloud: Cloud) -> dict[str, Any]:
    return {
        "within": cloud.within,
        "mean": list(cloud.mean),
        "points": cloud.points.tolist(),
        "norms": cloud.norms.tolist(),
    }


def _two_groups(looked: Subject, pair: Sequence[str], beside: Subject | None) -> tuple[tuple[str, str], list[Group]]:
    """Names and images of what spans the plane."""
    if beside is not None:
        if len(pair) > 1:
            raise ConfigError(f"--pair {','.join(pair)}: beside another data set, one class or none.")
        both = (looked, beside)
        return (looked.name, beside.name), [of_class(s, pair[0]) if pair else (s.inputs, s.targets) for s in both]
    if not pair:
        counts = np.bincount(looked.targets.numpy(), minlength=len(looked.classes))
        pair = [looked.classes[i] for i in np.argsort(-counts, kind="stable")[:2]]
    if len(pair) != 2 or pair[0] == pair[1]:
        raise ConfigError(f"--pair {','.join(pair)}: two classes are needed, such as --pair dog,bird.")
    return (pair[0], pair[1]), [of_class(looked, name) for name in pair]
