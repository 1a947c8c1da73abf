"""card.md and README.md: the card as text, with the front matter that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from dpvision.released.report import tables
from dpvision.released.report.tables import names, plain
from dpvision.released.report.wording import sentence

# Licences that the Hub knows by these names; any other is "other", with its own name in license_name.
KNOWN_LICENCES = (
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "cc-by-4.0",
    "cc-by-sa-4.0",
    "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0",
    "gpl-3.0",
    "lgpl-3.0",
    "agpl-3.0",
    "mpl-2.0",
    "openrail",
    "odbl",
)
NOT_STATED = "not stated"

READ_ROWS = """from glob import glob
import numpy as np
from safetensors.numpy import load_file
parts = [load_file(name) for name in sorted(glob("rows-*.safetensors"))]
features, labels = (np.concatenate([part[key] for part in parts]) for key in ("features", "labels"))"""

# The linear discriminant of the released moments; eigenvalues get 0.3 times the largest that noise alone would have.
USE_MOMENTS = """moments = load_file("moments.safetensors")
sums, second, n = (moments[key] for key in ("sums", "second", "n"))
counts = np.maximum(moments["counts"], 0.1 * n / len(moments["counts"]))
means, shares = sums / counts, counts / counts.sum()
values, vectors = np.linalg.eigh(second / n - means * shares @ means.T)
values = np.maximum(values, 0) + 0.3 * np.sqrt(2 * len(values)) * moments["noise_of_second"] / n
weight = vectors / values @ vectors.T @ means
bias = np.log(shares) - (means * weight).sum(axis=0) / 2
guess = (features @ weight + bias).argmax(axis=1)  # for the rows here, or for any other features"""

FILES = {
    "rows-*.safetensors": "the rows: features and labels",
    "moments.safetensors": "class sums, class counts and the second moment, and the noise in each",
    "map.safetensors": "the public map: (features of an image - mean) @ matrix, then divided by its length",
    "schema.json": "the format of the files, for programs",
    "card.md": "the guarantee and its limits; card.json has them for programs",
    "report.html": "the same as a page, with the curve of the best possible attack",
}


def run_card(card: dict[str, Any], charges: list[dict[str, Any]]) -> str:
    """Return card.md of a run."""
    parts = [_front_matter_of_model(card), *_title("Privacy card", card)]
    parts += ["## Figures", _table(("figure", "value"), tables.overview(card))]
    parts += ["## Bound on every membership test", _table(tables.ATTACK_HEAD, tables.attack(card))]
    parts += ["## Public facts", _table(tables.PUBLIC_HEAD, tables.public(card))]
    shown, more = names(card["public_facts"]["classes"]["value"])
    parts.append(
        "Classes: " + ", ".join(map(_code, shown)) + (f" and {more:,} more, all in card.json." if more else ".")
    )
    phases = tables.phases(card)
    if phases:
        parts += ["## Epsilon by phase", _table(tables.PHASES_HEAD, phases)]
    parts += _limits(card)
    parts += ["## Settings", _table(("setting", "value"), tables.settings(card))]
    parts += ["## Ledger of the data set", *_ledger(card, charges)]
    return "\n\n".join(parts) + "\n"


def release_card(card: dict[str, Any]) -> str:
    """Return card.md of a released data set."""
    parts = [_front_matter_of_data(card), *_title("Privacy card of a released data set", card)]
    parts += ["## Figures", _table(("figure", "value"), tables.release_overview(card))]
    parts += ["## Bound on every membership test", _table(tables.ATTACK_HEAD, tables.attack(card))]
    return "\n\n".join([*parts, *_limits(card)]) + "\n"


