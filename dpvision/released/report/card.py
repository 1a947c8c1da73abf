"""The machine-readable card: the guarantee of a finished run, what it rests on, and what it does not cover.

What can be said before the weights are written, `on_weights`, is in their header too; card.schema.json describes both.
"""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any

from dpvision.core.events import (
    Capped,
    Composed,
    Event,
    Exposure,
    Kind,
    PoissonGaussian,
    apart,
    exposures,
    from_json,
    parts,
    to_json,
)
from dpvision.core.ledger import Account
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.released.report import attack, audits, by_hand, guarantee, overlaps, reference, spent, tested, wording
from dpvision.released.report.metrics import last_accuracy, read
from dpvision.settings.setting import to_dict
from dpvision.settings.training import Config
from dpvision.storage import sealed
from dpvision.storage.run_folder import NOT_PRIVATE, Run

FORMAT, FORMAT_ON_WEIGHTS = "dpvision-card-1", "dpvision-card-on-weights-1"
NOISE = "AES-256-CTR keyed by 32 bytes of operating system entropy; grid-rounded"
FIXED_NOISE = "AES-256-CTR keyed by a fixed text, which anyone can compute again; grid-rounded"


def card(run: Run, account: Account | None) -> dict[str, Any]:
    """All that a card says, as plain JSON values. `account` is the ledger of the data set, where there is one."""
    facts, config = _facts(run), run.config()
    event, classes = from_json(facts["event"]), len(facts["class_names"])
    weights = _bound_to_weights(run, facts, config)
    own = _own(run.operator / "run.json", event, facts["public"])
    if account is not None:
        _require_charged(run, facts["run"], event=Composed(own), account=account)
    proved = _proved(facts, config, event)
    hand = by_hand.chosen(config)
    return {
        "format": FORMAT,
        "run": facts["run"],
        **proved,
        "licence": config.licence,
        "known_data_set": reference.known(facts["data"], n=config.n, shape=facts["shape"], classes=classes),
        "public_facts": _public_facts(facts, config),
        "probe": _probe(own, config, proved["guarantee"]["epsilon"]),
        "phases": spent.phases(event, config, before=len(parts(event)) - len(own))
        if proved["status"] == "private"
        else [],
        "audit": audits.figures(audits.of_run(run.folder, event, config)),
        "data_set": data_set(account),
        **overlaps.on_card(run.facts()),
        "accuracy": last_accuracy(read(run), release=config.release),
        "evaluation": tested.summary(tested.read(run, classes=classes, weights=weights)),
        "chosen_by_hand": hand,
        "not_covered": wording.not_covered(
            unit=config.unit,
            read_off=facts["read_off"],
            public=facts["public"],
            fixed_key=facts["private"] is not True,
            ledger=account is not None,
            branches=len(own),
            whole=len(own) < 2 or isinstance(event, Capped),
            tuned=facts["tuning"] is not None,
            pictures=bool(tested.examples(run, classes=classes, weights=weights)),
            public_licence=config.public_licence,
            by_hand=hand,
            recipe=config.recipe,
        )
        + wording.other_fixed_keys(facts["run"], account)
        + overlaps.not_covered(run.facts()),
        "config": to_dict(config),
        "weights_digest": weights,
    }


def on_weights(facts: dict[str, Any], config: Config) -> dict[str, Any]:
    """What the weights say of themselves: the guarantee, without what may change later or names the run."""
    facts = _checked(facts, Path("run.json"))
    return {"format": FORMAT_ON_WEIGHTS, **_proved(facts, config, from_json(facts["event"]))}


