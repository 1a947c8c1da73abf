"""Every mechanism of the package, at a small size, as a function from records to everything that it makes public.

images as floats     DP-SGD and its variants from `PrivateSum` down: a pixel may be any number, or NaN
images as bytes      whole trainings, tunings and releases, with files, phases and everything released (whole_runs.py)
rows                 heads, baselines, released moments and mixtures, from features
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.core.events import Budget
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.core.sampling import MixtureSampler, Poisson, PoissonSampler
from dpvision.data import Split
from dpvision.models.inputs import Inputs
from dpvision.models.tasks import Task
from dpvision.private.engine import STYLES, ClippedSum
from dpvision.private.statistics import fit_head
from dpvision.private.statistics.baselines import synthesise
from dpvision.private.statistics.mixtures import Mixtures, RandomWeights
from dpvision.private.statistics.moments import MomentsMechanism
from dpvision.private.training.network import each_loss
from dpvision.private.training.private_sum import PrivateSum, count_units, fetcher
from dpvision.private.training.state import trainable
from dpvision.public import assist
from dpvision.settings.release import hierarchical, round_robin
from dpvision.views import Views
from tests.charges import charged
from tests.private.statistics.baselines.cases import SETTINGS as BASELINES
from tests.private.statistics.cases import SETTINGS as HEADS
from tests.system.replay.neighbours import KINDS, OF_BYTES, Records, make_records
from tests.system.replay.whole_runs import CLASSES, OF_PERSONS, RELEASED, SIDE, TRAINED, folder

SMALL, WIDTH, N = 6, 6, 8  # side of an image, columns of a row, declared number of units
KEY = Key.for_tests("replay")


@dataclass(frozen=True)
class Mechanism:
    """A mechanism and its records; `anywhere`: draws do not depend on places, so the additional unit may be at any."""

    run: Callable[[Records], object]
    shape: tuple[int, ...] = (WIDTH,)
    dtype: Any = np.float64
    kinds: tuple[str, ...] = KINDS
    persons: bool = False  # units are persons, who have 1 to 5 images
    sizes: tuple[int, ...] = (0, 1, 2, 3, 7)
    anywhere: bool = False
    most_sizes: int | None = None  # sizes for each kind of neighbour in the long form, for slow mechanisms
    every_class: bool = False  # a class without images is refused before anything is charged

    def records(self, size: int, seed: int) -> Records:
        counts = [(3 * place + seed) % 5 + 1 if self.persons else 1 for place in range(size)]
        records = make_records(sum(counts), self.shape, classes=CLASSES, seed=seed, dtype=self.dtype)
        if self.every_class:
            records = replace(records, labels=np.arange(len(records)) % CLASSES)
        return replace(records, persons=np.repeat(np.arange(size), counts)) if self.persons else records


# Training


@cache
def public_images() -> tuple[Tensor, Tensor]:
    images = np.random.default_rng(5).integers(0, 256, (12, 1, SMALL, SMALL), dtype=np.uint8)
    return torch.from_numpy(images), torch.arange(12) % CLASSES


def network() -> nn.Module:
    """A network of convolution, normalisation with weights, and linear layers with biases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(4 * (SMALL // 2) ** 2, 6),
            nn.LayerNorm(6),
            nn.ReLU(),
            nn.Linear(6, CLASSES),
        )


@dataclass(frozen=True)
class Training:
    """Steps of `PrivateSum` on a small network; everything but the records is public."""

    views: dict[str, Any] = field(default_factory=dict)
    physical: int | None = None
    style: str = "flat"
    unit: str = "image"
    assisted: str = "none"
    batch: int = N
    steps: int = 3
    clip: float = 0.5
    model: Callable[[], nn.Module] = network
    sigma: float = 2.0
    task: str = "classes"

    def __call__(self, records: Records) -> Tensor:
        model = self.model()
        # The network has CLASSES outputs, which are the thresholds of one grade more.
        loss = Task(self.task, CLASSES + (self.task == "grades")).losses
        views = Views(classes=CLASSES, **self._views()) if self.views else None
        count = views.count if views else 1
        one_view = self.unit == "image" and count == 1
        engine = ClippedSum(model, loss, clip=STYLES[self.style](self.clip), physical=self.physical, one_view=one_view)
        sampler = PoissonSampler(self.batch, N, self.steps)
        event = sampler.event(self.sigma)
        private = PrivateSum(Gate(charged(event), KEY, sampler, name="b"), engine, views=count)
        labels = several(records.labels) if self.task == "labels" else records.labels
        split = Split(records.x, labels, records.persons)
        fetch = fetcher(split, self.unit, Inputs(split), views)
        for step in range(self.steps):
            weights = parameters_to_vector(trainable(model)).detach()
            helped = self._assisted(model, weights, step, count)
            noisy = private.step(step, count_units(split, self.unit), fetch, helped.public)
            vector_to_parameters(weights - 0.05 * helped.finish(noisy).float(), trainable(model))
        return parameters_to_vector(trainable(model)).detach()

    def _views(self) -> dict[str, Any]:
        return {**self.views, "public": public_images() if self.views.get("diff") else None}

    def _assisted(self, model: nn.Module, weights: Tensor, step: int, count: int) -> assist.Assisted:
        images, labels = public_images()
        images = images.float() / 127.5 - 1

        def gradients(batches: int) -> Tensor:
            starts = [(step + i) % 4 for i in range(batches)]
            return torch.stack(
                [assist.mean_gradient(model, each_loss, images[s : s + 8], labels[s : s + 8]) for s in starts]
            )

        match self.assisted:
            case "weights":
                return assist.weight_multiplicity(gradients(count), weights, radius=0.1)
            case "dope":
                return assist.dope(gradients(1)[0])
            case "mirror":
                return assist.mirror(gradients(1)[0], share=assist.share_of_private(step, horizon=4.0))
            case "adadps":
                return assist.adadps(assist.second_moment(gradients(3)), floor=1e-3)
        return assist.ALONE


def linear() -> nn.Module:
    """A network large enough for its weight gradients to be stored as factors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(SMALL**2, 12), nn.Tanh(), nn.Linear(12, CLASSES))


def one_layer() -> nn.Module:
    """A linear layer, whose gradients are as large as its images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SMALL**2, CLASSES))


