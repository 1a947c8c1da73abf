"""What a released data set says of itself: card.json, card.md and README.md, written into its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpvision import atomic
from dpvision.privacy.events import ClassScheduled, Gaussian, PoissonGaussian, describe, from_json
from dpvision.privacy.ledger import Account
from dpvision.privacy.rounding import upper
from dpvision.report import attack, guarantee, wording
from dpvision.report.card import FIXED_NOISE, NOISE, data_set, software
from dpvision.report.markdown import escaped, table
from dpvision.report.wording import sentence

FORMAT = "dpvision-release-card-1"

READ = """from glob import glob
import numpy as np
from safetensors.numpy import load_file
parts = [load_file(name) for name in sorted(glob("rows-*.safetensors"))]
features, labels = (np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))"""

# How a record is accounted, by the kind of event.
ACCOUNTS = {
    Gaussian: "every record is in the one release; composition of Gaussian noise, exact",
    PoissonGaussian: "each record is in each row by its own secret coin; PLD of the subsampled Gaussian",
    ClassScheduled: "per class, at the rate inside the class and on the rows of the class alone: which classes a row "
    "is about is public, for labels and features show it. The published account of hierarchical sampling takes the "
    "rate over all records, and is wrong: docs/hierarchical-sampling.md of dpvision",
}


def write(folder: Path, facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """All three, each whole; the card."""
    made = card(facts, account)
    atomic.write(folder / "card.json", json.dumps(made, indent=1, allow_nan=False) + "\n", mode=0o644)
    atomic.write(folder / "card.md", as_text(made), mode=0o644)
    atomic.write(folder / "README.md", readme(made), mode=0o644)
    return made


def card(facts: dict[str, Any], account: Account) -> dict[str, Any]:
    """The guarantee and all it rests on, as plain JSON values."""
    config, event, secret = facts["config"], from_json(facts["event"]), facts["private"] is True
    figures = guarantee.figures(event, config["delta"])
    status, bounds = wording.FIXED_KEY, [1.0] * len(attack.FALSE_POSITIVE_RATES)
    if not secret:
        figures = {**guarantee.no_figures(config["delta"]), "if_the_noise_were_secret": figures}
    elif figures["epsilon"] is None:
        status = wording.TOO_LITTLE_NOISE
    else:
        status = "private"
        bounds = attack.most_true_positives(event, attack.FALSE_POSITIVE_RATES).tolist()
    told = facts["read_off"]
    return {
        "format": FORMAT,
        "what": "data set",
        "status": status,
        "run": facts["run"],
        "unit": "image",
        "adjacency": wording.ZERO_OUT if "number of images" in told else wording.ADD_OR_REMOVE,
        "licence": config["licence"],
        "mechanism": {**facts["mechanism"], "sigma": config["sigma"], "noise": NOISE if secret else FIXED_NOISE},
        "features": facts["features"],
        "image_shape": facts["image_shape"],
        "rows": config["rows"],
        "classes": facts["class_names"],
        "n": config["n"],
        "read_off": told,
        "events": [facts["event"]],
        "account_of_a_record": ACCOUNTS[type(event)],
        "guarantee": figures,
        "attack_success": [
            {"false_positive_rate": f, "true_positive_rate_at_most": t}
            for f, t in zip(attack.FALSE_POSITIVE_RATES, bounds, strict=True)
        ],
        "data_set": data_set(account),
        "accuracy": facts.get("accuracy"),
        "tuning": wording.TUNING,
        "not_covered": _not_covered(facts, fixed_key=not secret) + wording.other_fixed_keys(facts["run"], account),
        "config": config,
        "software": software(),
    }


def _not_covered(facts: dict[str, Any], *, fixed_key: bool) -> list[str]:
    said = []
    if fixed_key:
        said.append("Nothing is covered: the noise of this release can be computed again from its key.")
    said += [
        "The unit is one image. Someone with several images in the data is protected less"
        + (", and this data says whose images are whose." if facts["persons"] else "."),
        "Tuning is not counted: settings tried on the same data outside the ledger are not covered.",
        "Images that could not be read were left out; that they were there is not covered."
        if facts["config"].get("skip_broken")
        else "That the release was not refused tells that all images could be read and none has an unknown class.",
        "Side channels, such as how long it took, are not covered.",
    ]
    if facts.get("accuracy") is not None:
        said.append(
            "Accuracy is that of classifiers made from this folder alone, on the test split, told without noise: "
            "epsilon does not cover the test images."
        )
    if facts["public"]:
        said.append(
            f"The encoder is taken as public ({facts['features']['origin']}). Epsilon does not cover what it tells: "
            "nobody checked whether it was made from images of the private data."
        )
    if facts["config"].get("class_counts") is not None:
        said.append("How many images each class has was declared public. Epsilon does not cover it.")
    return said + [wording.off_the_data(fact) for fact in facts["read_off"]]


def as_text(made: dict[str, Any]) -> str:
    """card.md."""
    figures, config = made["guarantee"], made["config"]
    rough = figures["approximate"]["gdp_central_limit_epsilon"]
    rows = [
        ("status", made["status"]),
        ("epsilon", "none" if figures["epsilon"] is None else f"{upper(figures['epsilon'], 4)} at {config['delta']:g}"),
        ("central limit (GDP), approximate, no bound", "none" if rough is None else f"epsilon {rough:.4f}"),
        ("account of a record", made["account_of_a_record"]),
        ("charged", describe(from_json(made["events"][0]))),
        *((key.replace("_", " "), str(value)) for key, value in made["mechanism"].items()),
        *((f"features: {key}", str(value)) for key, value in made["features"].items()),
        ("rows", f"{made['rows']:,}"),
        ("licence", made["licence"]),
        *((f"test accuracy: {key}", f"{value:.4f}") for key, value in (made["accuracy"] or {}).items()),
    ]
    parts = ["# A released data set", sentence(made)]
    if made["status"] != "private":
        parts.insert(1, f"**{made['status']}**")
    parts += ["## Figures", table(("figure", "value"), rows)]
    parts += ["## What is not covered", "\n".join(f"- {escaped(line)}" for line in made["not_covered"])]
    return "\n\n".join(parts) + "\n"


def readme(made: dict[str, Any]) -> str:
    soft = made["mechanism"]["labels"]
    return (
        f"# {made['rows']:,} rows of features that may be trained on for ever\n\n{sentence(made)}\n\n"
        f"Read it, from this folder:\n\n```python\n{READ}\n```\n\n"
        f"Labels: {escaped(soft)}. Classes, in order: {escaped(', '.join(map(str, made['classes'])))}.\n\n"
        f"Features: {escaped(made['features']['encoder'])} ({escaped(made['features']['origin'])}), then "
        f"{escaped(made['features']['map'])}. With dpvision, the same features of other images: "
        "`dpvision features THIS_FOLDER IMAGES --out FILE.safetensors`.\n\n"
        f"Licence: {escaped(made['licence'])}. The guarantee and its limits: card.md, card.json.\n"
    )
