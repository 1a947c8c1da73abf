"""card.json: the guarantee of a run, of its weights or of a released data set, what it is based on, and its limits.

    card             a finished run: a training run, a tuning run or an estimator's fit
    on_weights       the part that is known before the weights are written; it goes into their header
    release_card     a new released data set
    audited_card     a released data set read from its folder, with its audits

All are plain JSON values with the same core, `_state_guarantee`; card.schema.json describes them. Files that may have
been edited are read strictly.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import NoneType
from typing import Any

from dpvision.audit import audit_file
from dpvision.core import accountant
from dpvision.core.account import Account
from dpvision.core.events import (
    Capped,
    ClassScheduled,
    Composed,
    Event,
    Exposure,
    Gaussian,
    Kind,
    PoissonGaussian,
    exposures,
    from_json,
    parts,
    split_kind,
    to_json,
)
from dpvision.core.sampling import PoissonSampler
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.released import evaluation
from dpvision.released.folder import CARD_FORMAT, FinishedRelease
from dpvision.released.report import guarantee, wording
from dpvision.settings.setting import to_dict
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.run_folder import NOT_PRIVATE, Run

FORMAT, FORMAT_ON_WEIGHTS = "dpvision-card-1", "dpvision-card-on-weights-1"
# What is stated about public weights; older runs have it in their entry public.
STATED = ("origin", "licence")
# The sections and figures of audit.json that are on a card.
AUDITS = ("mechanism", "one_run")
AUDIT_FIGURES = ("epsilon_at_least", "confidence", "canaries", "refuted")
# How a record of a released data set is accounted, by the type of the event.
ACCOUNTS = {
    Gaussian: "every record is in {every}; exact composition of Gaussian mechanisms",
    PoissonGaussian: "each record is in each row by an independent secret draw; privacy loss distribution of the "
    "subsampled Gaussian mechanism",
    ClassScheduled: "per class, with the sampling rate inside the class and the rows of that class only: the classes "
    "of a row are public, because labels and features show them. The published account of hierarchical sampling uses "
    "the rate over all records, and is wrong: docs/hierarchical-sampling.md of dpvision",
}


def card(run: Run, account: Account | None) -> dict[str, Any]:
    """Return the card of a finished run. `account` is that of its data set, if a ledger was read."""
    facts, config = _facts(run), run.config()
    event, classes = from_json(facts["event"]), len(facts["class_names"])
    weights = _require_weights_of(run, facts, config)
    own = _own_events(run.operator / "run.json", event, facts["public"])
    if account is not None:
        _require_charged(run, facts["run"], event=Composed(own), account=account)
    proved = _proved_of_run(facts, config, event)
    private, by_hand = proved["status"] == "private", wording.chosen_by_hand(config)
    before = len(parts(event)) - len(own)
    return {
        "format": FORMAT,
        "run": facts["run"],
        **proved,
        "meaning": guarantee.meaning(event, config.delta, private=private),
        "licence": config.licence,
        "known_data_set": evaluation.known(facts["data"], n=config.n, shape=facts["shape"], classes=classes),
        "public_facts": _public_facts(facts, config),
        "probe": guarantee.epsilon_of_head(own, config, proved["guarantee"]["epsilon"]),
        "phases": guarantee.epsilon_by_phase(event, config, before=before) if private else [],
        "audit": audits_on_card(read_audits(run.folder, event, config)),
        "data_set": guarantee.total(account),
        **guarantee.overlaps(run.facts()),
        "accuracy": evaluation.last_accuracy(evaluation.read_metrics(run), release=config.release),
        "evaluation": evaluation.summary(evaluation.read_evaluation(run, classes=classes, weights=weights)),
        "chosen_by_hand": by_hand,
        "not_covered": wording.not_covered(
            facts,
            config,
            ledger=account is not None,
            branches=len(own),
            bounded=len(own) < 2 or isinstance(event, Capped),
            examples=bool(evaluation.read_examples(run, classes=classes, weights=weights)),
            by_hand=by_hand,
        )
        + ([] if config.head is None else [wording.ON_FEATURES])
        + guarantee.not_covered_by_accounts(run.facts(), account),
        "config": to_dict(config),
        "weights_digest": weights,
    }


def on_weights(facts: dict[str, Any], config: Config) -> dict[str, Any]:
    """Return the part of a run's card that goes into the header of its weights.

    It contains nothing that identifies the run or that may change later.
    """
    facts = _check_facts(facts, Path("run.json"))
    return {"format": FORMAT_ON_WEIGHTS, **_proved_of_run(facts, config, from_json(facts["event"]))}


def release_card(facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """Return the card of a released data set."""
    config, event, secret = facts["config"], from_json(facts["event"]), facts["private"] is True
    return {
        "format": CARD_FORMAT,
        "what": "data set",
        "run": facts["run"],
        "licence": config["licence"],
        "features": facts["features"],
        "image_shape": facts["image_shape"],
        "rows": config["rows"],
        "classes": facts["class_names"],
        "n": config["n"],
        "read_off": facts["read_off"],
        **_proved_of_release(
            event,
            delta=config["delta"],
            secret=secret,
            unit=config["unit"],
            read_off=facts["read_off"],
            mechanism={**facts["mechanism"], "sigma": config["sigma"]},
        ),
        "audit": None,
        "data_set": guarantee.total(account),
        **guarantee.overlaps(facts),
        "accuracy": facts.get("accuracy"),
        "balanced_accuracy": facts.get("balanced_accuracy"),
        "not_covered": wording.not_covered_by_release(facts, fixed_key=not secret)
        + guarantee.not_covered_by_accounts(facts, account),
        "config": config,
        "files": facts["files"],
    }


def audited_card(release: FinishedRelease, account: Account | None = None) -> dict[str, Any]:
    """Return the card of a released folder with its audit.json.

    Claims are recomputed, not taken from the old card. What only the process that made the release knew (what was read
    from the data, the accuracy) is copied, as is the total of the data set, unless its account is given.
    """
    delta = release.settings.delta
    return {
        **release.card,
        "what": "data set",
        "rows": release.settings.rows,
        **_proved_of_release(
            release.event,
            delta=delta,
            secret=release.private,
            unit=release.settings.unit,
            read_off=release.card["read_off"],
            mechanism={**release.card["mechanism"], "sigma": release.sigma},
        ),
        "audit": audits_on_card(read_release_audits(release.folder, release.event, delta)),
        **({} if account is None else {"data_set": guarantee.total(account)}),
        "not_covered": _limits_of_release(release),
    }


def _limits_of_release(release: FinishedRelease) -> list[str]:
    """Return what is not covered: what must be on the card of this release, whatever it has, and then what else it has.

    What the card does not state (whether persons are recorded, files were skipped, the encoder learned anything) is
    taken from the wording that has most in common with the card.
    """
    stated = release.card["not_covered"]
    choices = [
        wording.not_covered_by_release(
            {
                "persons": persons,
                "skipped_broken": skipped,
                "public": public,
                "features": {"origin": release.card["features"].get("origin")},
                "accuracy": release.card["accuracy"],
                "config": release.card["config"],
                "read_off": release.card["read_off"],
            },
            fixed_key=not release.private,
        )
        for persons, skipped, public in itertools.product((False, True), (False, True), (True, False))
    ]
    # Of several that have as much in common, the one that adds least to the card.
    needed = max(choices, key=lambda lines: (len(set(lines) & set(stated)), -len(set(lines) - set(stated))))
    return [*needed, *(line for line in stated if line not in needed)]


def _state_guarantee(
    event: Event,
    *,
    delta: float,
    secret: bool,
    unit: str,
    read_off: list[str],
    mechanism: dict[str, Any],
    tuning: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the core of every card: the guarantee and the mechanism that it is about."""
    claims = guarantee.claims(event, delta, secret=secret)
    return {
        "status": claims.status,
        "unit": unit,
        "adjacency": wording.adjacency(read_off, unit=unit),
        "mechanism": {**mechanism, "noise": claims.noise},
        "events": [to_json(e) for e in (event.events if isinstance(event, Composed) else (event,))],
        "guarantee": claims.guarantee,
        "attack_success": claims.attack_success,
        "tuning": wording.tuning(tuning),
        "software": guarantee.software(),
    }


