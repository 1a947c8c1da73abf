"""The guarantee in numbers: what a card claims about a run, a release or a head, and the accounts that are charged.

claims               status, epsilon with its cross-checks, and the bound on membership inference
meaning              the bound on reconstruction, epsilon for replaced units, and measures of a Gaussian mechanism
epsilon_by_phase     what each phase of a run adds to epsilon
total, ledger_lines  the account of the data set, and its charges
overlaps             other accounts that have some of the same images
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from dpvision.core import accountant, adaptive
from dpvision.core.account import Account
from dpvision.core.events import Adaptive, Capped, Event, PoissonGaussian, Tuned, parts, to_json
from dpvision.errors import DataError
from dpvision.released.report import wording
from dpvision.settings import gdp, quick
from dpvision.settings.meaning import attack_success, furthest, gaussian_mu, replace_one_epsilon
from dpvision.settings.training import Config
from dpvision.storage.home import CHARGED_SHARE

APPROXIMATE = "approximate: central limit, not a bound"
PROFILE_POINTS = 25
# False positive rates at which the card states the bound on attacks.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05)
# Probabilities of guessing a record before the release, at which the card states the bound on reconstruction.
PRIORS = (0.001, 0.01, 0.1, 0.5)
MAX_PHASES = 12
# How a figure was composed, as worded on cards and by `dpvision ledger`.
PLANNED = "privacy loss distributions of events that were fixed before the first result"
CHOSEN_LATER = (
    "the privacy loss distribution of the first event, and a Gaussian filter for later events, which were chosen after "
    "results were seen; the budget is the bound that holds for every choice"
)
CAPPED = (
    "the budget of the account: settings changed during the run, and results may have decided how often; the meter is "
    "the epsilon of the parts that were run"
)

READ_OFF = (
    "The overlaps with other accounts (which of them have some of the same images, and roughly how many) were read "
    "from the data. Epsilon does not cover them."
)
APART = (
    "These images are counted separately from other accounts that have some of them. What is revealed about the shared "
    "images is bounded by all of these accounts together, not by this one."
)


@dataclass(frozen=True)
class Claims:
    """The part of a card that follows from the event and from whether the noise is secret, as plain JSON values."""

    status: str
    noise: str
    guarantee: dict[str, Any]
    attack_success: list[dict[str, float]]


def claims(event: Event, delta: float, *, secret: bool) -> Claims:
    """Return what may be claimed about results of this event: nothing if the noise is not secret."""
    figures, bounds = _figures(event, delta_of(event, delta)), [1.0] * len(FALSE_POSITIVE_RATES)
    if not secret:
        status, figures = wording.FIXED_KEY, {**_no_figures(delta), "if_the_noise_were_secret": figures}
    elif figures["epsilon"] is None:
        status = wording.TOO_LITTLE_NOISE
    else:
        status, bounds = "private", attack_success(event, FALSE_POSITIVE_RATES).tolist()
    attacks = [
        {"false_positive_rate": f, "true_positive_rate_at_most": t}
        for f, t in zip(FALSE_POSITIVE_RATES, bounds, strict=True)
    ]
    return Claims(status, wording.NOISE if secret else wording.FIXED_NOISE, figures, attacks)


def delta_of(event: Event, delta: float) -> float:
    """Return the delta at which epsilon is stated: an account's budget holds at its own delta and no smaller one."""
    return max(delta, event.delta) if isinstance(event, Capped) else delta


def _figures(event: Event, delta: float) -> dict[str, Any]:
    """Return the proven bound, its cross-check, and the approximation; None if no finite value is proven."""
    epsilon = proven(event, delta)
    limit = gdp.central_limit_mu(event)
    return {
        **_no_figures(delta),
        "epsilon": epsilon,
        "mu": None if epsilon is None else _finite(gdp.mu(event, delta)),
        "profile": [] if epsilon is None else _profile(event),
        "rdp_epsilon": _finite(quick.rdp_epsilon(event, delta)),
        "approximate": {
            "gdp_central_limit_mu": _finite(limit),
            "gdp_central_limit_epsilon": _finite(gdp.gaussian_epsilon(limit, delta)) if math.isfinite(limit) else None,
            "label": APPROXIMATE,
        },
        "composition": composition(event),
        "meter": proven(event.event, delta) if isinstance(event, Capped) else None,
    }


def _no_figures(delta: float) -> dict[str, Any]:
    """Return the figures of a card without a guarantee: all keys, none of them with a value."""
    return {
        "epsilon": None,
        "delta": delta,
        "mu": None,
        "profile": [],
        "rdp_epsilon": None,
        "approximate": {"gdp_central_limit_mu": None, "gdp_central_limit_epsilon": None, "label": APPROXIMATE},
        "composition": None,
        "meter": None,
        "accountant": accountant.NAME,
        "dp_accounting_version": version("dp-accounting"),
    }


