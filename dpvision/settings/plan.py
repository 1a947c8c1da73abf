"""Compute plans and missing settings from public numbers only: noise, steps, batch, epsilon, learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpvision.core import accountant
from dpvision.core.events import Budget, PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.settings import auto, calibrate, gdp, meaning, quick
from dpvision.settings.figures import describe, round_down
from dpvision.settings.recipes import release_recipe
from dpvision.settings.release import with_changes
from dpvision.settings.symmetry import with_symmetry
from dpvision.settings.training import HEAD_ON_FEATURES, Config

# Default number of noisy sums of a head on features: the mean row, and then steps or one vector of class statistics.
HEAD_SUMS = {"descent": 100, "newton": 21, "moments": 2, "lda": 2}
# Descent: the noise allowed in the final weights, for rows of norm 1 and scores that are logits; and the largest
# learning rate. Along a row of norm 1, the loss has curvature at most 1/2, so plain descent is stable up to 4.
NOISE_OF_SCORES, LARGEST_RATE = 0.5, 4.0


def plan(
    *,
    n: int,
    batch: int | None = None,
    steps: int | None = None,
    epsilon: float | None = None,
    sigma: float | None = None,
    delta: float = 1e-5,
    attack_success: float | None = None,
    at_fpr: float = 0.01,
    confirm: bool = False,
) -> dict[str, Any]:
    """Solve for whichever of sigma, epsilon, steps and batch is missing.

    given                       solved for
    epsilon, not sigma          the smallest sigma (batch and steps have defaults)
    sigma, not epsilon          epsilon
    attack_success              epsilon: the largest with which no membership test with false positive rate `at_fpr`
                                finds a larger share of the members, for this batch and number of steps
    both, not steps             the largest number of steps
    both and steps, not batch   the largest expected batch
    all four                    an error: nothing is missing
    """
    _require_counts(n, batch, steps)
    if attack_success is not None:
        if epsilon is not None or sigma is not None:
            raise ConfigError("--attack-success computes epsilon and the noise. Fix: leave --epsilon and --sigma out.")
        batch = default_batch(n) if batch is None else batch
        steps = default_steps(n, batch) if steps is None else steps
        epsilon = _epsilon_for_attack(attack_success, at_fpr, rate=batch / n, steps=steps, delta=delta)
        answer = plan(n=n, batch=batch, steps=steps, epsilon=epsilon, delta=delta, confirm=confirm)
        event, by = PoissonGaussian(batch / n, answer["sigma"], steps), accountant if confirm else quick
        success = float(meaning.attack_success(event, [at_fpr], by=by)[0])
        return {**answer, "epsilon": epsilon, "solved_for": "epsilon", "at_fpr": at_fpr, "attack_success": success}
    if epsilon is None and sigma is None:
        raise ConfigError(
            "plan needs --epsilon or --attack-success (to compute the noise), or --sigma (to compute epsilon)."
        )
    solved_for = "epsilon" if epsilon is None else "sigma" if sigma is None else "steps" if steps is None else "batch"
    if solved_for == "batch" and batch is not None:
        raise ConfigError("batch, steps, sigma and epsilon are all given. Fix: leave out the one to compute.")
    budget = Budget(1.0 if epsilon is None else epsilon, delta)
    if solved_for == "batch":
        assert sigma is not None and steps is not None
        if quick.epsilon(PoissonGaussian(1 / n, sigma, steps), delta) > budget.epsilon:
            raise ConfigError(
                f"even an expected batch of 1 in {n:,} exceeds epsilon {budget.epsilon:g} at sigma {sigma:g} and "
                f"{steps:,} steps. Fix: use more noise, fewer steps, or a larger epsilon."
            )
        batch = max(1, int(calibrate.rate(budget, sigma=sigma, steps=steps, confirm=confirm) * n))
    batch = default_batch(n) if batch is None else batch
    rate = batch / n
    if solved_for == "steps":
        assert sigma is not None
        steps = calibrate.steps(budget, sigma=sigma, rate=rate, confirm=confirm)
    steps = default_steps(n, batch) if steps is None else steps
    if sigma is None:
        sigma = calibrate.sigma(budget, rate=rate, steps=steps, confirm=confirm)
    return _answer(n, batch, PoissonGaussian(rate, sigma, steps), delta, solved_for=solved_for, confirm=confirm)


def _require_counts(n: int, batch: int | None, steps: int | None) -> None:
    if n < 1:
        raise ConfigError(f"n is {n}: the number of units must be at least 1.")
    if batch is not None and not 0 < batch <= n:
        raise ConfigError(f"batch is {batch} and n is {n}: it must be 0 < batch <= n.")
    if steps is not None and steps < 1:
        raise ConfigError(f"steps is {steps}: it must be at least 1.")


def _epsilon_for_attack(success: float, chance: float, *, rate: float, steps: int, delta: float) -> float:
    """Return the largest epsilon, rounded down as for `--epsilon`, that keeps the success of attacks at most here."""
    if not 0 < chance < success < 1:
        raise ConfigError(
            f"--attack-success is {success:g} and --at-fpr is {chance:g}: both must be between 0 and 1, and the "
            "success must be the larger one, since guessing succeeds as often as it is wrong. "
            "Fix: use --attack-success 0.05 --at-fpr 0.01."
        )
    sigma = calibrate.sigma_for_attack(success, chance=chance, rate=rate, steps=steps)
    epsilon = round_down(quick.epsilon(PoissonGaussian(rate, sigma, steps), delta))
    if not 0 < epsilon < math.inf:
        raise ConfigError(
            f"no epsilon at delta {delta:g} keeps the success of attacks at {success:g}. Fix: use a larger "
            "--attack-success, or another --delta."
        )
    return epsilon


def scaled_down(answer: dict[str, Any], factor: float) -> dict[str, Any]:
    """Plan a cheap rehearsal on public data: batch and sigma are divided by `factor`.

    The noise of a mean gradient, sigma / batch, and the number of steps stay the same. Only epsilon changes: it becomes
    much larger. Settings are chosen this way on public data and then used at full size (Sander et al. 2023, TAN).
    """
    if not factor >= 1:
        raise ConfigError(f"scale-down is {factor:g}: it must be at least 1.")
    batch = max(1, round(answer["batch"] / factor))
    sigma = answer["sigma"] * batch / answer["batch"]
    event = PoissonGaussian(batch / answer["n"], sigma, answer["steps"])
    epsilon = quick.epsilon(event, answer["delta"])
    if math.isfinite(epsilon):
        command = f"dpvision train PUBLIC --n {answer['n']} --epsilon {math.ceil(epsilon) + 1} --batch {batch} "
        command += f"--steps {answer['steps']} --sigma {sigma!r}"
    else:
        command = "none: with this little noise no epsilon can be proven, and every training run needs one"
    return {
        "batch": batch,
        "sigma": sigma,
        "steps": answer["steps"],
        "noise_of_the_mean": sigma / batch,
        "epsilon": epsilon,
        "command": command,
        "note": "for public data only: this little noise does not protect private data",
    }


def _answer(
    n: int, batch: int, event: PoissonGaussian, delta: float, *, solved_for: str, confirm: bool
) -> dict[str, Any]:
    epsilon = quick.epsilon(event, delta)
    approximate = gdp.central_limit_mu(event)
    answer: dict[str, Any] = {
        "n": n,
        "batch": batch,
        "sample_rate": event.rate,
        "steps": event.steps,
        "sigma": event.sigma,
        "epsilon": epsilon,
        "delta": delta,
        "mu": gdp.mu_of_curve(lambda epsilons: quick.profile(event, epsilons), epsilon),
        "passes": event.steps * event.rate,
        "solved_for": solved_for,
        "accountant": "dpvision quick PLD, an upper bound; a run is charged by dp-accounting's PLD (--confirm)",
        "approximate": {
            "label": "approximate: central limit, not a bound",
            "mu": approximate,
            "epsilon": gdp.gaussian_epsilon(approximate, delta),
        },
    }
    if confirm:
        answer |= {
            "accountant": accountant.NAME,
            "quick_epsilon": epsilon,
            "epsilon": accountant.epsilon(event, delta),
            "mu": gdp.mu(event, delta),
            "rdp_epsilon": quick.rdp_epsilon(event, delta),
        }
    return answer


def plan_release(
    recipe: str,
    *,
    n: int,
    epsilon: float,
    classes: int,
    rows: int | None = None,
    degree: float | None = None,
    delta: float = 1e-5,
    confirm: bool = False,
) -> dict[str, Any]:
    """Compute the degree, the noise and the guarantee of a release by this recipe, from public numbers.

    Epsilon is the quick accountant's bound or, with `confirm`, that of dp-accounting, which a release uses.
    """
    given = {"n": n, "epsilon": epsilon, "delta": delta, "rows": rows, "degree": degree}
    settings = with_changes(release_recipe(recipe), {k: v for k, v in given.items() if v is not None})
    whole = settings.complete(n, classes, channels=1, confirm=confirm)
    assert whole.sigma
    event = whole.event(whole.sigma, classes)
    answer = {
        "recipe": recipe,
        "n": whole.n,
        "classes": classes,
        "rows": whole.rows,
        "degree": whole.degree,
        "sigma": whole.sigma,
        "epsilon": accountant.epsilon(event, delta) if confirm else quick.epsilon(event, delta),
        "delta": delta,
        "charged": describe(event),
        "approximate_epsilon_by_central_limit": gdp.gaussian_epsilon(gdp.central_limit_mu(event), delta),
    }
    return {k: v for k, v in answer.items() if v is not None}


def plan_training(of: auto.Numbers, *, width: Callable[[str], int], confirm: bool = False) -> dict[str, Any]:
    """Compute what a training run without further settings does with these numbers: its recipe, and the noise."""
    _require_counts(of.n, None, None)
    config = Config(n=of.n, epsilon=of.epsilon, delta=of.delta)
    config = auto.fit(auto.resolve(config, of, width=width), of.n)
    batch = of.n if config.full_batch else default_batch(of.n) if config.batch is None else config.batch
    steps = default_steps(of.n, batch) if config.steps is None else config.steps
    answer = plan(n=of.n, batch=batch, steps=steps, epsilon=of.epsilon, delta=of.delta, confirm=confirm)
    return {"recipe": config.recipe, "model": _model_of(config, of.n), "chosen_by": config.chosen_by, **answer}


def complete(config: Config, n: int) -> Config:
    """Compute the settings that are None, from the number of units alone."""
    n = n if config.n is None else config.n
    if n < 2:
        raise ConfigError(f"n is {n}: private training needs at least 2 units.")
    if config.head is not None:
        return _complete_head(config, n)
    config = auto.fit(config, n)
    model = _model_of(config, n)
    prior = config.prior or ("patches" if model.startswith("patches-") and not config.pretrained else None)
    batch = n if config.full_batch else default_batch(n) if config.batch is None else config.batch
    if batch > n:
        raise ConfigError(
            f"batch is {batch} and n is {n}: the expected batch cannot exceed n. Fix: use --batch {default_batch(n)}."
        )
    _require_small_delta(config, n)
    steps = default_steps(n, batch) if config.steps is None else config.steps
    sigma = config.sigma
    if sigma is None:
        sigma = calibrate.sigma(Budget(config.epsilon, config.delta), rate=batch / n, steps=steps)
    lr = config.lr
    if config.final_noise is not None:
        lr = learning_rate_for_noise(
            config.final_noise, config.momentum, sigma=sigma * config.clip / batch, steps=steps
        )
    whole = replace(
        config, n=n, model=model, prior=prior, batch=batch, steps=steps, sigma=sigma, lr=lr, final_noise=None
    )
    if config.probe_share is not None:
        whole = replace(whole, probe_share=None, probe_steps=steps_within_share(config.probe_share, whole))
        if config.probe_share and not whole.probe_steps:
            raise ConfigError(
                f"probe_share is {config.probe_share:g}: a single step already uses more than that share of epsilon. "
                "Fix: use a larger share, or --probe-steps."
            )
    if whole.probe_steps > steps:
        raise ConfigError(
            f"probe_steps is {whole.probe_steps}, but there are only {steps} steps. Fix: use a smaller --probe-steps."
        )
    return whole


def _model_of(config: Config, n: int) -> str:
    """Return the model that was chosen, or else that of the recipe, with the symmetry that was chosen."""
    model = config.model or ("patches-1024" if config.prior or config.recipe == "patches" else default_model(n))
    return with_symmetry(model, config.symmetry)


def _require_small_delta(config: Config, n: int) -> None:
    if config.delta * n >= 1:
        raise ConfigError(
            f"delta is {config.delta:g} and n is {n}: a delta of 1/n or more would allow disclosing a unit completely. "
            f"Fix: use a --delta well below {1 / n:.2g}, such as 1e-5."
        )


def _complete_head(config: Config, n: int) -> Config:
    """Compute the settings of a head on features of `n` images; every image is in every noisy sum."""
    _require_small_delta(config, n)
    if config.symmetry is not None:
        raise ConfigError("symmetry: the rows are features already. Fix: leave --symmetry out.")
    head = config.head
    if config.task != "classes" and head in ("moments", "lda"):
        raise ConfigError(
            f"head is {head!r}, which needs one class per row, but task is {config.task!r}. Fix: use --head descent."
        )
    if head == "auto" and config.task != "classes" and not config.synthetic:
        head = "descent"
        config = replace(config, chosen_by=f"auto: the task is {config.task}: descent")
    elif head == "auto":
        head, reason = auto.choose_head(n=n, epsilon=config.epsilon, public=bool(config.synthetic))
        config = replace(config, chosen_by=f"auto: {reason}")
    assert head in HEAD_SUMS
    steps = HEAD_SUMS[head] if config.steps is None else config.steps
    counted = config.objective == "balanced" and head in ("descent", "newton")  # one more sum, of class counts
    if steps < 2 + counted or (HEAD_SUMS[head] == 2 and steps != 2):
        raise ConfigError(
            f"steps is {steps}: the first noisy sum of a head is the mean row, and {head} needs "
            f"{'exactly one more' if HEAD_SUMS[head] == 2 else 'at least one more'}. Fix: leave --steps out."
        )
    if head == "newton" and not config.synthetic:
        raise ConfigError(
            "head is 'newton', which needs features of public images. Fix: use --public FILE.npz with "
            "train_features, or --head descent."
        )
    if config.synthetic and head in ("descent", "moments"):
        raise ConfigError(f"public features are given, but {head} does not use any. Fix: leave --public or --head out.")
    sigma = calibrate.sigma(Budget(config.epsilon, config.delta), rate=1.0, steps=steps)
    lr, momentum = 1.0, 0.0
    if head == "descent":
        noise, momentum = sigma * min(config.clip, math.sqrt(2.0)) / n, 0.9
        lr = min(LARGEST_RATE, learning_rate_for_noise(NOISE_OF_SCORES, momentum, sigma=noise, steps=steps - 1))
    return replace(
        config, head=head, model=HEAD_ON_FEATURES, n=n, full_batch=True, batch=n, steps=steps, sigma=sigma,
        lr=lr, momentum=momentum, final_noise=None,
    )  # fmt: skip


def default_model(n: int) -> str:
    """Return a linear model for few units, where the noise on many weights would dominate (benchmarks/RESULTS.md)."""
    return "linear" if n < 5000 else "small-cnn"


def default_batch(n: int) -> int:
    """Return half of the number of units, at most 4096."""
    return max(1, min(n // 2, 4096))


def default_steps(n: int, batch: int) -> int:
    """Return the number of steps in 50 expected passes, or in 30 if there are many units and more would gain little."""
    return max(1, round((50 if n < 5000 else 30) * n / batch))


def learning_rate_for_noise(wanted: float, momentum: float, *, sigma: float, steps: int) -> float:
    """Return the lr for which lr / (1 - momentum) * sigma * sqrt(steps) is `wanted`, if a gradient has noise `sigma`.

    Panda et al. 2022 (arXiv 2212.04486): the best total learning rate grows linearly in epsilon; this one grows
    linearly in n / sigma.
    """
    return wanted * (1 - momentum) / (sigma * math.sqrt(steps))


def steps_within_share(share: float, config: Config) -> int:
    """Return the largest number of steps that use at most this share of the epsilon of the whole training run."""
    assert config.batch and config.n and config.sigma and config.steps
    event = PoissonGaussian(config.batch / config.n, config.sigma, config.steps)
    most = share * quick.epsilon(event, config.delta)
    low, high = 0, config.steps
    while low < high:
        middle = (low + high + 1) // 2
        fits = quick.epsilon(replace(event, steps=middle), config.delta) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low