def _proved(facts: dict[str, Any], config: Config, event: Event) -> dict[str, Any]:
    """The guarantee and the mechanism that it is about."""
    secret = facts["private"] is True  # anything else, and the card claims nothing
    delta = max(config.delta, event.delta) if isinstance(event, Capped) else config.delta
    figures = guarantee.figures(event, delta)
    bounds = [1.0] * len(attack.FALSE_POSITIVE_RATES)
    status = wording.FIXED_KEY
    if secret and figures["epsilon"] is None:
        status = wording.TOO_LITTLE_NOISE
    elif secret:
        status = "private"
        bounds = attack.most_true_positives(event, attack.FALSE_POSITIVE_RATES).tolist()
    else:
        figures = {**guarantee.no_figures(config.delta), "if_the_noise_were_secret": figures}
    return {
        "status": status,
        "unit": config.unit,
        "adjacency": wording.ZERO_OUT if f"number of {config.unit}s" in facts["read_off"] else wording.ADD_OR_REMOVE,
        "sampler": _sampler(config),
        "public_inputs": facts["public"],
        "mechanism": {
            "clip": config.clip,
            "sigma": config.sigma,
            "views": config.views,
            "noise": NOISE if secret else FIXED_NOISE,
        },
        "events": [to_json(e) for e in (event.events if isinstance(event, Composed) else (event,))],
        "guarantee": figures,
        "attack_success": [
            {"false_positive_rate": f, "true_positive_rate_at_most": t}
            for f, t in zip(attack.FALSE_POSITIVE_RATES, bounds, strict=True)
        ],
        "tuning": wording.tuning(facts["tuning"]),
        "config_hash": config.hash(),
        "software": software(),
    }


def _facts(run: Run) -> dict[str, Any]:
    """The facts that a card may use, and no others; checked, for the file can be edited."""
    facts = run.facts()
    if facts.get("complete") is not True:
        fix = "a new tuning: this one can not go on" if "tuning" in facts else f"`dpvision resume {run.folder}`"
        raise ConfigError(f"{run.folder}: the run is not finished, so there is nothing to report. Fix: {fix}.")
    return _checked(facts, run.operator / "run.json")


