"""What stands before the private trainings of benchmarks.public: parts, a diffusion model, its samples, warm-ups.

Each stage is computed once and cached in a folder, so a long benchmark continues where it was stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared_data import unpacked
from dpvision.data import identify, load
from dpvision.public.batches import Source
from dpvision.public.diffusion.fit import FitSettings as Fit
from dpvision.public.diffusion.fit import fit
from dpvision.public.diffusion.model import ModelSpec
from dpvision.public.diffusion.sample import SampleSettings, sample
from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages, accuracy, train_classifier
from dpvision.public.split import split
from dpvision.public.warmup import WarmUpSettings as Warm
from dpvision.public.warmup import warm_up

PUBLIC, SAMPLES = 2000, 10_000
EDM_STEPS = {"fashion_mnist": 8000, "cifar10": 6000}  # what fits into an hour of one core
JUDGE = ClassifierSettings(model="wrn-10-1", steps=1200, batch=128)  # of private images, which no sample has seen
JUDGED = 5000
NETWORK = "wrn-10-1"
COMMON = ("crop", "flip")


class Parts:
    """The stages of one data set, in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder / name
        self.whole = unpacked(name, folder)
        self.private, self.public = (str(self._folder / "parts" / f"{p}.npz") for p in ("private", "public"))
        if not (self._folder / "parts" / "split.json").exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            split(load(self.whole), self._folder / "parts", public=PUBLIC, seed=0, digest=lambda s: identify(s)[1])

    @property
    def synthetic(self) -> str:
        """Samples of an EDM that saw the public part alone."""
        path = self._folder / "synthetic.npz"
        if not path.exists():
            results = load(self.public)
            height, width, channels = results.train.images.shape[1:]
            kind = ModelSpec((channels, height, width), results.classes, method="edm", size="small")
            settings = Fit(flip=self.name == "cifar10")  # clothes are never seen from the other side
            arrays, model = (results.train.images, results.train.labels), self._folder / "edm"
            self._timed("edm", lambda: fit(kind, settings, *arrays, model, steps=EDM_STEPS[self.name]), of=model)
            self._timed("samples", lambda: sample(model, SampleSettings(count=SAMPLES), path), of=Path(f"{path}.parts"))
        return str(path)

    @property
    def minutes(self) -> dict[str, float]:
        """Of processor time, by stage that ran without a stop."""
        path = self._folder / "minutes.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def recognised(self) -> tuple[float, float]:
        """Shares that a classifier names right, of test images and of samples: it was taught private images."""
        real, made = load(self.private), load(self.synthetic).train
        assert real.test is not None
        judge = train_classifier(_pictures(real.train, len(real.train)), JUDGE, classes=len(real.classes))
        test, samples = (accuracy(judge, _pictures(s, JUDGED)) for s in (real.test, made))
        return test, samples

    def warmed(self, kind: str, *, seed: int) -> Path:
        """Weights of one of WARM_UPS."""
        folder = self._folder / f"{kind.replace(' ', '-')}-{seed}"
        if not (folder / "card.json").exists():
            synthesised, settings = WARM_UPS[kind]
            sources = [self.public] + ([self.synthetic] if synthesised else [])
            results = [(load(s), s) for s in sources]
            images = [Source(s, d.train.images, d.train.labels, identify(d.train)[1]) for d, s in results]
            asked = Warm(**{"model": NETWORK, "optimiser": "sgd", "augment": (), **settings, "seed": seed})
            name = folder.name
            self._timed(name, lambda: warm_up(asked, images, folder, classes=results[0][0].classes), of=folder)
        return folder / "weights.safetensors"

    def _timed(self, stage: str, do: Callable[[], Any], *, of: Path) -> None:
        goes_on, began = of.exists(), time.process_time()
        do()
        if goes_on:
            return
        minutes = {**self.minutes, stage: (time.process_time() - began) / 60}
        (self._folder / "minutes.json").write_text(json.dumps(minutes, indent=1) + "\n")


# By name: whether synthetic images are used in addition to the public ones, and what differs from `Parts.warmed`. All
# take as many steps: 50 passes over the public images (Table 12: 100); 600 are too few for augmented images. Batches
# are balanced: an EDM of an hour draws CIFAR-10 poorly, and 10,000 such images would be five of six in each batch.
STEPS = 1000
WARM_UPS: dict[str, tuple[bool, dict[str, Any]]] = {
    "warm": (False, {"steps": STEPS}),
    "warmsyn": (True, {"steps": STEPS, "balance": True}),
    "warmsyn augmented": (True, {"steps": STEPS, "balance": True, "augment": COMMON}),
    "warmsyn augmented sam": (True, {"steps": STEPS, "balance": True, "augment": COMMON, "optimiser": "sam"}),
    "short": (False, {"steps": 200}),
    "short sam": (False, {"steps": 200, "optimiser": "sam"}),
}


def scratch(otherwise: Path) -> Path:
    """$DPVISION_SCRATCH keeps the stages for the next time."""
    return Path(os.environ.get("DPVISION_SCRATCH") or otherwise)


def _pictures(records: Any, most: int) -> LabelledImages:
    results = LabelledImages("images", np.asarray(records.images), np.asarray(records.labels, dtype=np.int64))
    return results.some(most, seed=0)
