"""The card of a finished run: its guarantee, what that rests on, and what it does not cover; and the files with it.

What can be said before the weights are written, `on_weights`, is in their header too; card.schema.json describes both.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any

from dpvision.core import files
from dpvision.core.account import Account
from dpvision.core.events import Capped, Composed, Event, Exposure, Kind, apart, exposures, from_json, parts, to_json
from dpvision.errors import ConfigError, DataError, LedgerMismatch
from dpvision.released.report import accounts, audits, guarantee, markdown, on_test, page, reference, wording
from dpvision.settings.setting import to_dict
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.run_folder import NOT_PRIVATE, Run

FORMAT, FORMAT_ON_WEIGHTS = "dpvision-card-1", "dpvision-card-on-weights-1"


def write(run: Run, account: Account | None) -> list[Path]:
    """Write card.json, card.md, report.html and, where there is an account, ledger.jsonl; each whole or not at all."""
    made = card(run, account)
    charges = accounts.ledger_lines(account) if account else []
    of = {"classes": len(made["public_facts"]["classes"]["value"]), "weights": made["weights_digest"]}
    evaluation, examples = on_test.read_evaluation(run, **of), on_test.read_examples(run, **of)
    points = on_test.read_metrics(run)
    texts = {
        "card.json": json.dumps(made, indent=1, allow_nan=False) + "\n",
        "card.md": markdown.render(made, charges),
        "report.html": page.render(made, charges, points=points, evaluation=evaluation, examples=examples),
    }
    if account:
        texts["ledger.jsonl"] = "".join(json.dumps(line, allow_nan=False) + "\n" for line in charges)
    for name, text in texts.items():
        files.write(run.folder / name, text, mode=0o644)
    return [run.folder / name for name in texts]


def card(run: Run, account: Account | None) -> dict[str, Any]:
    """All that a card says, as plain JSON values. `account` is the ledger of the data set, where there is one."""
    facts, config = _facts(run), run.config()
    event, classes = from_json(facts["event"]), len(facts["class_names"])
    weights = _bound_to_weights(run, facts, config)
    own = _own(run.operator / "run.json", event, facts["public"])
    if account is not None:
        _require_charged(run, facts["run"], event=Composed(own), account=account)
    proved = _proved(facts, config, event)
    before, by_hand = len(parts(event)) - len(own), wording.chosen_by_hand(config)
    return {
        "format": FORMAT,
        "run": facts["run"],
        **proved,
        "licence": config.licence,
        "known_data_set": reference.known(facts["data"], n=config.n, shape=facts["shape"], classes=classes),
        "public_facts": _public_facts(facts, config),
        "probe": guarantee.epsilon_of_probe(own, config, proved["guarantee"]["epsilon"]),
        "phases": guarantee.epsilon_by_phase(event, config, before=before) if proved["status"] == "private" else [],
        "audit": audits.on_card(audits.of_run(run.folder, event, config)),
        "data_set": accounts.data_set(account),
        **accounts.overlaps_on_card(run.facts()),
        "accuracy": on_test.last_accuracy(on_test.read_metrics(run), release=config.release),
        "evaluation": on_test.summary(on_test.read_evaluation(run, classes=classes, weights=weights)),
        "chosen_by_hand": by_hand,
        "not_covered": wording.not_covered(
            unit=config.unit,
            read_off=facts["read_off"],
            public=facts["public"],
            fixed_key=facts["private"] is not True,
            ledger=account is not None,
            branches=len(own),
            whole=len(own) < 2 or isinstance(event, Capped),
            tuned=facts["tuning"] is not None,
            pictures=bool(on_test.read_examples(run, classes=classes, weights=weights)),
            public_licence=config.public_licence,
            by_hand=by_hand,
            recipe=config.recipe,
        )
        + accounts.not_covered(run.facts(), account),
        "config": to_dict(config),
        "weights_digest": weights,
    }


def on_weights(facts: dict[str, Any], config: Config) -> dict[str, Any]:
    """What the weights say of themselves: the guarantee, without what may change later or names the run."""
    facts = _checked(facts, Path("run.json"))
    return {"format": FORMAT_ON_WEIGHTS, **_proved(facts, config, from_json(facts["event"]))}


def _proved(facts: dict[str, Any], config: Config, event: Event) -> dict[str, Any]:
    """The guarantee and the mechanism that it is about."""
    claims = guarantee.claims(event, config.delta, secret=facts["private"] is True)
    return {
        "status": claims.status,
        "unit": config.unit,
        "adjacency": wording.adjacency(facts["read_off"], unit=config.unit),
        "sampler": _sampler(config),
        "public_inputs": facts["public"],
        "mechanism": {"clip": config.clip, "sigma": config.sigma, "views": config.views, "noise": claims.noise},
        "events": [to_json(e) for e in (event.events if isinstance(event, Composed) else (event,))],
        "guarantee": claims.guarantee,
        "attack_success": claims.attack_success,
        "tuning": wording.tuning(facts["tuning"]),
        "config_hash": config.hash(),
        "software": guarantee.software(),
    }


def _facts(run: Run) -> dict[str, Any]:
    """The facts that a card may use, and no others; checked, for the file can be edited."""
    facts = run.facts()
    if facts.get("complete") is not True:
        fix = "a new tuning: this one cannot go on" if "tuning" in facts else f"`dpvision resume {run.folder}`"
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
    header = safetensors.read(run.weights).header
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
