"""Every mechanism of the package with canaries in it, calibrated to one budget: what the audit benchmark runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from dpvision.audit import hierarchical
from dpvision.audit.canaries import CanaryRandom, CanaryRun, Floats, Scores, Trials, score_releases, score_runs
from dpvision.audit.release_canaries import mixture_scores, moments_scores, synthesis_scores
from dpvision.audit.training_canaries import Training, training_scores
from dpvision.core.events import Budget, ClassScheduled, Exposure, Gaussian
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum, Rows
from dpvision.core.sampling import EveryRecord, Poisson, PoissonSampler, Scheduled
from dpvision.private.statistics.baselines.kernels import Hermite, Merf
from dpvision.private.statistics.baselines.p3gm import P3GM
from dpvision.private.statistics.baselines.synthesis import SynthesisMethod
from dpvision.private.statistics.setup import HeadSetup
from dpvision.settings import calibrate
from dpvision.settings.release import round_robin
from dpvision.views import Views

RATE, STEPS, HEAD_STEPS = 0.25, 8, 5
AUGMENT = ("crop", "flip")
# (number of canaries in all, their randomness) -> their scores
Audit = Callable[[int, CanaryRandom], Scores]


def mechanisms(budget: Budget) -> Mapping[str, Audit]:
    """Audits by the name of the mechanism. Each takes about a second for 10,000 canaries; with views, ten."""

    def sigma() -> float:
        return _sigma(budget, RATE, STEPS)

    def training(*, style: str = "flat", views: Views | None = None, assist: str = "none", over: int = STEPS) -> Audit:
        together = 500 if views is None else 100

        def scores(canaries: int, rng: CanaryRandom) -> Scores:
            sampler = PoissonSampler(10, 40, STEPS)
            audited = Training(sampler, sigma(), clip=0.5, style=style, views=views, assist=assist, hand_over=over)
            return training_scores(audited, Trials.of(canaries, together=together, rng=rng))

        return scores

    def rows(rule: Poisson | Scheduled) -> Audit:
        return lambda canaries, rng: mixture_scores(
            rule, sigma(), Trials.of(canaries, together=200, rng=rng), degree=50.0
        )

    def synthesis(method: SynthesisMethod) -> Audit:
        return lambda canaries, rng: synthesis_scores(
            _sigma(budget, 1.0, method.releases), Trials.of(canaries, together=20, rng=rng), method=method
        )

    return {
        "DP-SGD": training(),
        "K views": training(views=Views(AUGMENT, base=4, classes=2)),
        "self-mix": training(views=Views(AUGMENT, base=2, self_mix=2, classes=2)),
        "hand-over of phases": training(over=STEPS // 2),
        "clipped by layer": training(over=STEPS // 2, style="per-layer"),
        "DOPE": training(assist="dope"),
        "AdaDPS": training(assist="adadps"),
        "weight multiplicity": training(assist="weights", views=Views(AUGMENT, base=2, classes=2)),
        "mixtures by Poisson": rows(Poisson(50, 200, STEPS)),
        "mixtures by class": rows(round_robin(5 * STEPS, rates=[RATE] * 5)),
        "several classes a row": rows(_several(classes=200, one_in=5)),
        "hierarchical": lambda canaries, rng: _hierarchical(budget, canaries, rng),
        "moments": lambda canaries, rng: moments_scores(
            _sigma(budget, 1.0, 1), Trials.of(canaries, together=40, rng=rng)
        ),
        "DP-MERF": synthesis(Merf(size=20)),
        "DP-HP": synthesis(Hermite(products=10)),
        "P3GM": synthesis(P3GM(latent=20)),
        "private head": lambda canaries, rng: _head_scores(
            _sigma(budget, 1.0, HEAD_STEPS), Trials.of(canaries, together=200, rng=rng)
        ),
    }


@cache
def _sigma(budget: Budget, rate: float, steps: int) -> float:
    return calibrate.sigma(budget, rate=rate, steps=steps)


def _several(*, classes: int, one_in: int) -> Scheduled:
    """A schedule with every class in STEPS rows and several classes in each row, so that labels are noisy."""
    row, kind = np.arange(one_in * STEPS)[:, None], np.arange(classes)[None]
    return Scheduled((row + kind) % one_in == 0, (RATE,) * classes)


def _hierarchical(budget: Budget, canaries: int, rng: CanaryRandom) -> Scores:
    """Scores of the attack on secret class draws, at our sound noise, sampled from their exact distribution.

    Its runs are too long to be run one by one.
    """
    setting = hierarchical.scheduled(hierarchical.setting(records=2000, classes=10, mixed=16, drawn=3, rows=400))
    sigma = hierarchical.sound_sigma(setting, budget)
    worlds = hierarchical.attack(setting, sigma * rng.noise).scores(canaries // 2, rng.public(0))
    claimed = ClassScheduled(sigma, (setting.rate,), (setting.rows,))
    draws = canaries // 2 * setting.rows * setting.chance * setting.rate
    return Scores(*worlds, claimed, hierarchical.attack(setting, sigma).mu(), draws)


def _head_scores(sigma: float, trials: Trials) -> Scores:
    """Scores of canaries in a private head of two classes, trained by gradient descent; canaries are of the second.

    The method is adaptive: the adversary runs it again on all canaries, answers each sum with the noisy sum that was
    released, and so learns what each canary adds.
    """
    canaries = trials.canaries
    head = HeadSetup.of("gd", {"steps": HEAD_STEPS, "clip": 0.1})
    claimed, exposure = Gaussian(sigma, head.releases), Exposure(1.0, sigma, head.releases)
    everyone = Rows.of(np.eye(canaries), np.ones(canaries, np.int64), head.preparation, classes=2)

    def score_run(run: CanaryRun) -> Floats:
        inside = Rows.of(np.eye(canaries)[run.inside], np.ones(run.inside.sum(), np.int64), head.preparation, classes=2)
        event = Gaussian(sigma * trials.rng.noise, head.releases)
        gate = Gate(run.charge(event, run.name), run.key, EveryRecord(event.count), name=run.name)
        released: list[Floats] = []
        z: list[Floats] = []

        def release(bounded: BoundedSum) -> Floats:
            released.append(gate.next(bounded))
            return released[-1]

        def answer_again(bounded: BoundedSum) -> Floats:
            noisy = released[len(z)]
            z.append(_project_rows(noisy, bounded))
            return noisy

        head.fit(inside, n=canaries, sigma=event.sigma, add_noise=release, public=None)
        head.fit(everyone, n=canaries, sigma=event.sigma, add_noise=answer_again, public=None)
        return score_releases(np.stack(z), exposure)

    return score_runs(score_run, claimed, exposure, trials)


def _project_rows(noisy: Floats, contributions: BoundedSum) -> Floats:
    """The projection on what each canary added: only canary j has the j-th feature, so row j of the sum is its own."""
    lengths = np.sqrt((contributions.total**2).sum(1))
    projection = (noisy * contributions.total).sum(1) / np.maximum(lengths, 1e-12)
    return np.asarray(projection / contributions.sensitivity)
