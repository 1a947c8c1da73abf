"""What a release of mixtures keeps to itself: the theorem's degree simulated, membership, inversion, labels, features.

Features are those of the paper: MNIST's scattering in 27 normalised groups, rows of length at most 1. Raw scattering is
cached in $DPVISION_SCRATCH, or computed again. Pictures of MNIST go to --picture, or there; those of scikit-learn's
digits, which are public, to docs/inversion.png. All keys here are for tests: what is attacked is public data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measures.collapse import collapse
from benchmarks.measures.distance import distances_to_others
from benchmarks.measures.labels import histogram, label_noise, mixed_labels, signal_to_noise
from benchmarks.measures.simulation import simulate
from benchmarks.results import Figure, main
from benchmarks.shared_data import at_hand, unpacked
from dpvision.audit.inversion import correlations, invert
from dpvision.audit.membership import cross_entropies, membership_auc
from dpvision.core.events import Budget
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import Poisson, Sampler
from dpvision.data import load
from dpvision.models.inputs import to_tensor
from dpvision.models.scattering import Scattering
from dpvision.private.statistics.mixtures import BLOCK, Mixtures
from dpvision.public.sheets import write_labelled_rows
from dpvision.settings.calibrate import sigma_of
from dpvision.settings.release import hierarchical, optimal_degree, optimal_nu

BUDGET = Budget(8.0, 1e-5)
KEY = Key.for_tests("release measures")
MUS = (1 / 9, 1 / 3, 1.0, 3.0)
SHOWN = 8  # images that are attacked
STEPS = 1000  # of an inversion; with 300, images that stand alone are not always readable
DOCS = Path(__file__).resolve().parents[1] / "docs" / "inversion.png"

OPTIONS = argparse.ArgumentParser(add_help=False)
OPTIONS.add_argument("--picture", type=Path, help="where pictures of MNIST go; never into the project")


class Images(NamedTuple):
    """Pixels as the module takes them, in [-1, 1], and their classes."""

    x: Tensor
    labels: np.ndarray


class Measures:
    def measure(self, quick: bool) -> list[Figure]:
        self.folder = Path(os.environ.get("DPVISION_SCRATCH") or tempfile.mkdtemp())
        picture = OPTIONS.parse_known_args()[0].picture or self.folder / "inversion-mnist.png"
        measured = [*theorem(runs=20 if quick else 200), *self._labels()]
        measured += attacked("digits", digits("train"), digits("test"), steps=STEPS, picture=None if quick else DOCS)
        if not at_hand():
            print("left out: all that needs the shared data, which is not at hand", file=sys.stderr)
            return measured
        count = 6_000 if quick else 60_000
        # All test images: the halves of MNIST's differ so much that either alone looks like membership (0.54 and 0.47).
        train, test = mnist("train", self.folder, count), mnist("test", self.folder, 10_000)
        measured += attacked("MNIST", train, test, steps=STEPS, picture=picture)
        rows = {
            s: prepared(features(self.folder, s, each), each.labels) for s, each in (("train", train), ("test", test))
        }
        measured += membership(rows["train"], rows["test"], self._held_out(count) if quick else None)
        pixels = prepared(train.x.flatten(1).numpy() / 2 + 0.5, train.labels)
        return measured + geometry(pixels, rows["train"], pairs=1000 if quick else 5000)

    def _held_out(self, count: int) -> Rows:
        """The training images after the first `count`, as many: not in the release, and of the members' own kind."""
        arrays = mnist("train", self.folder, 2 * count)
        return prepared(features(self.folder, "train", arrays)[count:], arrays.labels[count:])

    def _labels(self) -> list[Figure]:
        """Fig. 2: 10 classes of 5,000, 1,024 in a row; noise for epsilon 1, of each sampler by its own account."""
        n, classes, rows, degree, rng = 50_000, 10, 50_000, 1024.0, np.random.default_rng(0)
        samplers: dict[str, Sampler] = {
            "Poisson": Poisson(degree, n, rows),
            "hierarchical": hierarchical(rows, degree=degree, n=n, classes=classes, drawn=3, seed=0),
        }
        edges, ratio = np.linspace(-0.1, 0.5, 13), {}
        self.shares = [("from", "to", *(f"{s}{a}" for s in samplers for a in ("", ", noisy")))]
        columns = []
        for name, sampler in samplers.items():
            noise = label_noise(sigma_of(Budget(1.0, 1e-5), sampler.event), degree=degree)
            values = mixed_labels(sampler, [n // classes] * classes, degree=degree, rng=rng)
            ratio[name] = signal_to_noise(values, noise)
            columns += [histogram(values, edges), histogram(values + rng.normal(scale=noise, size=values.shape), edges)]
        self.shares += [
            (f"{a:.2f}", f"{b:.2f}", *(f"{c:.1%}" for c in each))
            for a, b, *each in zip(edges[:-1], edges[1:], *columns, strict=True)
        ]
        return [
            Figure("labels, Poisson: spread / noise, epsilon 1", ratio["Poisson"], high=1),
            Figure("labels, hierarchical: spread / noise, epsilon 1, sound account", ratio["hierarchical"], low=2),
        ]

    def table(self) -> str:
        head, *rest = self.shares
        lines = [
            "Values of mixed labels (10 classes, 1,024 records of 3 classes in a row, epsilon 1), share of all:",
            "",
        ]
        lines += [
            "| " + " | ".join(head) + " |",
            "|" + "---|" * len(head),
            *("| " + " | ".join(r) + " |" for r in rest),
        ]
        return "\n".join([*lines, "", "Inversion of digits: `docs/inversion.png`."])


def theorem(*, runs: int) -> list[Figure]:
    """Fig. 11: n = 300, T = 900, grid of powers of sqrt(2)."""
    curves = [simulate(mu, runs=runs) for mu in MUS]
    return [
        Figure(
            f"simulated error, mu {c.mu:.3g}: steps from nu* {optimal_nu(c.mu):.3g} to the least, at {c.best:.3g}",
            c.steps_off,
            high=1,
        )
        for c in curves
    ]


def extractor(shape: tuple[int, int, int]) -> nn.Sequential:
    """The paper's features of grey images, as rows."""
    return nn.Sequential(Scattering(shape), nn.GroupNorm(27, 81, affine=False), nn.Flatten())


def digits(name: str) -> Images:
    """8x8 to 32x32, by interpolation."""
    split = getattr(load("digits"), name)
    return Images(F.interpolate(to_tensor(split.images), size=(32, 32), mode="bilinear"), split.labels)


def mnist(split: str, folder: Path, count: int) -> Images:
    arrays = np.load(unpacked("mnist", folder))
    images, labels = arrays[f"{split}_images"][:count], arrays[f"{split}_labels"][:count]
    return Images(to_tensor(images.reshape(len(images), 28, 28, 1)), labels.astype(np.int64).ravel())


def features(folder: Path, split: str, images: Images) -> np.ndarray:
    scattering, group, flat = extractor((1, 28, 28))
    kept = folder / f"scat_mnist_{split}.npy"
    raw = np.load(kept, mmap_mode="r")[: len(images.x)] if kept.exists() else None
    out = np.empty((len(images.x), 81 * 7 * 7), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, len(out), 1000):
            part = slice(start, start + 1000)
            maps = scattering(images.x[part]) if raw is None else torch.from_numpy(raw[part].copy()).view(-1, 81, 7, 7)
            out[part] = flat(group(maps)).numpy()
    return out


def prepared(x: np.ndarray, labels: np.ndarray) -> Rows:
    return Rows.of(x, labels, Preparation(), classes=10)


class Release:
    """As many rows as records at epsilon 8, with the theorem's degree; the charge is in its own ledger."""

    def __init__(self, rows: Rows) -> None:
        n = len(rows.x)
        self.rows, self.degree = rows, optimal_degree(n, n, budget=BUDGET)
        self.sampler = Poisson(self.degree, n, n)
        self.sigma = sigma_of(BUDGET, self.sampler.event)
        self.mixtures = Mixtures(rows, self.sampler, degree=self.degree)
        self.name = self.mixtures.name(KEY, self.sampler.event(self.sigma))

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger(Path(folder), "ab" * 16)
            ledger.open(BUDGET)
            event = self.sampler.event(self.sigma)
            charge = ledger.spend(event, id=self.name, run="benchmark", private=KEY.private).charges[-1]
            yield from self.mixtures.blocks(charge, KEY)

    def members(self, count: int) -> list[np.ndarray]:
        """Return the records in each of the first rows, by the same draws."""
        stream = KEY.stream("coins", step=0, branch=self.name)
        chosen = self.sampler.choose(self.rows.labels, range(min(BLOCK, self.sampler.rows)), stream)
        return [chosen.members[chosen.starts[r] : chosen.starts[r + 1]] for r in range(count)]


def attacked(name: str, images: Images, outside: Images, *, steps: int, picture: Path | None) -> list[Figure]:
    """Inversion of a record alone, of clean and noisy rows by one image, and of a noisy row with all others known."""
    shape = tuple(images.x.shape[1:])
    module = extractor((shape[0], shape[1], shape[2]))
    with torch.no_grad():
        rows = prepared(torch.cat([module(part) for part in images.x.split(500)]).numpy(), images.labels)
    release = Release(rows)
    noisy = torch.from_numpy(next(release.blocks())[0][:SHOWN])
    members = release.members(SHOWN)
    targets = np.array([each[0] for each in members])
    x = torch.from_numpy(rows.x)
    sums = torch.stack([x[each].sum(0) for each in members])
    cases = {
        "alone, no noise": {"released": x[targets]},
        "mixed, no noise": {"released": sums / release.degree, "degree": release.degree},
        "epsilon 8": {"released": noisy, "degree": release.degree},
        "epsilon 8, others known": {"released": noisy, "degree": release.degree, "known": sums - x[targets]},
    }
    true, lines, measured = images.x[targets], {"original": images.x[targets]}, {}
    for case, of in cases.items():
        lines[case] = invert(module, shape=shape, steps=steps, **of)
        measured[case] = correlations(lines[case], true).diag()
    # Any blot is like some image of very many; so it is asked whether it is more like those that are in the release.
    inside = correlations(lines["epsilon 8"], images.x[: len(outside.x)]).max(1).values
    others = correlations(lines["epsilon 8"], outside.x).max(1).values
    if picture is not None:
        write_labelled_rows(picture, {line: each[:, 0].numpy() / 2 + 0.5 for line, each in lines.items()})
    about = f"inversion, {name}"
    return [
        Figure(f"{about}: degree at epsilon 8", release.degree),
        Figure(f"{about}: noise multiplier at epsilon 8", release.sigma),
        Figure(
            f"{about}: correlation with the image, alone and no noise, mean",
            float(measured["alone, no noise"].mean()),
            low=0.9,
        ),
        Figure(
            f"{about}: correlation, mixed, no noise, one image looked for, mean",
            float(measured["mixed, no noise"].mean()),
        ),
        Figure(
            f"{about}: correlation, epsilon 8, all others known, mean",
            float(measured["epsilon 8, others known"].mean()),
            high=0.2,
        ),
        Figure(
            f"{about}: correlation, epsilon 8, all others known, largest",
            float(measured["epsilon 8, others known"].max()),
            high=0.4,
        ),
        Figure(f"{about}: correlation, epsilon 8, with the nearest image in the release, largest", float(inside.max())),
        Figure(
            f"{about}: the same mean, less that with the nearest of as many images outside of it",
            float((inside - others).mean()),
            high=0.05,
        ),
    ]


def membership(train: Rows, test: Rows, held_out: Rows | None) -> list[Figure]:
    """AUC of losses on training against test images; and of a model that learned 500 by heart: the attack has teeth."""
    parts = list(Release(train).blocks())
    x, y = (np.vstack([part[i] for part in parts]) for i in range(2))
    model = learned(x, np.maximum(y, 0), epochs=30)
    heart = learned(train.x[:500], np.eye(10, dtype=np.float32)[train.labels[:500]], epochs=300)
    losses = [cross_entropies(model(each.x), each.labels) for each in (train, test)]
    by_heart = [cross_entropies(heart(each.x[:500]), each.labels[:500]) for each in (train, test)]
    accuracy = float((model(test.x).argmax(1) == test.labels).mean())
    count = f"{len(train.x):,} records"
    measured = []
    if held_out is not None:
        auc = membership_auc(losses[0], cross_entropies(model(held_out.x), held_out.labels))
        measured = [
            Figure(f"membership, MNIST, epsilon 8, {count}: AUC against held-out training images", auc, high=0.52)
        ]
    return [
        *measured,
        Figure(f"membership, MNIST, epsilon 8, {count}: AUC against test images", membership_auc(*losses), high=0.52),
        Figure(f"membership, MNIST, epsilon 8, {count}: test accuracy of that model", accuracy, low=0.8),
        Figure("membership, MNIST, 500 records learned by heart, no noise: AUC", membership_auc(*by_heart), low=0.55),
    ]


def learned(x: np.ndarray, y: np.ndarray, *, epochs: int) -> Callable[[np.ndarray], np.ndarray]:
    """Softmax regression on soft labels: the generalised Kullback-Leibler divergence, less what no weight moves."""
    rows, labels, scale = torch.from_numpy(x), torch.from_numpy(y), x.shape[1] ** 0.5
    torch.manual_seed(0)
    head = nn.Linear(x.shape[1], y.shape[1])
    nn.init.zeros_(head.weight)
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for part in torch.randperm(len(rows)).split(256):
            loss = -(labels[part] * head(rows[part] * scale).log_softmax(1)).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        slower.step()

    def scores(of: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(head(torch.from_numpy(of) * scale).numpy())

    return scores


def geometry(pixels: Rows, features: Rows, *, pairs: int) -> list[Figure]:
    """Appendix I.5: the paper has 1.53 and 1.16 for the collapse of MNIST; its distances are of other data."""
    collapses = [collapse(each.x, each.labels) for each in (pixels, features)]
    near = [distances_to_others(e.x, e.labels, pairs=pairs, rng=np.random.default_rng(0)) for e in (pixels, features)]
    return [
        Figure("collapse of MNIST, pixels (paper: 1.53)", collapses[0], low=1.3, high=1.8),
        Figure("collapse of MNIST, scattering (paper: 1.16)", collapses[1]),
        Figure("collapse of MNIST, scattering / pixels", collapses[1] / collapses[0], high=1),
        Figure("distance of mixed pairs to other classes, pixels, mean", float(near[0].mean())),
        Figure("distance of mixed pairs to other classes, scattering, mean", float(near[1].mean())),
        Figure("distance of mixed pairs to other classes, pixels, least", float(near[0].min())),
        Figure("distance of mixed pairs to other classes, scattering, least", float(near[1].min())),
    ]


if __name__ == "__main__":
    torch.set_num_threads(2)
    measures = Measures()
    main(
        "release_measures",
        measures.measure,
        about="Attacks on a release of Poisson mixtures at epsilon 8 and delta 1e-5, as many rows as records, at the "
        "degree of NeuroMixGDP's Theorem 3.2, with noise by PLD; that theorem simulated; and measures of labels and "
        "features. Inversion is regularised maximum likelihood through scattering; images are 8 in each line.",
        below=measures.table,
        more=OPTIONS,
    )
