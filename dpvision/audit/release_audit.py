"""Audits of a release: its mechanism by canaries; with the data, its rows by attacks.

The first takes the settings on the release's own card and no data: sampler, degree, weights, shares and noise of the
release, around records of few features (release_canaries.py). The second reads private images, so its results are not
for release and are never written to the release folder:

    membership    a classifier trained on the released rows, and its losses on training and test images
    inversion     of mixtures: images that explain released rows (inversion.py), each compared with the most similar of
                  the training images and of the same number of test images; and of single records without noise, which
                  shows how strong the attack is when nothing hides them. Rows that were drawn from noisy sums do not
                  belong to any record, so they cannot be inverted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpvision.audit.canaries import FRESH, CanaryRandom, OnProgress, Scores
from dpvision.audit.inversion import correlations, invert
from dpvision.audit.membership import Membership, cross_entropies, evaluate_attack
from dpvision.audit.release_canaries import mixture_scores, moments_scores, synthesis_scores
from dpvision.core.rows import Preparation, Rows
from dpvision.data import Split
from dpvision.models.inputs import to_tensor
from dpvision.private.features.encoders import Encoder
from dpvision.private.features.public_map import features_of, load_released_encoder, load_split
from dpvision.private.statistics.baselines.synthesis import Synthesis
from dpvision.private.statistics.mechanism import Description
from dpvision.private.statistics.mixtures import RandomWeights
from dpvision.private.statistics.release import mechanism_of
from dpvision.released.folder import FinishedRelease, read_rows
from dpvision.released.learners import DiscriminantLearner

# Canaries that share a release: the size of moments grows with the square, and P3GM keeps at most 20 directions.
TOGETHER, FEW = {"mixtures": 200, "moments": 40}, 20
# Rows that are inverted, steps of each inversion, and images of a split that the results are compared with.
SHOWN, STEPS, COMPARED = 8, 1000, 2000


def score_canaries(
    release: FinishedRelease, *, canaries: int, rng: CanaryRandom = FRESH, progress: OnProgress = lambda *_: None
) -> Scores:
    """Run the release's mechanism with at least `canaries` canaries in all, half of them inserted, and score them."""
    settings, sigma = release.settings, release.sigma
    together = min(canaries, TOGETHER.get(settings.kind, FEW))
    runs = math.ceil(canaries / together)
    if settings.kind == "moments":
        return moments_scores(
            sigma,
            share=settings.share,
            counts_share=settings.counts_share,
            counts_declared=settings.class_counts is not None,
            canaries=together,
            runs=runs,
            rng=rng,
            progress=progress,
        )
    if not settings.is_sampled:
        wide = Rows(np.zeros((0, together), np.float32), np.zeros(0, np.int64), together)
        method = Synthesis.of_settings(wide, settings).method
        return synthesis_scores(sigma, method=method, canaries=together, runs=runs, rng=rng, progress=progress)
    assert settings.degree  # complete
    return mixture_scores(
        settings.sampler(len(release.classes)),
        sigma,
        degree=settings.degree,
        balance=settings.balance,
        weights=RandomWeights.of_settings(settings),
        canaries=together,
        runs=runs,
        rng=rng,
        progress=progress,
    )


def attack_losses(
    release: FinishedRelease,
    source: str,
    *,
    weights: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[Membership, dict[str, NDArray[np.float64]]]:
    """The loss-threshold attack on a classifier of the released rows, training against test images; and the scores."""
    classes = len(release.classes)
    learner = DiscriminantLearner(classes=classes, **_describe(release).noise).fit(*read_rows(release.folder))
    scores, labels = {}, {}
    for split in ("train", "test"):
        rows = features_of(release.folder, source, split=split, weights=weights, progress=progress)
        scores[split], labels[split] = (
            -cross_entropies(learner.scores(rows["features"]), rows["labels"]),
            rows["labels"],
        )
    success = evaluate_attack(scores["train"], scores["test"], classes=(labels["train"], labels["test"]))
    return success, {"members": scores["train"], "others": scores["test"]}


def _describe(release: FinishedRelease) -> Description:
    return mechanism_of(Rows.none(len(release.classes)), release.settings).describe(release.settings)


@dataclass(frozen=True, eq=False)
class Inversion:
    """Mean correlations of reconstructed images with true ones, and the images in [0, 1], in named lines."""

    alone: float  # reconstructions from single records without noise, with those records
    members: float  # reconstructions from released rows, with the most similar training image
    others: float  # and with the most similar of the same number of test images
    compared: int
    lines: dict[str, NDArray[np.float32]]


def attack_rows(
    release: FinishedRelease, source: str, *, weights: Path | None = None, steps: int = STEPS
) -> Inversion | str:
    """Invert the first released rows; or the reason why they cannot be inverted."""
    if not release.settings.is_sampled:
        return f"the rows were {_describe(release).rows_are}, so no row belongs to a record"
    assert release.settings.degree  # complete
    encoder, rule = load_released_encoder(release.folder, weights=weights)
    module = DifferentiableRows(encoder, rule)
    train, test = (load_split(release.folder, source, split=name) for name in ("train", "test"))
    compared = min(len(train), len(test), COMPARED)
    members, others = _first_images(train, compared), _first_images(test, compared)
    if not module(members[:1].clone().requires_grad_()).requires_grad:
        return f"the encoder {encoder.name!r} has no gradient with respect to an image"
    with torch.no_grad():
        alone = module(members[:SHOWN])
    rows = torch.from_numpy(read_rows(release.folder)[0][:SHOWN].copy())
    from_alone = invert(module, alone, shape=encoder.shape, steps=steps)[:, 0]
    from_rows = invert(module, rows, shape=encoder.shape, degree=release.settings.degree, steps=steps)[:, 0]
    like_members, like_others = (correlations(from_rows, images).max(1) for images in (members, others))
    lines = {
        "training image": members[: len(from_alone)],
        "reconstructed, alone, no noise": from_alone,
        "reconstructed from a released row": from_rows,
        "most similar training image": members[like_members.indices],
        "most similar test image": others[like_others.indices],
    }
    count = min(map(len, lines.values()))
    return Inversion(
        alone=float(correlations(from_alone, members[: len(from_alone)]).diag().mean()),
        members=float(like_members.values.mean()),
        others=float(like_others.values.mean()),
        compared=compared,
        lines={name: _to_picture(images[:count]) for name, images in lines.items()},
    )


class DifferentiableRows(nn.Module):
    """Images to rows as in the release, with gradients: the encoder, the public map, and a length of at most 1."""

    def __init__(self, encoder: Encoder, rule: Preparation) -> None:
        super().__init__()
        self.prefix, self.unit, self.bound = encoder.prefix, rule.unit or rule.whitening is not None, rule.bound
        self.mean = self.matrix = None
        if rule.whitening is not None:
            self.mean, self.matrix = (
                torch.from_numpy(x.astype(np.float32)) for x in (rule.whitening.mean, rule.whitening.matrix)
            )

    def forward(self, x: Tensor) -> Tensor:
        z = self.prefix(x).flatten(1)
        if self.mean is not None and self.matrix is not None:
            z = (z - self.mean) @ self.matrix
        if self.unit:
            return z / z.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return z / self.bound


def _first_images(split: Split, count: int) -> Tensor:
    return to_tensor(np.asarray(split.images[:count]))


def _to_picture(images: Tensor) -> NDArray[np.float32]:
    """(N, C, H, W) in [-1, 1] -> (N, H, W) or (N, H, W, 3) in [0, 1]."""
    pixels = (images / 2 + 0.5).permute(0, 2, 3, 1).numpy()
    return np.asarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
