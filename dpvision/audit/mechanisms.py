"""Every mechanism of the project with canaries in it, at one budget: for tests and benchmarks of the claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from dpvision.audit import hierarchical
from dpvision.audit.canaries import CanaryRandom, Scores
from dpvision.audit.release_canaries import head_scores, mixture_scores, moments_scores, synthesis_scores
from dpvision.audit.training_canaries import Training, training_scores
from dpvision.core.events import Budget, ClassScheduled
from dpvision.core.sampling import Poisson, PoissonSampler, Scheduled
from dpvision.private.statistics.baselines.fourier import Merf
from dpvision.private.statistics.baselines.hermite import Hermite
from dpvision.private.statistics.baselines.p3gm import P3GM
from dpvision.private.statistics.baselines.setup import Method
from dpvision.settings import calibrate
from dpvision.settings.release import round_robin
from dpvision.views import Views

RATE, STEPS, HEAD_STEPS = 0.25, 8, 5
AUGMENT = ("crop", "flip")
# (how many canaries in all, coins) -> their scores
Audit = Callable[[int, CanaryRandom], Scores]


def mechanisms(budget: Budget) -> Mapping[str, Audit]:
    """By name. Each is calibrated to the budget, and takes about a second for 10,000 canaries; views take ten."""

    def sigma() -> float:
        return _sigma(budget, RATE, STEPS)

    def training(*, style: str = "flat", views: Views | None = None, assist: str = "none", over: int = STEPS) -> Audit:
        together = 500 if views is None else 100

        def scores(canaries: int, rng: CanaryRandom) -> Scores:
            sampler = PoissonSampler(10, 40, STEPS)
            made = Training(sampler, sigma(), clip=0.5, style=style, views=views, assist=assist, hand_over=over)
            return training_scores(made, canaries=together, runs=-(-canaries // together), rng=rng)

        return scores

    def rows(rule: Poisson | Scheduled) -> Audit:
        return lambda canaries, rng: mixture_scores(
            rule, sigma(), degree=50.0, canaries=200, runs=-(-canaries // 200), rng=rng
        )

    def synthesis(method: Method) -> Audit:
        return lambda canaries, rng: synthesis_scores(
            _sigma(budget, 1.0, method.releases), method=method, canaries=20, runs=-(-canaries // 20), rng=rng
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
            _sigma(budget, 1.0, 1), canaries=40, runs=-(-canaries // 40), rng=rng
        ),
        "DP-MERF": synthesis(Merf(size=20)),
        "DP-HP": synthesis(Hermite(products=10)),
        "P3GM": synthesis(P3GM(latent=20)),
        "private head": lambda canaries, rng: head_scores(
            _sigma(budget, 1.0, HEAD_STEPS),
            canaries=200,
            runs=-(-canaries // 200),
            rng=rng,
            steps=HEAD_STEPS,
            clip=0.1,
        ),
    }


@cache
def _sigma(budget: Budget, rate: float, steps: int) -> float:
    return calibrate.sigma(budget, rate=rate, steps=steps)


def _several(*, classes: int, one_in: int) -> Scheduled:
    """Every class in STEPS rows, each row about one class in `one_in`: labels are noisy then."""
    row, kind = np.arange(one_in * STEPS)[:, None], np.arange(classes)[None]
    return Scheduled((row + kind) % one_in == 0, (RATE,) * classes)


def _hierarchical(budget: Budget, canaries: int, rng: CanaryRandom) -> Scores:
    """The attack on class coins (hierarchical.py), its noise by our account: its law is exact, and drawn from."""
    setting = hierarchical.scheduled(hierarchical.setting(records=2000, classes=10, mixed=16, drawn=3, rows=400))
    sigma = hierarchical.sound_sigma(setting, budget)
    drawn = hierarchical.attack(setting, sigma * rng.noise).scores(canaries // 2, rng.public(0))
    claimed = ClassScheduled(sigma, (setting.rate,), (setting.rows,))
    often = canaries // 2 * setting.rows * setting.chance * setting.rate
    return Scores(*drawn, claimed, hierarchical.attack(setting, sigma).mu(), often)