def _proved_of_run(facts: dict[str, Any], config: Config, event: Event) -> dict[str, Any]:
    return {
        **_state_guarantee(
            event,
            delta=config.delta,
            secret=facts["private"] is True,
            unit=config.unit,
            read_off=facts["read_off"],
            mechanism={"clip": config.clip, "sigma": config.sigma, "views": config.views},
            tuning=facts["tuning"],
        ),
        "sampler": _sampler(config),
        "task": config.task,
        "public_inputs": facts["public"],
        "config_hash": config.hash(),
    }


def _proved_of_release(
    event: Event, *, delta: float, secret: bool, unit: str, read_off: list[str], mechanism: dict[str, Any]
) -> dict[str, Any]:
    proved = _state_guarantee(event, delta=delta, secret=secret, unit=unit, read_off=read_off, mechanism=mechanism)
    return {
        **proved,
        "meaning": guarantee.meaning(event, delta, private=proved["status"] == "private"),
        "account_of_a_record": account_of_a_record(event),
    }


def account_of_a_record(event: Event) -> str:
    """Describe how one record of a released data set is accounted."""
    count = event.count if isinstance(event, Gaussian) else 1
    return ACCOUNTS[type(event)].format(every="the one release" if count == 1 else f"each of {count} releases")


def read_audits(folder: Path, event: Event, config: Config) -> dict[str, dict[str, Any]]:
    """Return a run's audit.json, judged by the run's own event and settings; nothing if no audit was made."""
    if not (folder / audit_file.FILE).exists():
        return {}
    if not (config.batch and config.n and config.steps and config.sigma):
        raise ConfigError("config.toml: batch, n, steps and sigma must be set, as they are in a finished run.")
    # If settings changed during the run, the audit uses the last ones for all steps. Their epsilon may differ.
    last = PoissonSampler(config.batch, config.n, config.steps).event(config.sigma)
    proved = accountant.epsilon(event, guarantee.delta_of(event, config.delta))
    tested = accountant.epsilon(last, config.delta)
    return audit_file.read_and_judge(folder, proved=proved, tested=tested, delta=config.delta)