def several(classes: NDArray[np.int64]) -> NDArray[np.int8]:
    """Labels for each class: all unknown, all on, some of each, and all off for the last class."""
    patterns = np.array([[-1] * CLASSES, [1] * CLASSES, [1, 0, -1, 0, 1][:CLASSES], [0] * CLASSES], np.int8)
    return patterns[classes]


AUGMENT = ("crop", "flip")
TRAININGS: dict[str, Training] = {
    "dp-sgd": Training(),
    "dp-sgd, one at a time": Training(physical=1),
    "dp-sgd, three at a time, half drawn": Training(physical=3, batch=4, steps=5),
    "dp-sgd, few drawn": Training(batch=1, steps=8),
    "dp-sgd, automatic": Training(style="automatic"),
    "dp-sgd, per layer": Training(style="per-layer", physical=3),
    "dp-sgd, one layer, three at a time": Training(model=one_layer, physical=3),
    "dp-sgd, linear": Training(model=linear, clip=2.0),
    "4 views": Training(views={"augment": AUGMENT, "base": 4}),
    "16 views, few at a time": Training(views={"augment": AUGMENT, "base": 16}, physical=5, steps=2),
    "self-mix, K 4": Training(views={"augment": AUGMENT, "base": 2, "self_mix": 2}),
    "self-mix, K 16, cutmix": Training(views={"augment": AUGMENT, "base": 8, "self_mix": 8, "mix": "cutmix"}, steps=2),
    "diff-mix, K 4": Training(views={"augment": ("flip",), "base": 2, "self_mix": 1, "diff": 1}, physical=3),
    "diff-mix, K 16": Training(views={"augment": AUGMENT, "base": 4, "self_mix": 8, "diff": 4}, steps=2),
    "dope": Training(assisted="dope", physical=3),
    "mirror": Training(assisted="mirror"),
    "adadps": Training(assisted="adadps"),
    "weight multiplicity, K 4": Training(assisted="weights", views={"augment": AUGMENT, "base": 4}),
    "persons": Training(unit="person", physical=4),
    "persons, 4 views": Training(unit="person", views={"augment": AUGMENT, "base": 4}),
    "dp-sgd, labels": Training(task="labels", physical=3),
    "dp-sgd, labels, linear": Training(task="labels", model=linear, clip=2.0),
    "labels, 4 views": Training(task="labels", views={"augment": AUGMENT, "base": 2, "self_mix": 2}),
    "labels of persons": Training(task="labels", unit="person", physical=4),
    "dp-sgd, grades": Training(task="grades", physical=3),
    "grades, mixed labels": Training(task="grades", views={"augment": ("flip",), "base": 2}),
}

# Rows


@dataclass(frozen=True)
class HeadFit:
    settings: dict[str, Any]

    def __call__(self, records: Records) -> object:
        with folder() as path:
            ledger, budget = Ledger(path, "ab" * 16), Budget(3.0, 1e-5)
            public = {"persons": records.persons, "classes": CLASSES, "n": N}
            labels = several(records.labels) if self.settings.get("task") == "labels" else records.labels
            head = fit_head(records.x, labels, budget, **public, ledger=ledger, test_key="k", **self.settings)
        return {"weight": head.weight, "bias": head.bias, "centre": head.centre, "event": head.event, "n": head.n}