def _checked(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    kinds = {
        "run": str,
        "data": str,
        "read_off": list,
        "shape": list,
        "class_names": list,
        "event": dict,
        "private": bool,
    }
    for key, kind in kinds.items():
        if not isinstance(facts.get(key), kind):
            raise DataError(f"{path}: {key} is missing or is not a JSON {kind.__name__}.")
    for key in ("read_off", "class_names"):
        if not all(isinstance(v, str) for v in facts[key]):
            raise DataError(f"{path}: {key} must be a list of texts.")
    public, told = _public_inputs(path, facts.get("public", {})), _tuning(path, facts.get("tuning"))
    return {"public": public, "tuning": told, **{key: facts[key] for key in kinds}}


def _tuning(path: Path, found: Any) -> dict[str, Any] | None:
    """What may be told of a tuning; how many trials there were is not among it."""
    if found is None:
        return None
    kinds = {"candidates": int, "expected_trials": float, "score": str}
    if not isinstance(found, dict) or not all(type(found.get(key)) is kind for key, kind in kinds.items()):
        raise DataError(f"{path}: tuning is not what a tuning writes.")
    return {key: found[key] for key in kinds}


def _public_inputs(path: Path, found: Any) -> dict[str, dict[str, Any]]:
    """Weights and images that went in beside the private data, by file name and digest."""
    kinds = {"file": str, "digest": str, "images": int, "event": dict, "learned_from": str}
    named = isinstance(found, dict) and set(found) <= {"pretrained", "prior", "synthetic"}
    if not named or not all(
        isinstance(entry, dict) and all(isinstance(value, kinds.get(key, NoneType)) for key, value in entry.items())
        for entry in found.values()
    ):
        raise DataError(f"{path}: public is not what a run writes.")
    return found


def _bound_to_weights(run: Run, facts: dict[str, Any], config: Config) -> str:
    """The digest of the weights that the card is about; what they say of themselves must be what the run says."""
    header = sealed.read(run.weights).header
    said = {"event": json.dumps(facts["event"]), "config": config.hash(), "delta": repr(config.delta)}
    said["private"] = "yes" if facts["private"] else NOT_PRIVATE
    for key, value in said.items():
        if header.get(key) != value:
            raise DataError(
                f"{run.weights}: its {key} is not the one of the run's other files, so no card can be written. Fix: "
                "restore the run folder from a backup, or train again."
            )
    return header["digest"]


def _own(path: Path, event: Event, public: dict[str, dict[str, Any]]) -> tuple[Event, ...]:
    """What the run itself was charged for, without what its first weights told before: that was charged elsewhere."""
    told = public.get("pretrained", {}).get("event")
    if told is None:
        return parts(event)
    before = parts(from_json(told))
    if parts(event)[: len(before)] != before or len(parts(event)) == len(before):
        raise DataError(f"{path}: its event leaves out what the first weights told.")
    return parts(event)[len(before) :]


def _require_charged(run: Run, name: str, *, event: Event, account: Account) -> None:
    """What the released weights tell must be on the account, step for step; more may be, after a resumed branch."""
    charged = exposures(Composed(tuple(c.event for c in account.charges if c.run == name)))

    def paid(met: Kind) -> bool:
        steps, points = apart(met)
        return any(set(points) <= set(kind) and all(_within(x, kind) for x in steps) for kind in charged)

    if not all(paid(met) for met in exposures(event)):
        raise LedgerMismatch(
            f"{run.folder}: the ledger {account.id} does not charge what this run did. Fix: name the data set that the "
            "run was trained on, or restore its ledger from a backup."
        )


def _within(wanted: Exposure, kind: Kind) -> bool:
    return any(x[:2] == wanted[:2] and x.steps >= wanted.steps for x in apart(kind)[0])


def _public_facts(facts: dict[str, Any], config: Config) -> dict[str, Any]:
    def known(*facts_of: str) -> str:
        return "read off the data" if set(facts_of) & set(facts["read_off"]) else "declared"

    return {
        "n": {"value": config.n, "known": known(f"number of {config.unit}s")},
        "classes": {"value": facts["class_names"], "known": known("classes")},
        "image_shape": {"value": facts["shape"], "known": known("image size", "channels")},
    }


def _probe(own: tuple[Event, ...], config: Config, whole: float | None) -> dict[str, Any] | None:
    """What the steps that learn the head alone are charged for, and its share of the whole run's epsilon.

    None where settings changed on the way: the steps of a branch that were never done are charged, too.
    """
    if not config.probe_steps:
        return None
    alone = guarantee.proven(_first_steps(own[0], config.probe_steps), config.delta) if len(own) == 1 else None
    share = alone / whole if alone is not None and whole else None
    return {"steps": config.probe_steps, "epsilon": alone, "share_of_epsilon": share}


def _first_steps(event: Event, steps: int) -> Event:
    """The first of its steps alone."""
    if not isinstance(event, PoissonGaussian):
        raise DataError("the run's event is not one of steps, so what the first of them told is not known.")
    return replace(event, steps=min(event.steps, steps))


def _sampler(config: Config) -> dict[str, Any]:
    if not (config.batch and config.n and config.steps):
        raise ConfigError("config.toml: batch, n and steps must be there; those of a finished run are.")
    return {
        "name": "Poisson",
        "rate": config.batch / config.n,
        "batch": config.batch,
        "n": config.n,
        "steps": config.steps,
    }


def data_set(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    return {
        "account": account.id,
        "epsilon_spent": guarantee.proven(account.total, account.budget.delta),
        "epsilon_budget": account.budget.epsilon,
        "delta": account.budget.delta,
        "charges": len(account.charges),
        "composition": account.composition,
        "budget_changes": account.budget_changes,
    }


def software() -> dict[str, str]:
    """What made the card."""
    packages = {name: version(name) for name in ("dpvision", "dp-accounting", "numpy")}
    return {**packages, "python": platform.python_version()}
