"""Canaries in released rows, released moments and private heads: the real releases, looked at along each canary.

mixtures    canary j has the j-th feature and, where labels are noisy, a class of its own: it adds (a e_j, b y_j), of
            length 1. Of each row the adversary takes the inner product with that
moments     canary j adds (b e_j y_j^T, c y_j, a vec(e_j e_j^T)), of length 1
head        the releases of an adaptive method depend on the earlier ones. The adversary runs the method again on the
            canaries alone, answers each sum with the release that was made, and so learns what each canary adds
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.audit.canaries import (
    FRESH,
    Coins,
    Floats,
    Gathering,
    Progress,
    Scores,
    log_ratio,
    require_canaries,
    score,
    throw_away_ledgers,
)
from dpvision.heads.releases import Releases
from dpvision.heads.rows import BoundedSum, Preparation, Rows
from dpvision.heads.setup import setup
from dpvision.privacy.events import Exposure, Gaussian, exposures
from dpvision.release.mixtures import Mixtures
from dpvision.release.moments import Moments
from dpvision.release.sampling import Poisson, Sampler


def mixture_scores(
    sampler: Sampler,
    sigma: float,
    *,
    degree: float = 1.0,
    canaries: int = 200,
    runs: int = 20,
    coins: Coins = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """Rows of a release by mixing; for a schedule, canaries are of its classes in turn."""
    require_canaries(canaries, runs)
    classes = canaries if isinstance(sampler, Poisson) else len(sampler.rates)
    labels = np.arange(canaries) % classes
    rates = np.full(classes, sampler.rate) if isinstance(sampler, Poisson) else np.asarray(sampler.rates)
    about = np.ones((sampler.rows, canaries), bool) if isinstance(sampler, Poisson) else sampler.table[:, labels]
    claimed = sampler.event(sigma)
    found = Gathering(claimed, exposures(claimed)[-1])
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = coins.split(run, canaries), coins.key(run)
            rows = Rows.of(np.eye(canaries)[inside], labels[inside], Preparation(), classes=classes)
            mixtures = Mixtures(rows, sampler, degree=degree)
            event = mixtures.event(sigma * coins.noise)
            blocks = mixtures.blocks(charge(event, key, mixtures.name(key, event)), key)
            z = np.concatenate([_along(mixtures, features, answers, labels) for features, answers in blocks])
            ratio = np.stack([log_ratio(z[:, j], rate=rates[labels[j]], sigma=sigma) for j in range(canaries)], axis=1)
            found.add((ratio * about).sum(0), inside)
            progress(run + 1, runs)
    return found.scores()


def _along(mixtures: Mixtures, features: Any, answers: Any, labels: NDArray[np.int64]) -> Floats:
    """<row, (a e_j, b y_j)> of each row and canary, with the public divisor taken out."""
    divisor = mixtures.degree
    found = mixtures.a**2 * divisor * features.astype(np.float64)
    if not mixtures.public_labels:
        found += mixtures.b**2 * divisor * answers[:, labels].astype(np.float64)
    return found


def moments_scores(
    sigma: float,
    *,
    canaries: int = 40,
    runs: int = 200,
    coins: Coins = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """One release of class sums, counts and the second moment in each run."""
    require_canaries(canaries, runs)
    claimed = Gaussian(sigma, 1)
    found = Gathering(claimed, exposures(claimed)[0])
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = coins.split(run, canaries), coins.key(run)
            rows = Rows.of(np.eye(canaries)[inside], np.flatnonzero(inside), Preparation(), classes=canaries)
            moments = Moments(rows, share=0.5, counts_share=0.05, n=canaries)
            event = moments.event(sigma * coins.noise)
            got = moments.released(charge(event, key, moments.name(key, event)), key)
            parts = ((moments.b, np.diagonal(got.sums)), (moments.c, got.counts), (moments.a, np.diagonal(got.second)))
            z = sum(weight**2 * part for weight, part in parts)
            found.add(score(np.asarray(z)[None], Exposure(1.0, sigma, 1)), inside)
            progress(run + 1, runs)
    return found.scores()


def head_scores(
    sigma: float,
    *,
    method: str = "gd",
    canaries: int = 100,
    runs: int = 50,
    coins: Coins = FRESH,
    progress: Progress = lambda *_: None,
    **settings: object,
) -> Scores:
    """A private head of two classes; canaries are of the second."""
    require_canaries(canaries, runs)
    plan = setup(method, dict(settings))
    claimed = Gaussian(sigma, plan.releases)
    met = Exposure(1.0, sigma, plan.releases)
    found = Gathering(claimed, (met,))
    every = Rows.of(np.eye(canaries), np.ones(canaries, np.int64), plan.preparation, classes=2)
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = coins.split(run, canaries), coins.key(run)
            rows = Rows.of(np.eye(canaries)[inside], np.ones(inside.sum(), np.int64), plan.preparation, classes=2)
            event = Gaussian(sigma * coins.noise, plan.releases)
            releases = Releases(charge(event, key, f"run {run}"), key)
            seen: list[Floats] = []

            def noisy(asked: BoundedSum, releases: Releases = releases, seen: list[Floats] = seen) -> Floats:
                seen.append(releases.noisy(asked))
                return seen[-1]

            plan.fit(rows, n=canaries, sigma=event.sigma, noisy=noisy, public=None)
            z: list[Floats] = []

            def again(asked: BoundedSum, seen: list[Floats] = seen, z: list[Floats] = z) -> Floats:
                release = seen[len(z)]
                z.append(_along_each(release, asked))
                return release

            plan.fit(every, n=canaries, sigma=event.sigma, noisy=again, public=None)
            found.add(score(np.stack(z), met), inside)
            progress(run + 1, runs)
    return found.scores()


def _along_each(release: Floats, asked: BoundedSum) -> Floats:
    """Along what each canary added: row j of the sum is canary j's alone, for it alone has the j-th feature."""
    lengths = np.sqrt((asked.total**2).sum(1))
    along = (release * asked.total).sum(1) / np.maximum(lengths, 1e-12)
    return np.asarray(along / asked.sensitivity)
