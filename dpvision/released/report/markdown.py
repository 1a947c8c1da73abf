"""card.md: the card as a page of text, below the head that the Hugging Face Hub reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from dpvision.core.events import from_json
from dpvision.released.report import tables
from dpvision.released.report.numbers import names, plain
from dpvision.released.report.wording import sentence
from dpvision.settings.figures import describe, upper

# Licences that the Hub knows by these names; any other is "other", with its own name beside it.
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


def render(card: dict[str, Any], charges: list[dict[str, Any]]) -> str:
    """The whole page. Below what the Hub reads, the sentence comes first."""
    parts = ["# Privacy card", sentence(card)]
    if card["status"] != "private":
        parts.insert(1, f"**{card['status']}**")
    parts += ["## Figures", table(("figure", "value"), tables.overview(card))]
    parts += ["## What any membership test can do at best", table(tables.ATTACK_HEAD, tables.attack(card))]
    parts += ["## What is public, and how it is known", table(("fact", "value", "known"), tables.public(card))]
    shown, more = names(card["public_facts"]["classes"]["value"])
    parts.append(
        "Classes: " + ", ".join(map(_code, shown)) + (f" and {more:,} more, all in card.json." if more else ".")
    )
    told = tables.phases(card)
    if told:
        parts += ["## Epsilon by phase", table(("phase", "steps", "epsilon added", "epsilon of all so far"), told)]
    parts += ["## What is not covered", "\n".join(f"- {line}" for line in map(escaped, card["not_covered"]))]
    parts += ["## Accountant", table(("figure", "value", "what it is"), tables.accountant(card))]
    parts += ["## Settings", table(("setting", "value"), tables.settings(card))]
    parts += ["## Ledger of the data set", *_ledger(card, charges)]
    return "\n\n".join([front_matter_of_model(card), *parts]) + "\n"


def _ledger(card: dict[str, Any], charges: list[dict[str, Any]]) -> list[str]:
    if card["data_set"] is None:
        return ["No ledger was read."]
    shown, earlier = tables.latest(charges)
    rows = [(plain(c["time"]), plain(c["run"]), describe(from_json(c["event"])), upper(c["epsilon"])) for c in shown]
    left_out = [f"{earlier:,} earlier charges are in ledger.jsonl."] if earlier else []
    return [tables.account(card), *left_out, table(("time", "run", "charged for", "epsilon of all so far"), rows)]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(escaped, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escaped(text: str) -> str:
    """Text that means itself: no mark-up, no HTML, no end of the table's cell, no link made of a bare address."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", text).replace("@", "&#64;")


def _code(text: str) -> str:
    """Text between more backticks than it has in a row, so that nothing in it is mark-up."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{space}{text}{space}{fence}"


def front_matter_of_model(card: dict[str, Any]) -> str:
    """What the Hugging Face Hub reads of the weights of a run: licence, tags, library and metrics, as YAML."""
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "library_name": "dpvision",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "differential-privacy", *_private(card), "dpvision"],
    }
    if card["accuracy"]:
        values["metrics"] = ["accuracy"]
    return _as_yaml(values)


def front_matter_of_data(card: dict[str, Any]) -> str:
    """The same of a released data set."""
    values: dict[str, Any] = _licence(card["licence"])
    values |= {
        "task_categories": ["tabular-classification"],
        "tags": ["differential-privacy", *_private(card), "features", "dpvision"],
    }
    return _as_yaml(values)


def _licence(text: str | None) -> dict[str, str]:
    """As the Hub wants it."""
    name = plain(text or NOT_STATED)
    if name == NOT_STATED:
        return {"license": "unknown"}
    return {"license": name.lower()} if name.lower() in KNOWN_LICENCES else {"license": "other", "license_name": name}


def _as_yaml(values: dict[str, Any]) -> str:
    """Between two lines of dashes, one entry on a line.

    Values are JSON texts, which YAML reads as they are, whatever somebody called a licence.
    """
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _private(card: dict[str, Any]) -> list[str]:
    return [] if card["status"] == "private" else ["not-private"]
