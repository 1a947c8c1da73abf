"""What can be tested of a released folder: its mechanism by canaries; with the data, its rows by attacks.

The first takes the settings on the folder's own card and no data: sampler, degree, weights, shares and noise of the
release, around records of few features (release_canaries.py). The second reads private images, so what it finds is for
the operator, and never goes into the folder:

    membership    a classifier of the released rows, and its losses on training and on test images
    inversion     of mixtures: images that explain released rows (audit/inversion.py), each beside the image that it
                  is most like among the training and among as many test images; and of single records without noise,
                  which shows what the attack sees where nothing hides them. Rows that were drawn from noisy sums
                  are nobody's, so there is nothing to invert.
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

from dpvision.audit.canaries import FRESH, CanaryRandom, Scores
from dpvision.audit.canaries import Progress as Counted
from dpvision.audit.inversion import correlations, invert
from dpvision.audit.losses import cross_entropies
from dpvision.audit.membership import Membership, attack_success
from dpvision.audit.release_canaries import mixture_scores, moments_scores, synthesis_scores
from dpvision.core.rows import Preparation, Rows
from dpvision.data import Split
from dpvision.models.inputs import to_tensor
from dpvision.private.features.as_released import features_of, made_by, split_of
from dpvision.private.features.encoders import Encoder
from dpvision.private.statistics.baselines import synthesis
from dpvision.private.statistics.kinds import mechanism_of
from dpvision.private.statistics.mechanism import Described
from dpvision.private.statistics.mixtures import weights_of
from dpvision.released.finished import Finished
from dpvision.released.folder import read_rows
from dpvision.released.learners import DiscriminantLearner

# Canaries that share a release: the numbers of moments grow with the square, and P3GM keeps no more than 20 directions.
TOGETHER, FEW = {"mixtures": 200, "moments": 40}, 20
# Rows that are inverted, steps of each inversion, and images of a split that the results are compared with.
SHOWN, STEPS, MOST = 8, 1000, 2000
Progress = Callable[[str, int, int], None]


def canary_scores(
    release: Finished, *, canaries: int, rng: CanaryRandom = FRESH, progress: Counted = lambda *_: None
) -> Scores:
    """Scores of at least as many canaries, half of them in, of the release's mechanism."""
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
        method = synthesis.of_settings(wide, settings).method
        return synthesis_scores(sigma, method=method, canaries=together, runs=runs, rng=rng, progress=progress)
    assert settings.degree  # complete
    return mixture_scores(
        settings.sampler(len(release.classes)),
        sigma,
        degree=settings.degree,
        balance=settings.balance,
        weights=weights_of(settings),
        canaries=together,
        runs=runs,
        rng=rng,
        progress=progress,
    )


def losses_of(
    release: Finished, source: str, *, weights: Path | None = None, progress: Progress = lambda *_: None
) -> tuple[Membership, dict[str, NDArray[np.float64]]]:
    """The loss-threshold attack on a classifier of the released rows: training images against test images."""
    classes = len(release.classes)
    learner = DiscriminantLearner(classes=classes, **_described(release).noise).fit(*read_rows(release.folder))
    found = {}
    for split in ("train", "test"):
        rows = features_of(release.folder, source, split=split, weights=weights, progress=progress)
        found[split] = -cross_entropies(learner.scores(rows["features"]), rows["labels"]), rows["labels"]
    members, others = found["train"], found["test"]
    success = attack_success(members[0], others[0], classes=(members[1], others[1]))
    return success, {"members": members[0], "others": others[0]}


def _described(release: Finished) -> Described:
    return mechanism_of(Rows.none(len(release.classes)), release.settings).describe(release.settings)


@dataclass(frozen=True, eq=False)
class Inversion:
    """Correlations of what was found with true images, means over those shown, and pictures in [0, 1]."""

    alone: float  # of single records without noise, with themselves
    members: float  # of released rows, with the nearest training image
    others: float  # and with the nearest of as many test images
    compared: int
    lines: dict[str, NDArray[np.float32]]


def inversion_of(release: Finished, source: str, *, weights: Path | None = None, steps: int = STEPS) -> Inversion | str:
    """The attack on the first released rows; or why there is none."""
    if not release.settings.is_sampled:
        return f"the rows were {_described(release).rows_are}, so no row is of anybody"
    assert release.settings.degree  # complete
    encoder, rule = made_by(release.folder, weights=weights)
    module = Differentiable(encoder, rule)
    train, test = (split_of(release.folder, source, split=name) for name in ("train", "test"))
    compared = min(len(train), len(test), MOST)
    members, others = _images(train, compared), _images(test, compared)
    if not module(members[:1].clone().requires_grad_()).requires_grad:
        return f"the encoder {encoder.name!r} has no gradient with respect to an image"
    with torch.no_grad():
        alone = module(members[:SHOWN])
    rows = torch.from_numpy(read_rows(release.folder)[0][:SHOWN].copy())
    own = invert(module, alone, shape=encoder.shape, steps=steps)[:, 0]
    mixed = invert(module, rows, shape=encoder.shape, degree=release.settings.degree, steps=steps)[:, 0]
    like_members, like_others = (correlations(mixed, images).max(1) for images in (members, others))
    lines = {
        "training image": members[: len(own)],
        "found, alone, no noise": own,
        "found of a released row": mixed,
        "nearest training image": members[like_members.indices],
        "nearest test image": others[like_others.indices],
    }
    count = min(map(len, lines.values()))
    return Inversion(
        alone=float(correlations(own, members[: len(own)]).diag().mean()),
        members=float(like_members.values.mean()),
        others=float(like_others.values.mean()),
        compared=compared,
        lines={name: _picture(each[:count]) for name, each in lines.items()},
    )


class Differentiable(nn.Module):
    """Images to rows as the release had them, with gradients: the encoder, the public map, a length of 1 at most."""

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


def _images(split: Split, count: int) -> Tensor:
    return to_tensor(np.asarray(split.images[:count]))


def _picture(images: Tensor) -> NDArray[np.float32]:
    """(N, C, H, W) in [-1, 1] -> (N, H, W) or (N, H, W, 3) in [0, 1]."""
    shown = (images / 2 + 0.5).permute(0, 2, 3, 1).numpy()
    return np.asarray(shown[..., 0] if shown.shape[-1] == 1 else shown)