@dataclass(frozen=True)
class Synthesis:
    settings: dict[str, Any]

    def __call__(self, records: Records) -> object:
        with folder() as path:
            ledger, budget = Ledger(path, "ab" * 16), Budget(3.0, 1e-5)
            synthetic = synthesise(
                records.x,
                records.labels,
                budget,
                persons=records.persons,
                classes=CLASSES,
                n=N,
                rows=5,
                ledger=ledger,
                test_key="k",
                **self.settings,
            )
        return {"x": synthetic.x, "labels": synthetic.labels, "event": synthetic.event, "n": synthetic.n}


def _rows(records: Records, preparation: Preparation) -> Rows:
    return Rows.of(records.x, records.labels, preparation, classes=CLASSES, persons=records.persons)


@dataclass(frozen=True)
class ReleasedMoments:
    class_counts: tuple[int, ...] | None = None

    def __call__(self, records: Records) -> object:
        rows = _rows(records, Preparation(unit=True))
        moments = MomentsMechanism(rows, share=0.4, counts_share=0.1, n=N, class_counts=self.class_counts)
        event = moments.event(2.0)
        return moments.noisy_moments(charged(event, id=moments.name(KEY, event)), KEY)


@dataclass(frozen=True)
class ReleasedMixtures:
    sampler: MixtureSampler
    weights: RandomWeights | None = None
    balance: float = 1.0

    def __call__(self, records: Records) -> object:
        rows = _rows(records, Preparation())
        mixtures = Mixtures(rows, self.sampler, degree=2.0, balance=self.balance, weights=self.weights)
        event = mixtures.event(1.5)
        return list(mixtures.blocks(charged(event, id=mixtures.name(KEY, event)), KEY))


MIXTURES: dict[str, ReleasedMixtures] = {
    "neuromix": ReleasedMixtures(Poisson(2.0, N, 40)),
    "neuromix, few rows of many": ReleasedMixtures(Poisson(0.5, N, 60), balance=3.0),
    "neuromix, random weights": ReleasedMixtures(Poisson(2.0, N, 40), RandomWeights(0.3, 0.5)),
    "neuromix-hs": ReleasedMixtures(hierarchical(40, degree=2.0, n=N, classes=CLASSES, drawn=1.5, seed=1)),
    "class schedule": ReleasedMixtures(round_robin(40, rates=[0.3] * CLASSES)),
    "dpmix": ReleasedMixtures(Poisson(N, N, 30)),
}

ROWS_OF_PERSONS: dict[str, Any] = {
    **{f"head: {n}": HeadFit(HEADS[n]) for n in ("gd, centred", "newton", "moments", "lda, private covariance")},
    **{
        f"baseline: {n}": Synthesis(BASELINES[n])
        for n in ("merf", "hermite", "p3gm, some components", "p3gm, a network")
    },
    "moments": ReleasedMoments(),
}
MIXTURES_OF_PERSONS = ("neuromix", "neuromix-hs", "class schedule", "dpmix")
IMAGES: dict[str, Any] = {"shape": (SMALL, SMALL, 1), "dtype": np.float32, "most_sizes": 2}
BYTES: dict[str, Any] = {"shape": (SIDE, SIDE, 1), "dtype": np.uint8, "kinds": OF_BYTES[:-1], "sizes": (6,)}
# The same image of two persons is refused before anything is charged, as is a broken image.
NO_COPIES = tuple(kind for kind in BYTES["kinds"] if kind not in ("duplicate", "wrong label"))
RUNS: dict[str, Mechanism] = {
    **{n: Mechanism(r, **BYTES, every_class=True) for n, r in (TRAINED | RELEASED).items()},
    **{n: Mechanism(r, **{**BYTES, "kinds": NO_COPIES}, every_class=True, persons=True) for n, r in OF_PERSONS.items()},
}
MECHANISMS: dict[str, Mechanism] = {
    **{n: Mechanism(t, **IMAGES, persons=t.unit == "person") for n, t in TRAININGS.items()},
    **RUNS,
    **{f"head: {n}": Mechanism(HeadFit(s), anywhere=True) for n, s in HEADS.items()},
    **{
        f"head: {n}, {task}": Mechanism(HeadFit({**HEADS[n], "task": task}), anywhere=True)
        for n in ("gd, centred", "newton")
        for task in ("labels", "grades")
    },
    "head of persons, labels": Mechanism(HeadFit({**HEADS["gd"], "task": "labels"}), anywhere=True, persons=True),
    **{f"baseline: {n}": Mechanism(Synthesis(s), anywhere=True) for n, s in BASELINES.items()},
    "moments": Mechanism(ReleasedMoments(), anywhere=True),
    "moments, public counts": Mechanism(ReleasedMoments((2,) * CLASSES), anywhere=True),
    **{n: Mechanism(m) for n, m in MIXTURES.items()},
    **{f"rows of persons, {n}": Mechanism(m, anywhere=True, persons=True) for n, m in ROWS_OF_PERSONS.items()},
    **{f"rows of persons, {n}": Mechanism(MIXTURES[n], persons=True) for n in MIXTURES_OF_PERSONS},
}
