"""A finished release as its folder has it: settings, event and files that agree with each other, or a DataError.

The folder may come from anywhere, and a card is about to be written for it anew. So nothing on the old card is believed
that can be computed: the event is that of the settings, and the rows say themselves whether their noise is secret. The
digests on the card bind it to the very bytes of its rows. They find damage and careless edits, not forgery: who makes
a whole folder by hand can claim what they like.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from dpvision.core import files
from dpvision.core.events import Event, to_json
from dpvision.errors import ConfigError, DataError
from dpvision.released.folder import MOST_TEXT, digests, mark_of, read_rows, read_schema
from dpvision.settings.release import Release
from dpvision.settings.setting import checked

CARD = "dpvision-release-card-1"
# Of the card, what is told again as it stands, and its kind.
KINDS = {
    "run": str,
    "licence": str,
    "mechanism": dict,
    "features": dict,
    "classes": list,
    "read_off": list,
    "not_covered": list,
    "config": dict,
}


@dataclass(frozen=True)
class Finished:
    """What a released folder is."""

    folder: Path
    card: dict[str, Any]
    settings: Release  # complete
    event: Event
    private: bool  # whether its noise is secret, by its rows

    @property
    def sigma(self) -> float:
        assert self.settings.sigma
        return self.settings.sigma

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.card["classes"])


def finished(folder: Path) -> Finished:
    """The release in a folder; refused where its files do not agree."""
    schema, path = read_schema(folder), folder / "card.json"
    card = _card(path)
    if card.get("files") != digests(folder) or not set(schema["files"]) <= set(card["files"]):
        raise DataError(
            f"{folder}: its rows are not those that card.json is about (by their digests). Fix: copy it again; a card "
            "without digests is of an earlier version, and cannot be bound to rows any more."
        )
    read_rows(folder)  # as many and as wide as schema.json says
    settings = _settings(path, card, schema)
    event = settings.event(settings.sigma or 0.0, len(schema["classes"]))
    if card["classes"] != schema["classes"] or card.get("events") != [json.loads(json.dumps(to_json(event)))]:
        raise DataError(f"{path}: what was charged, or the classes, are not those of its settings and of schema.json.")
    marks = {mark_of(folder / name) for name in schema["files"]}
    return Finished(folder, card, settings, event, private=marks == {"private"})


def _card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(files.read(path, most=MOST_TEXT), parse_constant=_no_number)
        json.dumps(card, indent=1)  # it will be written again
        if card["format"] != CARD:
            raise ValueError(f"its format is {card['format']!r}")
        wrong = [name for name, kind in KINDS.items() if not isinstance(card[name], kind)]
        wrong += [name for name in ("not_covered", "read_off") if not all(isinstance(x, str) for x in card[name])]
        told = card["accuracy"]
        if told is not None and not all(isinstance(x, int | float) for x in told.values()):
            wrong.append("accuracy")
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: of another kind")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise DataError(f"{path}: not the card of a release ({exc}). Fix: copy the folder again.") from exc
    return dict(card)


def _settings(path: Path, card: dict[str, Any], schema: dict[str, Any]) -> Release:
    try:
        found = Release(**checked(Release, card["config"], source=str(path)))
        if not found.is_complete or found.rows != schema["rows"]:
            raise ConfigError("they are not complete, or of another number of rows")
        if found.class_counts is not None and len(found.class_counts) != len(schema["classes"]):
            raise ConfigError("class_counts must be one number for each class")
        found.event(found.sigma or 0.0, len(schema["classes"]))
    except ConfigError as exc:
        raise DataError(f"{path}: its settings are not those of a release ({exc}).") from exc
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")