def composition(event: Event) -> str:
    """Return how the figures of an event were composed, in words."""
    if isinstance(event, Capped):
        return CAPPED
    return CHOSEN_LATER if isinstance(event, Adaptive) else PLANNED


def software() -> dict[str, str]:
    """Return the versions of the software that writes a card."""
    packages = {name: version(name) for name in ("dpvision", "dp-accounting", "numpy")}
    return {**packages, "python": platform.python_version()}


def proven(event: Event, delta: float) -> float | None:
    """Return epsilon at delta, or None if it is too large to mean anything."""
    epsilon = accountant.epsilon(event, delta)
    return epsilon if epsilon < accountant.MAX_LOSS else None


def _profile(event: Event) -> list[list[float]]:
    epsilons = np.linspace(0.0, furthest(event), PROFILE_POINTS).tolist()
    return [[e, d] for e, d in zip(epsilons, accountant.profile(event, epsilons).tolist(), strict=True)]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def meaning(event: Event, delta: float, *, private: bool) -> dict[str, Any]:
    """Return what epsilon means, as plain JSON values; without a guarantee, every attack may succeed.

    mu and rho hold up to the sampler's distance from the ideal Gaussian, which the privacy promise charges to delta.
    """
    mu = gaussian_mu(event) if private else None
    replaced = replace_one_epsilon(event, delta_of(event, delta)) if private else math.inf
    successes = attack_success(event, PRIORS).tolist() if private else [1.0] * len(PRIORS)
    return {
        "reconstruction": [{"prior": p, "success_at_most": s} for p, s in zip(PRIORS, successes, strict=True)],
        "replace_one_epsilon": replaced if replaced < accountant.MAX_LOSS else None,
        "gaussian": None if mu is None else {"mu": mu, "zcdp_rho": mu**2 / 2},
    }


def epsilon_by_phase(event: Event, config: Config, *, before: int) -> list[dict[str, Any]]:
    """Return the phases in order: name, steps, and cumulative epsilon at the end of each.

    The first `before` events are those of the initial weights; then come the feature mean, the head alone, and all
    weights. A run resumed with different settings has one more phase per branch.
    """
    own = list(parts(event))
    phases: list[dict[str, Any]] = []
    done: list[list[Event]] = []
    if before:
        done += [[own.pop(0)] for _ in range(before)]
        phases.append(_phase("initial weights, trained privately", None, done, config.delta))
    step, heads = 0, [config.probe_steps, *range(1, 1 + len(_means(config)))]
    for part in own:
        if not isinstance(part, PoissonGaussian):
            return []
        cuts = sorted({step, step + part.steps, *(c for c in heads if step < c < step + part.steps)})
        done.append([])
        for first, end in pairwise(cuts):
            done[-1].append(replace(part, steps=end - first))
            phases.append(_phase(_phase_from(config, first), end - first, done, config.delta))
        step += part.steps
    return phases if len(phases) <= MAX_PHASES else []


def _phase(name: str, steps: int | None, done: list[list[Event]], delta: float) -> dict[str, Any]:
    so_far = proven(adaptive.compose([_merge_steps(part) for part in done], delta), delta)
    return {"name": name, "steps": steps, "epsilon_so_far": so_far}


def _merge_steps(events: list[Event]) -> Event:
    """Merge consecutive steps of one mechanism into one event, as the card counts them."""
    first = events[0]
    if not isinstance(first, PoissonGaussian):
        return first
    return replace(first, steps=sum(event.steps for event in events if isinstance(event, PoissonGaussian)))


def _phase_from(config: Config, first: int) -> str:
    """Return the name of the phase that begins with this step."""
    if first < config.probe_steps:
        return "the head first"
    if first < len(_means(config)):
        return _means(config)[first]
    return {
        "centred-head": "the head",
        "all": "all weights",
        "head": "the head",
        "probe": "head and norm",
        "bias": "biases",
    }[config.part]


def _means(config: Config) -> list[str]:
    """Return what the first steps estimate, one each, before any part is trained."""
    means = {
        "mean of the features": config.part == "centred-head",
        "shares of the classes": config.objective == "balanced",
    }
    return [name for name, wanted in means.items() if wanted]


def epsilon_of_head(own: tuple[Event, ...], config: Config, whole: float | None) -> dict[str, Any] | None:
    """Return the epsilon of the steps that train the head alone, and its share of the whole run's epsilon.

    Epsilon is None if settings changed during the run: a branch is also charged for steps that were never taken.
    """
    if not config.probe_steps:
        return None
    alone = None
    if len(own) == 1:
        if not isinstance(own[0], PoissonGaussian):
            raise DataError("the run's event does not consist of steps, so the epsilon of its first steps is unknown.")
        alone = proven(replace(own[0], steps=min(own[0].steps, config.probe_steps)), config.delta)
    share = alone / whole if alone is not None and whole else None
    return {"steps": config.probe_steps, "epsilon": alone, "share_of_epsilon": share}


