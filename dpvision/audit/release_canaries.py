"""Canaries in released rows, moments, published methods and private heads: real releases, looked at along each canary.

mixtures    canary j has the j-th feature and, where labels are noisy, a class of its own: it adds (a e_j, b y_j), of
            length 1. Of each row the adversary takes the inner product with that
moments     canary j adds (b e_j y_j^T, c y_j, a vec(e_j e_j^T)), of length 1
synthesis   canary j has the j-th feature and a class of its own: in every sum its numbers are nobody else's. What they
            are is found as for a head; a canary may be shorter than 1 there, and then shows less
head        the releases of an adaptive method depend on the earlier ones. The adversary runs the method again on the
            canaries alone, answers each sum with the release that was made, and so learns what each canary adds
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
    Floats,
    Gathering,
    Progress,
    Scores,
    claimed_mu,
    log_ratio,
    require_canaries,
    score,
    throw_away_ledgers,
)
from dpvision.core.events import Exposure, Gaussian, exposures
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum, Preparation, Rows
from dpvision.core.sampling import EveryRecord, MixtureSampler, Poisson, Scheduled
from dpvision.errors import ConfigError, PrivacyError
from dpvision.private.statistics.baselines.setup import Method
from dpvision.private.statistics.mixture_weights import RandomWeights
from dpvision.private.statistics.mixtures import Mixtures
from dpvision.private.statistics.moments import Moments
from dpvision.private.statistics.setup import setup


def mixture_scores(
    sampler: MixtureSampler,
    sigma: float,
    *,
    degree: float = 1.0,
    balance: float = 1.0,
    weights: RandomWeights | None = None,
    canaries: int = 200,
    runs: int = 20,
    rng: CanaryRandom = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """Rows of a release by mixing; for a schedule, canaries are of the classes that fare worst."""
    require_canaries(canaries, runs)
    claimed, (met, worst) = sampler.event(sigma), _worst(sampler, sigma)
    sampler, labels = _one_class_each(sampler, worst, canaries)
    classes = canaries if isinstance(sampler, Poisson) else len(sampler.rates)
    about = np.ones((1, canaries), bool) if isinstance(sampler, Poisson) else sampler.table[:, labels]
    found = Gathering(claimed, (met,))
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = rng.split(run, canaries), rng.key(run)
            rows = Rows.of(np.eye(canaries)[inside], labels[inside], Preparation(), classes=classes)
            mixtures = Mixtures(rows, sampler, degree=degree, balance=balance, weights=weights)
            event = mixtures.event(sigma * rng.noise)
            total, first = np.zeros(canaries), 0
            for features, answers in mixtures.blocks(charge(event, key, mixtures.name(key, event)), key):
                ratio = log_ratio(_along(mixtures, features, answers, labels), rate=met.rate, sigma=sigma)
                total += (ratio * (about if len(about) == 1 else about[first : first + len(ratio)])).sum(0)
                first += len(ratio)
            found.add(total, inside)
            progress(run + 1, runs)
    return found.scores()


def _worst(sampler: MixtureSampler, sigma: float) -> tuple[Exposure, list[int]]:
    """What the kind of record meets that is told most about, and its classes; of Poisson mixtures all are alike."""
    if isinstance(sampler, Poisson):
        return Exposure(sampler.rate, sigma, sampler.rows), []
    kinds = [Exposure(rate, sigma, int(rows)) for rate, rows in zip(sampler.rates, sampler.table.sum(0), strict=True)]
    told = {kind: claimed_mu((kind,)) for kind in set(kinds) if kind.rate > 0 and kind.steps > 0}
    if not told:
        raise ConfigError("nobody is in any row of this schedule, so there is nothing to audit.")
    worst = max(told, key=told.__getitem__)
    return worst, [number for number, kind in enumerate(kinds) if kind == worst]


def _one_class_each(
    sampler: MixtureSampler, worst: list[int], canaries: int
) -> tuple[MixtureSampler, NDArray[np.int64]]:
    """The sampler with a class for each canary, and the canaries' classes: a label that two share would couple them.

    A schedule's columns are repeated, so each canary is in the rows of a class that there is. Where rows are of one
    class each, labels have no noise and nobody looks at them: there canaries may share a class.
    """
    if isinstance(sampler, Poisson):
        return sampler, np.arange(canaries)
    labels = np.asarray(worst)[np.arange(canaries) % len(worst)]
    if (sampler.table.sum(1) == 1).all():
        return sampler, labels
    return Scheduled(sampler.table[:, labels], tuple(sampler.rates[k] for k in labels)), np.arange(canaries)


def _along(mixtures: Mixtures, features: Any, answers: Any, labels: NDArray[np.int64]) -> Floats:
    """<row, (a e_j, b y_j)> of each row and canary, with the public divisor taken out."""
    found = mixtures.a**2 * mixtures.divisor * features.astype(np.float64)
    if not mixtures.public_labels:
        found += mixtures.b**2 * mixtures.divisor * answers[:, labels].astype(np.float64)
    return found


def moments_scores(
    sigma: float,
    *,
    share: float = 0.5,
    counts_share: float = 0.05,
    counts_declared: bool = False,
    canaries: int = 40,
    runs: int = 200,
    rng: CanaryRandom = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """One release of class sums, counts (where they are not declared) and the second moment in each run."""
    require_canaries(canaries, runs)
    claimed, counts = Gaussian(sigma, 1), (1,) * canaries if counts_declared else None
    found = Gathering(claimed, exposures(claimed)[0])
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = rng.split(run, canaries), rng.key(run)
            rows = Rows.of(np.eye(canaries)[inside], np.flatnonzero(inside), Preparation(), classes=canaries)
            moments = Moments(rows, share=share, counts_share=counts_share, n=canaries, class_counts=counts)
            event = moments.event(sigma * rng.noise)
            got = moments.released(charge(event, key, moments.name(key, event)), key)
            parts = ((moments.b, np.diagonal(got.sums)), (moments.c, got.counts), (moments.a, np.diagonal(got.second)))
            z = sum(weight**2 * part for weight, part in parts)
            found.add(score(np.asarray(z)[None], Exposure(1.0, sigma, 1)), inside)
            progress(run + 1, runs)
    return found.scores()


def synthesis_scores(
    sigma: float,
    *,
    method: Method,
    canaries: int = 20,
    runs: int = 500,
    rng: CanaryRandom = FRESH,
    progress: Progress = lambda *_: None,
) -> Scores:
    """The noisy sums of a published method (baselines/); the rows that it makes of them tell no more."""
    require_canaries(canaries, runs)
    claimed = Gaussian(sigma, method.releases)
    met = Exposure(1.0, sigma, method.releases)
    found, every = Gathering(claimed, (met,)), np.arange(canaries)

    def asked_of(who: NDArray[np.int64], answers: Callable[[BoundedSum], Floats], *, noise: float) -> list[BoundedSum]:
        asked: list[BoundedSum] = []

        def noisy(bounded: BoundedSum) -> Floats:
            asked.append(bounded)
            answer = answers(bounded)
            if len(asked) == method.releases:
                raise _AllReleased  # what comes after is fitted to noisy sums, and takes long
            return answer

        rows = Rows.of(np.eye(canaries)[who], who, Preparation(), classes=canaries)
        with suppress(_AllReleased):
            method.make(rows, n=canaries, sigma=noise, noisy=noisy, count=1, seed=0)
        return asked

    anything = np.random.default_rng(0)
    alone = [
        asked_of(every[j : j + 1], lambda asked: asked.total + anything.normal(size=asked.total.shape), noise=sigma)
        for j in every
    ]
    owners = [np.stack([one[number].total.ravel() != 0 for one in alone]) for number in range(method.releases)]
    if any((owner.sum(0) > 1).any() for owner in owners):
        raise PrivacyError("canaries share a number of a sum, so their scores would not be independent.")
    with throw_away_ledgers() as charge:
        for run in range(runs):
            inside, key = rng.split(run, canaries), rng.key(run)
            event = Gaussian(sigma * rng.noise, method.releases)
            gate = Gate(charge(event, key, f"run {run}"), key, EveryRecord(event.count), name=f"run {run}")
            seen: list[Floats] = []

            def released(bounded: BoundedSum, gate: Gate = gate, seen: list[Floats] = seen) -> Floats:
                seen.append(gate.next(bounded))
                return seen[-1]

            asked_of(every[inside], released, noise=event.sigma)
            again = iter(seen)
            asked = asked_of(every, lambda _, again=again: next(again), noise=event.sigma)  # type: ignore[misc]
            z = [_along_owned(*each) for each in zip(seen, asked, owners, strict=True)]
            found.add(score(np.stack(z), met), inside)
            progress(run + 1, runs)
    return found.scores()


class _AllReleased(Exception):
    """All that was charged is released."""


def _along_owned(release: Floats, asked: BoundedSum, owner: NDArray[np.bool_]) -> Floats:
    """Along what each canary added: the numbers of the sum that are its own."""
    total = asked.total.ravel()
    lengths = np.sqrt(owner @ total**2)
    return np.asarray(owner @ (release.ravel() * total) / np.maximum(lengths, 1e-12) / asked.sensitivity)


def head_scores(
    sigma: float,
    *,
    method: str = "gd",
    canaries: int = 100,
    runs: int = 50,
    rng: CanaryRandom = FRESH,
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
            inside, key = rng.split(run, canaries), rng.key(run)
            rows = Rows.of(np.eye(canaries)[inside], np.ones(inside.sum(), np.int64), plan.preparation, classes=2)
            event = Gaussian(sigma * rng.noise, plan.releases)
            name = f"run {run}"
            gate = Gate(charge(event, key, name), key, EveryRecord(event.count), name=name)
            seen: list[Floats] = []

            def noisy(asked: BoundedSum, gate: Gate = gate, seen: list[Floats] = seen) -> Floats:
                seen.append(gate.next(asked))
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
