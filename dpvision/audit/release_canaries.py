"""Canaries in released rows, moments and published methods: real releases, projected onto each canary's direction.

mixtures    canary j has the j-th feature and, if labels are noisy, its own class: it adds (a e_j, b y_j), of
            norm 1, and the adversary takes the inner product of each row with that vector
moments     canary j adds (b e_j y_j^T, c y_j, a vec(e_j e_j^T)), of norm 1
synthesis   canary j has the j-th feature and its own class, so that no other canary contributes to its entries of
            a sum. The method is adaptive: the adversary runs it again on all canaries, answers each sum with the noisy
            sum that was released, and thus learns what each canary adds. A canary whose norm is below 1 reveals less

If the unit of the release is a person, a canary is a person with IMAGES equal rows, who may add no more than one row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.audit.canaries import (
    FRESH,
    CanaryRandom,
    CanaryRun,
    Floats,
    OnProgress,
    Scores,
    Trials,
    claimed_mu,
    log_ratio,
    score_releases,
    score_runs,
)
from dpvision.core.events import Exposure, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum, Preparation, Rows
from dpvision.core.sampling import EveryRecord, MixtureSampler, Poisson, Scheduled
from dpvision.errors import ConfigError, PrivacyError
from dpvision.private.statistics.baselines.synthesis import Synthesis, SynthesisMethod
from dpvision.private.statistics.mixtures import Mixtures, RandomWeights
from dpvision.private.statistics.moments import MomentsMechanism
from dpvision.released.folder import FinishedRelease

# Canaries in one release: the size of moments grows with the square, and P3GM uses at most 20 directions.
TOGETHER, FEW = {"mixtures": 200, "moments": 40}, 20
IMAGES = 3  # of a canary that is a person


def score_canaries(
    release: FinishedRelease,
    *,
    canaries: int,
    rng: CanaryRandom = FRESH,
    progress: OnProgress = lambda *_: None,
) -> Scores:
    """Run the mechanism of a release with at least `canaries` canaries in total, and score them.

    No private data is used: sampler, degree, weights, shares and noise are those of the card, and records have few
    features.
    """
    settings, sigma = release.settings, release.sigma
    trials = Trials.of(canaries, together=TOGETHER.get(settings.kind, FEW), rng=rng, progress=progress)
    images = IMAGES if settings.unit == "person" else None
    if settings.kind == "moments":
        assert settings.share is not None  # complete
        return moments_scores(
            sigma,
            trials,
            share=settings.share,
            counts_share=settings.counts_share,
            counts_declared=settings.class_counts is not None,
            images=images,
        )
    if not settings.is_sampled:
        wide = Rows(np.zeros((0, trials.canaries), np.float32), np.zeros(0, np.int64), trials.canaries)
        return synthesis_scores(sigma, trials, method=Synthesis.of_settings(wide, settings).method, images=images)
    assert settings.degree  # complete
    return mixture_scores(
        settings.sampler(len(release.classes)),
        sigma,
        trials,
        degree=settings.degree,
        balance=settings.balance,
        weights=RandomWeights.of_settings(settings),
        images=images,
    )


def rows_of(
    who: NDArray[np.bool_] | NDArray[np.int64], labels: NDArray[np.int64], *, classes: int, images: int | None
) -> Rows:
    """Return the rows of the canaries `who` of all, one each or, if canaries are persons, `images` each."""
    x, persons = np.eye(len(labels))[who], None
    labels = labels[who]
    if images is not None:
        persons = np.repeat(np.arange(len(x)), images)
        x, labels = x[persons], labels[persons]
    return Rows.of(x, labels, Preparation(), classes=classes, persons=persons)


def mixture_scores(
    sampler: MixtureSampler,
    sigma: float,
    trials: Trials,
    *,
    degree: float = 1.0,
    balance: float = 1.0,
    weights: RandomWeights | None = None,
    images: int | None = None,
) -> Scores:
    """Release mixtures of canaries and score them. In a schedule, canaries belong to the most exposed classes."""
    canaries = trials.canaries
    claimed, (exposure, worst) = sampler.event(sigma), _most_exposed(sampler, sigma)
    sampler, labels = _one_class_each(sampler, worst, canaries)
    classes = canaries if isinstance(sampler, Poisson) else len(sampler.rates)
    eligible = np.ones((1, canaries), bool) if isinstance(sampler, Poisson) else sampler.table[:, labels]

    def score_run(run: CanaryRun) -> Floats:
        rows = rows_of(run.inside, labels, classes=classes, images=images)
        mixtures = Mixtures(rows, sampler, degree=degree, balance=balance, weights=weights)
        event = mixtures.event(sigma * trials.rng.noise)
        scores, first = np.zeros(canaries), 0
        for features, answers in mixtures.blocks(run.charge(event, mixtures.name(run.key, event)), run.key):
            ratio = log_ratio(_project_rows(mixtures, features, answers, labels), rate=exposure.rate, sigma=sigma)
            scores += (ratio * (eligible if len(eligible) == 1 else eligible[first : first + len(ratio)])).sum(0)
            first += len(ratio)
        return scores

    return score_runs(score_run, claimed, exposure, trials)


def _most_exposed(sampler: MixtureSampler, sigma: float) -> tuple[Exposure, list[int]]:
    """Return the exposure that reveals most about a record, and the classes that have it.

    All records of a Poisson mixture have the same exposure, so no class is returned.
    """
    if isinstance(sampler, Poisson):
        return Exposure(sampler.rate, sigma, sampler.rows), []
    by_class = [Exposure(rate, sigma, int(n)) for rate, n in zip(sampler.rates, sampler.table.sum(0), strict=True)]
    mus = {exposure: claimed_mu((exposure,)) for exposure in set(by_class) if exposure.rate > 0 and exposure.steps > 0}
    if not mus:
        raise ConfigError("no record is in any row of this schedule, so there is nothing to audit.")
    worst = max(mus, key=mus.__getitem__)
    return worst, [number for number, exposure in enumerate(by_class) if exposure == worst]


def _one_class_each(
    sampler: MixtureSampler, worst: list[int], canaries: int
) -> tuple[MixtureSampler, NDArray[np.int64]]:
    """Return the sampler with a class for each canary, and the canaries' classes: a shared label would couple two.

    The columns of a schedule are repeated, so that each canary is in the rows of a real class. If every row has one
    class, labels are released without noise and are not part of the score, so canaries may share a class.
    """
    if isinstance(sampler, Poisson):
        return sampler, np.arange(canaries)
    labels = np.asarray(worst)[np.arange(canaries) % len(worst)]
    if (sampler.table.sum(1) == 1).all():
        return sampler, labels
    return Scheduled(sampler.table[:, labels], tuple(sampler.rates[k] for k in labels)), np.arange(canaries)


def _project_rows(mixtures: Mixtures, features: Any, answers: Any, labels: NDArray[np.int64]) -> Floats:
    """Return <row, (a e_j, b y_j)> for each row and canary, multiplied by the public divisor."""
    projection = mixtures.a**2 * mixtures.divisor * features.astype(np.float64)
    if not mixtures.public_labels:
        projection += mixtures.b**2 * mixtures.divisor * answers[:, labels].astype(np.float64)
    return projection


def moments_scores(
    sigma: float,
    trials: Trials,
    *,
    share: float = 0.5,
    counts_share: float = 0.05,
    counts_declared: bool = False,
    images: int | None = None,
) -> Scores:
    """Release class sums, class counts (unless declared) and the second moment of canaries, and score them."""
    canaries, claimed = trials.canaries, Gaussian(sigma, 1)
    counts = (1,) * canaries if counts_declared else None
    exposure = Exposure(1.0, sigma, 1)

    def score_run(run: CanaryRun) -> Floats:
        rows = rows_of(run.inside, np.arange(canaries), classes=canaries, images=images)
        moments = MomentsMechanism(rows, share=share, counts_share=counts_share, n=canaries, class_counts=counts)
        event = moments.event(sigma * trials.rng.noise)
        noisy = moments.noisy_moments(run.charge(event, moments.name(run.key, event)), run.key)
        parts = (
            (moments.b, np.diagonal(noisy.sums)),
            (moments.c, noisy.counts),
            (moments.a, np.diagonal(noisy.second)),
        )
        z = sum(weight**2 * part for weight, part in parts)
        return score_releases(np.asarray(z)[None], exposure)

    return score_runs(score_run, claimed, exposure, trials)


def synthesis_scores(sigma: float, trials: Trials, *, method: SynthesisMethod, images: int | None = None) -> Scores:
    """Score canaries by the noisy sums of a published method. The rows that it draws from them reveal no more."""
    canaries, claimed = trials.canaries, Gaussian(sigma, method.releases)
    exposure = Exposure(1.0, sigma, method.releases)
    everyone = np.arange(canaries)

    def sums_of(who: NDArray[np.int64], answer: Callable[[BoundedSum], Floats], *, noise: float) -> list[BoundedSum]:
        """Return the sums that the method queries on these canaries if each is answered by `answer`."""
        sums: list[BoundedSum] = []

        def noisy(bounded: BoundedSum) -> Floats:
            sums.append(bounded)
            result = answer(bounded)
            if len(sums) == method.releases:
                raise _LastRelease  # what follows is post-processing, and slow
            return result

        rows = rows_of(who, everyone, classes=canaries, images=images)
        with suppress(_LastRelease):
            method.make(rows, n=canaries, sigma=noise, add_noise=noisy, count=1, seed=0)
        return sums

    any_noise = np.random.default_rng(0)
    alone = [
        sums_of(everyone[j : j + 1], lambda query: query.total + any_noise.normal(size=query.total.shape), noise=sigma)
        for j in everyone
    ]
    owners = [np.stack([sums[number].total.ravel() != 0 for sums in alone]) for number in range(method.releases)]
    if any((owner.sum(0) > 1).any() for owner in owners):
        raise PrivacyError("two canaries contribute to the same entry of a sum, so their scores are not independent.")

    def score_run(run: CanaryRun) -> Floats:
        event = Gaussian(sigma * trials.rng.noise, method.releases)
        gate = Gate(run.charge(event, run.name), run.key, EveryRecord(event.count), name=run.name)
        released: list[Floats] = []

        def release(bounded: BoundedSum) -> Floats:
            released.append(gate.next(bounded))
            return released[-1]

        sums_of(everyone[run.inside], release, noise=event.sigma)
        again = iter(released)
        contributions = sums_of(everyone, lambda _: next(again), noise=event.sigma)
        z = [_project_sum(*triple) for triple in zip(released, contributions, owners, strict=True)]
        return score_releases(np.stack(z), exposure)

    return score_runs(score_run, claimed, exposure, trials)


class _LastRelease(Exception):
    """Raised when everything that was charged has been released."""


def _project_sum(noisy: Floats, contributions: BoundedSum, owner: NDArray[np.bool_]) -> Floats:
    """Project a noisy sum onto what each canary added, which is in the entries of the sum that it owns."""
    total = contributions.total.ravel()
    norms = np.sqrt(owner @ total**2)
    return np.asarray(owner @ (noisy.ravel() * total) / np.maximum(norms, 1e-12) / contributions.sensitivity)
