"""The head of card.md that the Hugging Face Hub reads: licence, tags, library and metrics, as YAML.

Values are written as JSON texts, which YAML reads as they are, whatever somebody called a licence.
"""

from __future__ import annotations

import json
from typing import Any

from dpvision.released.report.figures import plain

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


def of_model(card: dict[str, Any]) -> str:
    """Of the weights of a run."""
    values: dict[str, Any] = licence(card["licence"])
    values |= {
        "library_name": "dpvision",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "differential-privacy", *_private(card), "dpvision"],
    }
    if card["accuracy"]:
        values["metrics"] = ["accuracy"]
    return as_yaml(values)


def of_data(card: dict[str, Any]) -> str:
    """Of a released data set."""
    values: dict[str, Any] = licence(card["licence"])
    values |= {
        "task_categories": ["tabular-classification"],
        "tags": ["differential-privacy", *_private(card), "features", "dpvision"],
    }
    return as_yaml(values)


def licence(text: str | None) -> dict[str, str]:
    """As the Hub wants it."""
    name = plain(text or NOT_STATED)
    if name == NOT_STATED:
        return {"license": "unknown"}
    return {"license": name.lower()} if name.lower() in KNOWN_LICENCES else {"license": "other", "license_name": name}


def as_yaml(values: dict[str, Any]) -> str:
    """Between two lines of dashes, one entry on a line."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"])


def _private(card: dict[str, Any]) -> list[str]:
    return [] if card["status"] == "private" else ["not-private"]