def readme(card: dict[str, Any]) -> str:
    """Return README.md of a released data set: how to read and use it, for someone new to dpvision."""
    mechanism, features = card["mechanism"], card["features"]
    private = card["status"] == "private"
    free = "Anyone may train on them, any number of times, at no further privacy cost. " if private else ""
    parts = [
        f"# {card['rows']:,} rows of features" + ("" if private else f": {_escape(card['status'])}"),
        sentence(card),
        f"{free}To read them, in this folder:",
        f"```python\n{READ_ROWS}\n```",
        f"Rows are {_escape(mechanism['rows_are'])}.",
        f"Labels: {_escape(mechanism['labels'])}. Classes, in order: {_escape(', '.join(map(str, card['classes'])))}.",
        f"Features of an image: {_escape(features['encoder'])} ({_escape(features['origin'])}), then "
        f"{_escape(features['map'])}. With dpvision, the same features of other images: "
        "`dpvision features THIS_FOLDER IMAGES --out FILE.safetensors`.",
    ]
    if has_moments(card):
        parts.append(
            "The rows reveal no more than the moments that they were drawn from. A linear classifier can be computed "
            f"from the moments directly, here the linear discriminant:\n\n```python\n{USE_MOMENTS}\n```"
        )
    noise = {key: mechanism[key] for key in ("noise_x", "noise_y", "degree") if key in mechanism}
    if noise:
        lines = (f"{tables.MECHANISM[key].capitalize()}: {tables.setting(value)}" for key, value in noise.items())
        parts.append(". ".join(lines) + ".")
    parts.append("\n".join(f"- `{name}`: {what}" for name, what in files_of(card)))
    return "\n\n".join([*parts, f"Licence: {_escape(card['licence'])}."]) + "\n"


def has_moments(card: dict[str, Any]) -> bool:
    """Return whether a released data set has moments.safetensors."""
    return "moments.safetensors" in card["files"]


def files_of(card: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the files of a released data set, each with what it holds."""
    absent = {name for name in ("moments.safetensors", "map.safetensors") if name not in card["files"]}
    return [(name, what) for name, what in FILES.items() if name not in absent]


def _title(title: str, card: dict[str, Any]) -> list[str]:
    status = [] if card["status"] == "private" else [f"**{card['status']}**"]
    return [f"# {title}", *status, sentence(card)]


def _limits(card: dict[str, Any]) -> list[str]:
    return [
        "## Not covered",
        "\n".join(f"- {_escape(line)}" for line in card["not_covered"]),
        "## Accountant",
        _table(tables.ACCOUNTANT_HEAD, tables.accountant(card)),
    ]


def _ledger(card: dict[str, Any], charges: list[dict[str, Any]]) -> list[str]:
    if card["data_set"] is None:
        return ["No ledger was read."]
    shown, earlier = tables.latest(charges)
    left_out = [f"{earlier:,} earlier charges are in ledger.jsonl."] if earlier else []
    return [tables.account(card), *left_out, _table(tables.CHARGES_HEAD, [tables.charge(c) for c in shown])]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_escape, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    """Escape text so that it has no mark-up, no HTML, no end of a table's cell, and no link from a bare address."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text).replace("@", "&#64;")


def _code(text: str) -> str:
    """Put text between more backticks than it has in a row, so that nothing in it is mark-up."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _front_matter_of_model(card: dict[str, Any]) -> str:
    """Return what the Hub reads of the weights of a run: licence, tags, library and metrics, as YAML."""
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "library_name": "dpvision",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "differential-privacy", *_not_private(card), "dpvision"],
    }
    if card["accuracy"]:
        values["metrics"] = ["accuracy"]
    return _as_yaml(values)


def _front_matter_of_data(card: dict[str, Any]) -> str:
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "task_categories": ["tabular-classification"],
        "tags": ["differential-privacy", *_not_private(card), "features", "dpvision"],
    }
    return _as_yaml(values)


def _licence(text: str | None) -> dict[str, str]:
    name = plain(text or NOT_STATED)
    if name == NOT_STATED:
        return {"license": "unknown"}
    return {"license": name.lower()} if name.lower() in KNOWN_LICENCES else {"license": "other", "license_name": name}


def _as_yaml(values: dict[str, Any]) -> str:
    """Format values as JSON texts between lines of dashes: YAML reads them unchanged, whatever a licence is called."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _not_private(card: dict[str, Any]) -> list[str]:
    return [] if card["status"] == "private" else ["not-private"]
