"""The card of a released data set: card.json, card.md and README.md, written into its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.account import Account
from dpvision.core.events import ClassScheduled, Event, Gaussian, PoissonGaussian, from_json
from dpvision.released.finished import CARD, Finished
from dpvision.released.report import accounts, audits, guarantee, wording
from dpvision.released.report.markdown import escaped, front_matter_of_data, table
from dpvision.released.report.wording import sentence
from dpvision.settings.figures import describe, upper

READ = """from glob import glob
import numpy as np
from safetensors.numpy import load_file
parts = [load_file(name) for name in sorted(glob("rows-*.safetensors"))]
features, labels = (np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))"""

# The linear discriminant of the released moments; eigenvalues get 0.3 times the largest that noise alone would have.
MOMENTS = """moments = load_file("moments.safetensors")
sums, second, n = (moments[key] for key in ("sums", "second", "n"))
counts = np.maximum(moments["counts"], 0.1 * n / len(moments["counts"]))
means, shares = sums / counts, counts / counts.sum()
values, vectors = np.linalg.eigh(second / n - means * shares @ means.T)
values = np.maximum(values, 0) + 0.3 * np.sqrt(2 * len(values)) * moments["noise_of_second"] / n
weight = vectors / values @ vectors.T @ means
bias = np.log(shares) - (means * weight).sum(axis=0) / 2
guess = (features @ weight + bias).argmax(axis=1)  # of the rows here, or of any other features"""

FILES = {
    "rows-*.safetensors": "the rows: features and labels",
    "moments.safetensors": "class sums, class counts and the second moment, and the noise in each",
    "map.safetensors": "the public map: (features of an image - mean) @ matrix, then divided by its length",
    "schema.json": "what is in the files, for programs",
    "card.md": "the guarantee and its limits; card.json has them for programs",
}

# How a record is accounted, by the kind of event.
ACCOUNTS = {
    Gaussian: "every record is in {every}; composition of Gaussian noise, exact",
    PoissonGaussian: "each record is in each row by its own secret coin; PLD of the subsampled Gaussian",
    ClassScheduled: "per class, at the rate inside the class and on the rows of the class alone: which classes a row "
    "is about is public, for labels and features show it. The published account of hierarchical sampling takes the "
    "rate over all records, and is wrong: docs/hierarchical-sampling.md of dpvision",
}

NAMES = {
    "name": "mechanism",
    "noise_x": "noise in a feature, standard deviation",
    "noise_y": "noise in a label, standard deviation",
    "degree": "records in a row, expected",
}


