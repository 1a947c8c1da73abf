"""All measures of a set of synthetic images against real ones, each under a name that says what it was seen through.

Privacy: no noise protects a figure. Against public images that is as it should be; against private ones the figures,
and the picture of pairs even more so, are for the operator's eyes. This package cannot read a data set by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpvision import __version__
from dpvision.errors import ConfigError, DataError
from dpvision.public.quality import classifier
from dpvision.public.quality.classifier import Training
from dpvision.public.quality.measures import NEIGHBOURS, frechet_distance, inception_score, precision_recall
from dpvision.public.quality.memorisation import Memorisation, memorisation, pairs
from dpvision.public.quality.networks import Network, network
from dpvision.public.quality.pictures import Pictures, require_alike

Progress = Callable[[str, int, int], None]

FORMAT = "dpvision-quality-1"
LEAST = 100
FOR_YOUR_EYES = (
    "No noise protects these figures. Where the real images are private, figures and picture are for your eyes only."
)


@dataclass(frozen=True, eq=False)
class Quality:
    """What was found, by full names; how it was measured; what to keep in mind; and what a picture is drawn of."""

    figures: dict[str, float]
    about: dict[str, Any]
    notes: list[str]
    synthetic: Pictures
    real: Pictures
    copies: Memorisation  # seen through the network

    def json(self) -> dict[str, Any]:
        return {"format": FORMAT, "dpvision": __version__, **self.about, "figures": self.figures, "notes": self.notes}

    def picture(self) -> bytes:
        """PNG of synthetic images above their nearest real ones: it shows real images."""
        return pairs(self.synthetic, self.real, self.copies, seed=self.about["seed"])


def measure(
    synthetic: Pictures,
    real: Pictures,
    *,
    through: str = "scattering",
    weights: Path | None = None,
    classes: tuple[str, ...] = (),
    test: Pictures | None = None,
    cas: bool = True,
    training: Training | None = None,
    neighbours: int = NEIGHBOURS,
    most: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Quality:
    """FID, precision and recall, Inception score, CAS and the search for copies.

    real       all images that the generator was fitted to, if copies are to be found
    through    the network, one of networks.NETWORKS, and the file of its weights, if it has any
    test       real images that CAS is tested on; where there are none, on `real`
    training   of the classifier of CAS, and of the network "classifier"
    most       at most so many images of each kind, drawn at random, for all but CAS
    """
    began, training = time.monotonic(), training or Training(seed=seed)
    asked = real if test is None else test
    require_alike(synthetic, real)
    require_alike(synthetic, asked)
    if cas:
        classifier.require_classes(synthetic, asked, classes)
    _require_device(device)
    all_synthetic, all_real = synthetic, real
    synthetic, real = _enough(synthetic, most, seed), _enough(real, most, seed + 1)

    seen = network(
        through,
        real,
        weights=weights,
        classes=len(classes) or None,
        training=training,
        device=device,
        progress=partial(progress, "classifier of real images"),
    )
    x = seen.features(synthetic, partial(progress, "features of synthetic images"))
    y = seen.features(real, partial(progress, "features of real images"))

    fid = "FID" if seen.standard else f"FID ({seen.name})"
    half = len(y) // 2
    figures = {fid: frechet_distance(x, y), f"{fid}, halves of the real images": frechet_distance(y[:half], y[half:])}
    found = precision_recall(x, y, neighbours=neighbours, progress=partial(progress, "precision and recall"))
    figures[f"precision ({seen.name})"], figures[f"recall ({seen.name})"] = found.precision, found.recall
    if seen.has_classes:
        score = f"Inception score ({seen.name})"
        figures[score], figures[f"{score}, deviation of 10 parts"] = inception_score(seen.probabilities(x))
    if cas:
        figures[f"CAS ({training.model})"] = classifier.classification_accuracy_score(
            all_synthetic,
            asked,
            classes=classes,
            training=training,
            device=device,
            progress=partial(progress, "classifier of synthetic images"),
        )
    pixels = [pictures.tensor().flatten(1).to(device) for pictures in (synthetic, real)]
    for name, rows in (("pixels", pixels), (seen.name, [x, y])):
        copies = memorisation(*rows, progress=partial(progress, f"nearest images ({name})"))
        figures[f"suspected copies ({name})"] = copies.share
        figures[f"suspected copies ({name}), expected of fresh images"] = copies.expected

    about = {
        "network": {"name": seen.name, "origin": seen.origin, "weights": seen.weights, "features": x.shape[1]},
        "synthetic": {"name": synthetic.name, "images": len(synthetic)},
        "real": {"name": real.name, "images": len(real)},
        "shape": synthetic.shape,
        "neighbours": neighbours,
        "cas": {"tested_on": asked.name, "images": len(asked), "training": asdict(training)} if cas else None,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    notes = [FOR_YOUR_EYES, *_notes(seen, width=x.shape[1], images=min(len(x), len(y)))]
    if cas and test is None:
        notes.append("CAS was tested on the images that all else was measured against, as there are no others.")
    if len(real) < len(all_real):
        notes.append(f"Copies were looked for among {len(real):,} of {len(all_real):,} real images: there may be more.")
    return Quality(figures, about, notes, synthetic, real, copies)


def _enough(pictures: Pictures, most: int | None, seed: int) -> Pictures:
    if most is not None and most < LEAST:
        raise ConfigError(f"{most} images of each kind are too few to measure by. Fix: at least {LEAST}.")
    if len(pictures) < LEAST:
        raise DataError(f"{pictures.name}: has {len(pictures)} images, too few to measure by. Fix: {LEAST} at least.")
    return pictures.some(most, seed=seed)


def _require_device(device: torch.device | str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as exc:  # no such kind, none built in, none plugged in
        reason = str(exc).split("\n")[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used ({reason}). Fix: --device cpu.") from exc


def _notes(seen: Network, *, width: int, images: int) -> list[str]:
    found = []
    if not seen.standard:
        found.append(
            f"This is no FID as papers have it: {seen.name} stands in for Inception-v3. Figures compare with others of "
            "the same network and the same number of images only."
        )
    elif images < 50_000:
        found.append(
            f"FID is biased upwards by few images ({images:,} here, 50,000 in papers): compare at the same number."
        )
    if images <= width:
        found.append(f"There are no more images ({images:,}) than features ({width:,}): the distance is far too large.")
    if seen.name == "classifier":
        found.append("The classifier learned from the real images and not from the synthetic ones: these look worse.")
    return found