def total(account: Account | None) -> dict[str, Any] | None:
    """Return the total of all runs on the data, as shown on a card; None if no ledger was read."""
    if account is None:
        return None
    return {
        "account": account.id,
        "epsilon_spent": proven(account.total, account.budget.delta),
        "epsilon_budget": account.budget.epsilon,
        "delta": account.budget.delta,
        "charges": len(account.charges),
        "composition": composition(account.total),
        "budget_changes": budget_changes(account),
    }


def budget_changes(account: Account) -> list[dict[str, Any]]:
    """Return the budgets that replaced the first one, each with its time."""
    return [{"time": _time(t, account), "epsilon": b.epsilon, "delta": b.delta} for t, b in account.budgets[1:]]


def ledger_lines(account: Account) -> list[dict[str, Any]]:
    """Return one line per charge, for ledger.jsonl, which anyone may read.

    `epsilon` is cumulative up to this charge, at the budget's delta. It measures how much of the budget is used; the
    guarantee for all charges together is the budget itself. The data's fingerprint and the charge's id, which is
    derived from it, are left out.
    """
    return [
        {
            "time": _time(charge.time, account),
            "run": charge.run,
            "event": to_json(charge.event),
            "private": charge.private,
            **({} if charge.new_account is None else {"new_account": charge.new_account}),
            "epsilon": proven(account.total_after(count), account.budget.delta),
        }
        for count, charge in enumerate(account.charges, 1)
    ]


def _time(time: str, account: Account) -> str:
    """Return a time of an account, but only its date if a tuning was charged: how long that took, up to the next charge
    or change of the budget, would reveal the number of trials."""
    tuned = any(isinstance(charge.event, Tuned) for charge in account.charges)
    return time[:10] if tuned else time


def overlaps(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card lists about other accounts, as plain JSON values."""
    return {"overlapping_accounts": _overlaps(facts), "new_account": _reason(facts)}


def not_covered_by_accounts(facts: Mapping[str, Any], account: Account | None) -> list[str]:
    """Return what epsilon does not cover because of other charges and accounts, in sentences."""
    entries = _overlaps(facts)
    apart = any(not entry["charged"] for entry in entries)
    return [*_fixed_keys(facts["run"], account), *([READ_OFF] if entries else []), *([APART] if apart else [])]


def _fixed_keys(run: str, account: Account | None) -> list[str]:
    """List fixed-key runs on the same data: they invalidate the data set's total, not this run's guarantee."""
    others = sorted({c.run for c in account.charges if not c.private and c.run != run}) if account else []
    if not others:
        return []
    names = ", ".join(others[:5])
    return [f"The total of the data set does not hold if a run with a fixed key is released as well: {names}."]


def _overlaps(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the overlaps that a card lists: accounts that were charged, or that the owner keeps separate.

    They are computed from the data without noise, so shares are rounded, and only the operator sees smaller overlaps.
    """
    recorded = _recorded(facts)
    entries = recorded.get("overlaps", [])
    types = {"account": (str,), "share": (int, float), "share_of_account": (int, float), "charged": (bool,)}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(type(entry.get(key)) in kinds for key, kinds in types.items())
        for entry in entries
    ):
        raise DataError("operator/run.json: its entry accounts is not valid. Fix: restore the file from a backup.")
    decided = recorded.get("new_account") is not None or recorded.get("named") is True
    return [
        {
            "account": entry["account"],
            "share": _round_share(entry["share"]),
            "share_of_account": _round_share(entry["share_of_account"]),
            "charged": entry["charged"],
        }
        for entry in entries
        if entry["charged"] or (decided and max(entry["share"], entry["share_of_account"]) >= CHARGED_SHARE)
    ]


def _round_share(share: float) -> str:
    for limit, words in ((0.02, "below 2%"), (0.1, "2% to 10%"), (0.5, "10% to 50%"), (0.9, "50% to 90%")):
        if share < limit:
            return words
    return "more than 90%"


def _reason(facts: Mapping[str, Any]) -> str | None:
    """Return why these images are accounted for separately from other accounts, in the owner's words."""
    reason = _recorded(facts).get("new_account")
    if reason is not None and not isinstance(reason, str):
        raise DataError("operator/run.json: its entry new_account is not valid. Fix: restore the file from a backup.")
    return reason


def _recorded(facts: Mapping[str, Any]) -> dict[str, Any]:
    entry = facts.get("accounts")
    return entry if isinstance(entry, dict) else {}