def write(folder: Path, facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """All three, each whole; the card."""
    made = card(facts, account)
    _write_card(folder, made)
    files.write(folder / "README.md", readme(made), mode=0o644)
    return made


def write_audited(release: Finished) -> list[Path]:
    """card.json and card.md again, with what is in audit.json. Claims are computed again, not taken from the old card.

    What only its maker knew (the data set's account, what was read off, the accuracy) stays as it was.
    """
    settings = release.settings
    claims = guarantee.claims(release.event, settings.delta, secret=release.private)
    made = {
        **release.card,
        **_claimed(claims, release.event),
        "what": "data set",
        "unit": "image",
        "rows": settings.rows,
        "mechanism": {**release.card["mechanism"], "sigma": release.sigma, "noise": claims.noise},
        "audit": audits.on_card(audits.of_release(release.folder, release.event, settings.delta)),
        "software": guarantee.software(),
    }
    return _write_card(release.folder, made)


def _write_card(folder: Path, made: dict[str, Any]) -> list[Path]:
    texts = {"card.json": json.dumps(made, indent=1, allow_nan=False) + "\n", "card.md": as_text(made)}
    for name, text in texts.items():
        files.write(folder / name, text, mode=0o644)
    return [folder / name for name in texts]


def card(facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """The guarantee and all it rests on, as plain JSON values."""
    config, event, secret = facts["config"], from_json(facts["event"]), facts["private"] is True
    claims = guarantee.claims(event, config["delta"], secret=secret)
    return {
        "format": CARD,
        "what": "data set",
        "run": facts["run"],
        "unit": "image",
        "adjacency": wording.adjacency(facts["read_off"], unit="image"),
        "licence": config["licence"],
        "mechanism": {**facts["mechanism"], "sigma": config["sigma"], "noise": claims.noise},
        "features": facts["features"],
        "image_shape": facts["image_shape"],
        "rows": config["rows"],
        "classes": facts["class_names"],
        "n": config["n"],
        "read_off": facts["read_off"],
        "events": [facts["event"]],
        **_claimed(claims, event),
        "audit": None,
        "data_set": accounts.data_set(account),
        **accounts.overlaps_on_card(facts),
        "accuracy": facts.get("accuracy"),
        "tuning": wording.tuning(None),
        "not_covered": wording.not_covered_by_release(facts, fixed_key=not secret)
        + accounts.not_covered(facts, account),
        "config": config,
        "files": facts["files"],
        "software": guarantee.software(),
    }


def _claimed(claims: guarantee.Claims, event: Event) -> dict[str, Any]:
    """The claims as the card has them."""
    return {
        "status": claims.status,
        "account_of_a_record": account_of_a_record(event),
        "guarantee": claims.guarantee,
        "attack_success": claims.attack_success,
    }


def account_of_a_record(event: Event) -> str:
    """In words."""
    count = event.count if isinstance(event, Gaussian) else 1
    return ACCOUNTS[type(event)].format(every="the one release" if count == 1 else f"each of {count} releases")


def as_text(made: dict[str, Any]) -> str:
    """card.md."""
    figures, config = made["guarantee"], made["config"]
    rough = figures["approximate"]["gdp_central_limit_epsilon"]
    rows = [
        ("status", made["status"]),
        (
            "epsilon",
            "none" if figures["epsilon"] is None else f"{upper(figures['epsilon'], 4)} at delta {config['delta']:g}",
        ),
        ("central limit (GDP), approximate, no bound", "none" if rough is None else f"epsilon {rough:.4f}"),
        ("account of a record", made["account_of_a_record"]),
        ("charged", describe(from_json(made["events"][0]))),
        *((NAMES.get(key, key.replace("_", " ")), _plain(value)) for key, value in made["mechanism"].items()),
        *((f"features: {key}", _plain(value)) for key, value in made["features"].items()),
        ("rows", f"{made['rows']:,}"),
        ("licence", made["licence"]),
        *audits.rows(made),
        *accounts.rows(made),
        *((f"test accuracy: {key}", f"{value:.2%}") for key, value in (made["accuracy"] or {}).items()),
    ]
    parts = ["# A released data set", sentence(made)]
    if made["status"] != "private":
        parts.insert(1, f"**{made['status']}**")
    parts += ["## Figures", table(("figure", "value"), rows)]
    parts += ["## What is not covered", "\n".join(f"- {escaped(line)}" for line in made["not_covered"])]
    return "\n\n".join([front_matter_of_data(made), *parts]) + "\n"


def _plain(value: Any) -> str:
    return "none" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


def readme(made: dict[str, Any]) -> str:
    """README.md: how to read and use it, for someone who has not heard of dpvision."""
    mechanism, features = made["mechanism"], made["features"]
    moments = "moments.safetensors" in made["files"]
    there = FILES.keys() - (set() if moments else {"moments.safetensors"})
    there -= set() if made["config"].get("rank") else {"map.safetensors"}
    parts = [
        f"# {made['rows']:,} rows of features that may be trained on for ever",
        sentence(made),
        f"Read it, from this folder:\n\n```python\n{READ}\n```",
        f"Rows are {escaped(mechanism['rows_are'])}.",
        f"Labels: {escaped(mechanism['labels'])}. Classes, in order: {escaped(', '.join(map(str, made['classes'])))}.",
        f"Features of an image: {escaped(features['encoder'])} ({escaped(features['origin'])}), then "
        f"{escaped(features['map'])}. With dpvision, the same features of other images: "
        "`dpvision features THIS_FOLDER IMAGES --out FILE.safetensors`.",
    ]
    if moments:
        parts.append(
            "The rows tell no more than the moments that they were drawn from. So a linear classifier can be had from "
            f"the moments directly, here the linear discriminant:\n\n```python\n{MOMENTS}\n```"
        )
    noise = {key: mechanism[key] for key in ("noise_x", "noise_y", "degree") if key in mechanism}
    if noise:
        parts.append(". ".join(f"{NAMES[key].capitalize()}: {_plain(value)}" for key, value in noise.items()) + ".")
    parts.append("\n".join(f"- `{name}`: {what}" for name, what in FILES.items() if name in there))
    return "\n\n".join([*parts, f"Licence: {escaped(made['licence'])}."]) + "\n"
