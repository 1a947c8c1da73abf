"""Evaluate synthetic images against real ones with all measures, each labelled with the network it uses.

Privacy: the figures are not protected by noise. If the real images are private, neither the figures nor the picture of
pairs may be released. This package cannot read a data set by itself.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvision import __version__
from dpvision.errors import ConfigError, DataError
from dpvision.models.device import find_device, fix_arithmetic
from dpvision.public.quality import classifier
from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages, require_same_shape
from dpvision.public.quality.measures import (
    NEIGHBOURS,
    Memorisation,
    detect_copies,
    frechet_distance,
    inception_score,
    precision_recall,
)
from dpvision.public.quality.networks import Network, build_network
from dpvision.public.sheets import write_labelled_rows

Progress = Callable[[str, int, int], None]

FORMAT = "dpvision-quality-1"
MIN_IMAGES = 100
PAIRS = 12  # of each kind, in a picture
NOT_FOR_RELEASE = (
    "These figures are not protected by noise. If the real images are private, do not release figures or picture."
)


@dataclass(frozen=True, eq=False)
class Quality:
    """The figures by name, how they were measured, notes on how to read them, and the images for a picture."""

    figures: dict[str, float]
    about: dict[str, Any]
    notes: list[str]
    synthetic: LabelledImages
    real: LabelledImages
    copies: Memorisation  # by features of the network

    def json(self) -> dict[str, Any]:
        """Return the contents of quality.json."""
        return {"format": FORMAT, "dpvision": __version__, **self.about, "figures": self.figures, "notes": self.notes}

    def picture(self) -> bytes:
        """Return a PNG that shows synthetic images above their nearest real images."""
        return _draw_pairs(self.synthetic, self.real, self.copies, seed=self.about["seed"])


def evaluate(
    synthetic: LabelledImages,
    real: LabelledImages,
    *,
    network: str = "scattering",
    weights: Path | None = None,
    classes: tuple[str, ...] = (),
    test: LabelledImages | None = None,
    cas: bool = True,
    settings: ClassifierSettings | None = None,
    neighbours: int = NEIGHBOURS,
    max_images: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Progress = lambda *_: None,
) -> Quality:
    """Compute FID, precision and recall, Inception score and CAS, and search for copies.

    real         all images that the generator was fitted to, so that copies can be found
    network      one of networks.NETWORKS; `weights` is its weight file, if it needs one
    test         real images to test the CAS classifier on; by default `real`
    settings     settings of the CAS classifier and of the network "classifier"
    max_images   for everything except CAS: maximum number of images of each kind, sampled at random
    """
    began, settings = time.monotonic(), settings or ClassifierSettings(seed=seed)
    test_images = real if test is None else test
    require_same_shape(synthetic, real)
    require_same_shape(synthetic, test_images)
    if cas:
        classifier.require_classes(synthetic, test_images, classes)
    device = find_device(str(device))
    fix_arithmetic(device)
    all_synthetic, all_real = synthetic, real
    synthetic, real = _subset(synthetic, max_images, seed), _subset(real, max_images, seed + 1)

    net = build_network(
        network,
        real,
        weights=weights,
        classes=len(classes) or None,
        settings=settings,
        device=device,
        progress=partial(progress, "classifier of real images"),
    )
    x = net.features(synthetic, partial(progress, "features of synthetic images"))
    y = net.features(real, partial(progress, "features of real images"))

    fid = "FID" if net.standard else f"FID ({net.name})"
    half = len(y) // 2
    figures = {fid: frechet_distance(x, y), f"{fid}, halves of the real images": frechet_distance(y[:half], y[half:])}
    shares = precision_recall(x, y, neighbours=neighbours, progress=partial(progress, "precision and recall"))
    figures[f"precision ({net.name})"], figures[f"recall ({net.name})"] = shares.precision, shares.recall
    if net.has_classes:
        score = f"Inception score ({net.name})"
        figures[score], figures[f"{score}, deviation of 10 parts"] = inception_score(net.probabilities(x))
    if cas:
        figures[f"CAS ({settings.model})"] = classifier.classification_accuracy_score(
            all_synthetic,
            test_images,
            classes=classes,
            settings=settings,
            device=device,
            progress=partial(progress, "classifier of synthetic images"),
        )
    pixels = [images.tensor().flatten(1).to(device) for images in (synthetic, real)]
    for name, rows in (("pixels", pixels), (net.name, [x, y])):
        copies = detect_copies(*rows, progress=partial(progress, f"nearest images ({name})"))
        figures[f"suspected copies ({name})"] = copies.share
        figures[f"suspected copies ({name}), expected of fresh images"] = copies.expected

    about: dict[str, Any] = {
        "network": {"name": net.name, "origin": net.origin, "weights": net.weights, "features": x.shape[1]},
        "synthetic": {"name": synthetic.name, "images": len(synthetic)},
        "real": {"name": real.name, "images": len(real)},
        "shape": synthetic.shape,
        "neighbours": neighbours,
        "cas": None,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
    }
    if cas:
        about["cas"] = {"tested_on": test_images.name, "images": len(test_images), "training": asdict(settings)}
    notes = [NOT_FOR_RELEASE, *_notes(net, width=x.shape[1], images=min(len(x), len(y)))]
    if cas and test is None:
        notes.append("There are no test images, so CAS was tested on the same real images as all other measures.")
    if len(real) < len(all_real):
        notes.append(
            f"Only {len(real):,} of {len(all_real):,} real images were searched for copies: there may be more."
        )
    return Quality(figures, about, notes, synthetic, real, copies)


def _subset(images: LabelledImages, count: int | None, seed: int) -> LabelledImages:
    if count is not None and count < MIN_IMAGES:
        raise ConfigError(f"{count} images of each kind are too few to evaluate. Fix: use at least {MIN_IMAGES}.")
    if len(images) < MIN_IMAGES:
        raise DataError(f"{images.name}: {len(images)} images are too few to evaluate. Fix: use at least {MIN_IMAGES}.")
    return images.subset(count, seed=seed)


def _notes(net: Network, *, width: int, images: int) -> list[str]:
    notes = []
    if not net.standard:
        notes.append(
            f"This FID is not comparable with published ones: it uses {net.name} instead of Inception-v3. Compare "
            "figures only for the same network and the same number of images."
        )
    elif images < 50_000:
        notes.append(
            f"FID is biased upwards for few images ({images:,} here, 50,000 in papers): compare only for the same "
            "number of images."
        )
    if images <= width:
        notes.append(f"With only {images:,} images for {width:,} features, the distance is far too large.")
    if net.name == "classifier":
        notes.append(
            "The classifier was trained on the real images only, so the synthetic ones appear worse than they are."
        )
    return notes


def _draw_pairs(synthetic: LabelledImages, real: LabelledImages, copies: Memorisation, *, seed: int = 0) -> bytes:
    """Draw the synthetic images with the smallest ratios, then random ones, each above its nearest real image."""
    order = copies.ratios.argsort().numpy()
    closest, rest = order[:PAIRS], order[PAIRS:]
    kinds = {"closest": closest}
    if len(rest) >= len(closest):
        kinds["random"] = np.random.default_rng(seed).choice(rest, len(closest), replace=False)
    labelled_rows = {}
    for kind, rows in kinds.items():
        labelled_rows[f"{kind}: synthetic"] = _pixels(synthetic, rows)
        labelled_rows[f"{kind}: nearest real"] = _pixels(real, copies.neighbours.numpy()[rows])
    file = io.BytesIO()
    write_labelled_rows(file, labelled_rows)
    return file.getvalue()


def _pixels(images: LabelledImages, rows: np.ndarray) -> np.ndarray:
    pixels = images.tensor(rows).permute(0, 2, 3, 1).numpy() / 2 + 0.5
    return pixels[..., 0] if pixels.shape[3] == 1 else pixels
