"""What priors from random images are worth: patches without training, and DP-RandP's three phases at a small scale.

The full form takes about 3 hours: Phase I, 25 trainings on patches of CIFAR-10, 15 of DermaMNIST and 9 of a small
network. Phase I is cached in $DPVISION_SCRATCH, or computed again; trainings are stored in trainings.jsonl.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.priors_plot import draw
from benchmarks.results import Figure, device_options, main
from benchmarks.shared_data import at_hand, unpacked
from benchmarks.trainings import Case, Done, figures, mean, table, trained
from dpvision.core import accountant
from dpvision.core.events import PoissonGaussian
from dpvision.models import build, load_public
from dpvision.private.training import train
from dpvision.public.contrastive import PretrainSettings, pretrain
from dpvision.settings.recipes import recipe

PICTURE = Path(__file__).with_name("priors.png")
# Linear probing (Fig. 6, Table 4 and 15) and all phases (Table 1), on CIFAR-10; DermaMNIST (Table 2): Tang et al. 2023.
PROBED = {0.1: 0.571, 0.5: 0.651, 1.0: 0.678, 2.0: 0.699, 3.0: 0.711}
ALL_PHASES = {1.0: 0.723, 2.0: 0.773, 3.0: 0.800}
DERMA, DERMA_COLD = {1.0: 0.712, 4.0: 0.737, 7.42: 0.750}, {1.0: 0.683, 4.0: 0.711, 7.42: 0.726}
# Table 15: sigma of 100 steps with every image, and the epsilon that it is for.
TABLE_15 = {339: 0.1, 171: 0.2, 72: 0.5, 38: 1, 21: 2, 14: 3, 11: 4, 8: 6, 7: 8}

PHASE_I = PretrainSettings(
    process="stylegan-oriented", model="wrn-10-1", finer=2, images=15_000, batch=256, steps=1000, hidden=512
)
SMALL = {"model": "wrn-10-1", "batch": 512, "k_base": 1, "augment": (), "steps": 60, "ema": 0.9, "lr": 2.0}


def patches(epsilon: float, *, data: str = "cifar10", seeds: int = 5, least: float | None = None) -> Case:
    return Case(data, "patches", epsilon, seeds=seeds, least=least, settings=(("release", "last"),))


def phases(weights: str) -> dict[str, Case]:
    """From nothing, from Phase I straight to all weights, and with the head first."""
    prior = {"pretrained": weights}
    kinds = {
        "cold": {"probe_steps": 0},
        "Phase III only": {"probe_steps": 0, **prior},
        "all phases": {"probe_steps": 20, "probe_lr": 8.0, **prior},
    }
    return {
        name: Case("cifar10", "dp-randp", 3.0, settings=tuple({**SMALL, **kind}.items()), name=f"wrn-10-1, {name}")
        for name, kind in kinds.items()
    }


class Priors:
    def measure(self, quick: bool) -> list[Figure]:
        measured = table_15()
        if not at_hand():
            print("left out: all that needs the shared data, which is not at hand", file=sys.stderr)
            return measured
        return measured + (self._quick() if quick else self._full())

    def _quick(self) -> list[Figure]:
        """One training on fewer patches: from nothing in less than 5 minutes."""
        settings = (("release", "last"), ("model", "patches-256"))
        self.measured = trained([Case("cifar10", "patches", 1.0, seeds=1, least=0.63, settings=settings)], keep=False)
        return figures(self.measured)

    def _full(self) -> list[Figure]:
        with tempfile.TemporaryDirectory(dir=os.environ.get("DPVISION_SCRATCH")) as place:
            self.stages = stages(Path(place))
        scratch = Path(os.environ.get("DPVISION_SCRATCH") or tempfile.mkdtemp())
        folder = scratch / "phase-1"
        if not (folder / "card.json").exists():
            pretrain(PHASE_I, folder)
        self.card = json.loads((folder / "card.json").read_text())
        weights = str(folder / "weights.safetensors")
        before, after = (linear_probe(scratch, each) for each in (None, weights))
        self.probe = before, after

        self.curve = {e: patches(e, least=0.63 if e == 1 else None) for e in PROBED}
        self.derma = {e: patches(e, data="dermamnist") for e in DERMA}
        self.phases = phases(weights)
        self.measured = trained([*self.curve.values(), *self.derma.values(), *self.phases.values()], keep=True)
        accuracies = {e: [d.accuracy for d in self.measured[case]] for e, case in self.curve.items()}
        draw(accuracies, PROBED, ALL_PHASES, PICTURE)
        cold, third, everything = (mean(self.measured[case]) for case in self.phases.values())
        return [
            *figures(self.measured),
            Figure("CIFAR-10, epsilon 1, minutes from nothing", sum(self.stages.values()) / 60, high=60),
            Figure("Phase I, minutes by the clock on one core, which other work may slow", self.card["seconds"] / 60),
            Figure("linear probe of wrn-10-1 after Phase I, points over random weights", 100 * (after - before), low=8),
            Figure("Phase III only, points over cold", 100 * (third - cold), low=0),
            Figure("all phases, points over Phase III only", 100 * (everything - third), low=0),
        ]

    def table(self) -> str:
        stage = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in self.stages.items())
        before, after = self.probe
        beside = ["| CIFAR-10, epsilon | ours | linear probing, paper | all phases, paper |", "|---|---|---|---|"]
        beside += [_row(e, self.measured[c], PROBED.get(e), ALL_PHASES.get(e)) for e, c in self.curve.items()]
        beside += ["", "| DermaMNIST, epsilon | ours | DP-RandP, paper | DP-SGD, paper |", "|---|---|---|---|"]
        beside += [_row(e, self.measured[c], DERMA[e], DERMA_COLD[e]) for e, c in self.derma.items()]
        lines = [
            f"Minutes of one training on patches at epsilon 1 from nothing: {stage}. Phase I of wrn-10-1: "
            f"{self.card['steps']:,} steps, {self.card['images_seen']:,} images of {self.card['process']}, "
            f"{self.card['seconds'] / 60:.0f} min by the clock; linear probe {before:.1%}, then {after:.1%}.",
            "",
            *beside,
            "",
            table(self.measured),
            "",
            f"![accuracy against epsilon]({PICTURE.name})",
        ]
        return "\n".join(lines)


def _row(epsilon: float, done: list[Done], *papers: float | None) -> str:
    each = [d.accuracy for d in done]
    ours = f"{mean(done):.1%} (worst {min(each):.1%}, spread {statistics.stdev(each):.2%})"
    return f"| {epsilon:g} | {ours} | " + " | ".join("" if p is None else f"{p:.1%}" for p in papers) + " |"


def table_15() -> list[Figure]:
    """Upper bounds for the published noise."""
    events = {s: PoissonGaussian(1.0, float(s), 100) for s in TABLE_15}
    return [
        Figure(f"epsilon of sigma {s}, 100 full steps", accountant.epsilon(event, 1e-5), high=TABLE_15[s])
        for s, event in events.items()
    ]


def stages(folder: Path) -> dict[str, float]:
    """Seconds of each stage of one training at epsilon 1, with nothing kept from before."""
    kept = os.environ.get("DPVISION_HOME")
    os.environ["DPVISION_HOME"] = str(folder / "home")
    try:
        data, measured = unpacked("cifar10", folder), {}
        began = time.monotonic()
        prepared = train.prepare(data, patches(1.0).config(0))
        measured["reading and dictionary"] = time.monotonic() - began
        began = time.monotonic()
        prepared.compute_features(lambda *_: None)
        measured["features of 60,000 images"] = time.monotonic() - began
        began = time.monotonic()
        train.proceed(train.begin(prepared, folder / "run"), prepared)
        measured["training"] = time.monotonic() - began
        return measured
    finally:
        os.environ.pop("DPVISION_HOME")
        if kept is not None:
            os.environ["DPVISION_HOME"] = kept


def linear_probe(folder: Path, weights: str | None) -> float:
    """Test accuracy of logistic regression, not private, on what the head sees of 20,000 CIFAR-10 images."""
    arrays = np.load(unpacked("cifar10", folder))
    model = build(PHASE_I.model, (3, 32, 32), classes=10, seed=0)
    if weights:
        load_public(model, weights)
    assert isinstance(model, torch.nn.Sequential)
    rows, labels = {}, {}
    for split, count in (("train", 20_000), ("test", 10_000)):
        images = torch.from_numpy(arrays[f"{split}_images"][:count]).permute(0, 3, 1, 2) / 127.5 - 1
        with torch.no_grad():
            rows[split] = torch.cat([model[:-1](part).flatten(1) for part in images.split(250)])
        labels[split] = torch.from_numpy(arrays[f"{split}_labels"][:count]).long().flatten()
    centre, spread = rows["train"].mean(0), rows["train"].std(0) + 1e-6
    rows = {split: (x - centre) / spread for split, x in rows.items()}
    head = torch.nn.Linear(rows["train"].shape[1], 10)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        measured = torch.nn.functional.cross_entropy(head(rows["train"]), labels["train"])
        measured = measured + 1e-4 * head.weight.square().sum()
        measured.backward()
        return measured

    optimiser.step(loss)
    return float((head(rows["test"]).argmax(1) == labels["test"]).double().mean())


if __name__ == "__main__":
    assert recipe("patches")
    priors = Priors()
    main(
        "priors",
        priors.measure,
        about="Test accuracy at delta 1e-5, epsilon by PLD, with no image that a camera took but the private ones; all "
        "on 2 CPU cores. Published: Tang et al. 2023 (arXiv 2306.06076), whose Phase I takes 16 hours on an A100.",
        below=priors.table,
        more=device_options(),
    )