def read_release_audits(folder: Path, event: Event, delta: float) -> dict[str, dict[str, Any]]:
    """Return a release's audit.json, judged by its event. It has one mechanism, and no canaries among its records."""
    if not (folder / audit_file.FILE).exists():
        return {}
    proved = accountant.epsilon(event, delta)
    sections = audit_file.read_and_judge(folder, proved=proved, tested=proved, delta=delta)
    return {name: section for name, section in sections.items() if name == "mechanism"}


def audits_on_card(sections: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return the figures of audits that a card states; None if no audit was made."""
    stated = {name: {key: sections[name][key] for key in AUDIT_FIGURES} for name in AUDITS if name in sections}
    return stated or None


def _facts(run: Run) -> dict[str, Any]:
    """Return the facts that a card may use, and no others, checked."""
    facts = run.facts()
    if facts.get("complete") is not True:
        raise ConfigError(f"{run.folder}: the run is not finished, so there is nothing to report. Fix: {run.advise()}.")
    return _check_facts(facts, run.operator / "run.json")


def _check_facts(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    types = {
        "run": str,
        "data": str,
        "read_off": list,
        "shape": list,
        "class_names": list,
        "event": dict,
        "private": bool,
    }
    for key, kind in types.items():
        if not isinstance(facts.get(key), kind):
            raise DataError(f"{path}: {key} is missing or is not a JSON {kind.__name__}.")
    for key in ("read_off", "class_names"):
        if not all(isinstance(v, str) for v in facts[key]):
            raise DataError(f"{path}: {key} must be a list of strings.")
    public, tuning = _public_inputs(path, facts), _tuning(path, facts.get("tuning"))
    return {"public": public, "tuning": tuning, **{key: facts[key] for key in types}}


def _tuning(path: Path, entry: Any) -> dict[str, Any] | None:
    """Return what may be stated about a tuning run, which does not include the number of trials."""
    if entry is None:
        return None
    types = {"candidates": int, "expected_trials": float, "score": str}
    if not isinstance(entry, dict) or not all(type(entry.get(key)) is kind for key, kind in types.items()):
        raise DataError(f"{path}: its entry tuning is not valid. Fix: restore the file from a backup.")
    return {key: entry[key] for key in types}


def _public_inputs(path: Path, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the public weights and images that went into a run: file name, digest, and origin if it is known."""
    inputs, stated = facts.get("public", {}), facts.get("public_stated", {})
    types: dict[str, type] = dict.fromkeys(("file", "digest", "learned_from", *STATED), str)
    types |= {"images": int, "event": dict}
    named = isinstance(inputs, dict) and set(inputs) <= {"pretrained", "prior", "synthetic"}
    if not named or not all(
        isinstance(entry, dict) and all(isinstance(value, types.get(key, NoneType)) for key, value in entry.items())
        for entry in inputs.values()
    ):
        raise DataError(f"{path}: its entry public is not valid. Fix: restore the file from a backup.")
    if not (isinstance(stated, dict) and set(stated) <= set(inputs)) or not all(
        isinstance(about, dict) and all(key in STATED and isinstance(value, str) for key, value in about.items())
        for about in stated.values()
    ):
        raise DataError(f"{path}: its entry public_stated is not valid. Fix: restore the file from a backup.")
    return {kind: {**entry, **stated.get(kind, {})} for kind, entry in inputs.items()}


def _require_weights_of(run: Run, facts: dict[str, Any], config: Config) -> str:
    """Return the digest of the run's weights; refuse weights whose header does not match the run's other files."""
    header = safetensors.read(run.weights).header
    expected = {"event": json.dumps(facts["event"]), "config": config.hash(), "delta": repr(config.delta)}
    expected["private"] = "yes" if facts["private"] else NOT_PRIVATE
    for key, value in expected.items():
        if header.get(key) != value:
            raise DataError(
                f"{run.weights}: its {key} differs from that of the run's other files, so no card can be written. Fix: "
                "restore the run folder from a backup, or train again."
            )
    return header["digest"]


def _own_events(path: Path, event: Event, public: dict[str, dict[str, Any]]) -> tuple[Event, ...]:
    """Return what the run itself was charged for, without the events of initial weights that were trained before."""
    initial = public.get("pretrained", {}).get("event")
    if initial is None:
        return parts(event)
    before = parts(from_json(initial))
    if parts(event)[: len(before)] != before or len(parts(event)) == len(before):
        raise DataError(f"{path}: its event lacks that of the initial weights. Fix: restore the file from a backup.")
    return parts(event)[len(before) :]


def _require_charged(run: Run, name: str, *, event: Event, account: Account) -> None:
    """Refuse a run whose steps are not all on the account; a resumed branch may have charged more."""
    charged = exposures(Composed(tuple(c.event for c in account.charges if c.run == name)))

    def paid(met: Kind) -> bool:
        steps, points = split_kind(met)
        return any(set(points) <= set(kind) and all(_within(x, kind) for x in steps) for kind in charged)

    if not all(paid(met) for met in exposures(event)):
        raise LedgerMismatch(
            f"{run.folder}: the ledger of account {account.id} has no charge that covers this run. Fix: set "
            "DPVISION_HOME to the folder that the run was charged in, or restore the ledger from a backup."
        )


def _within(wanted: Exposure, kind: Kind) -> bool:
    return any(x[:2] == wanted[:2] and x.steps >= wanted.steps for x in split_kind(kind)[0])


def _public_facts(facts: dict[str, Any], config: Config) -> dict[str, Any]:
    def known(*names: str) -> str:
        return "read from the data" if set(names) & set(facts["read_off"]) else "declared"

    return {
        "n": {"value": config.n, "known": known(f"number of {config.unit}s")},
        "classes": {"value": facts["class_names"], "known": known("classes")},
        "image_shape": {"value": facts["shape"], "known": known("image size", "channels", "number of features")},
    }


def _sampler(config: Config) -> dict[str, Any]:
    if not (config.batch and config.n and config.steps):
        raise ConfigError("config.toml: batch, n and steps must be set, as they are in a finished run.")
    return {
        "name": "Poisson",
        "rate": config.batch / config.n,
        "batch": config.batch,
        "n": config.n,
        "steps": config.steps,
    }
