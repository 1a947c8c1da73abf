"""board.html: runs side by side, from their cards: accuracy against epsilon, and a table that can be sorted.

It tells what the cards tell and the names of the folders, nothing else, and is one file like the report. Runs of the
same settings on the same data, but for the seed, are one point with the spread of their accuracies.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dpvision.core import files as atomic
from dpvision.errors import DataError
from dpvision.released.report import pictures, reference
from dpvision.released.report.numbers import percent, plain
from dpvision.released.report.page import drawn, filled
from dpvision.released.report.pictures import Group
from dpvision.released.report.run_card import FORMAT
from dpvision.settings.figures import upper
from dpvision.settings.setting import declared
from dpvision.settings.training import Config
from dpvision.storage.run_folder import read_json

MOST_RUNS = 1000
# Runs that differ in these alone are runs of the same settings.
LOOKED_AFTER = {name for name, of in declared(Config).items() if of.names_branch == "never"}
LOOKED_AFTER |= {"seed", "sigma", "physical"}


@dataclass(frozen=True)
class Entry:
    """What the board shows of one run."""

    folder: Path
    settings: str  # same text: same settings and data, but for the seed
    data: str
    recipe: str
    model: str
    status: str
    epsilon: float | None
    delta: float
    accuracy: float | None
    calibration_error: float | None
    steps: int
    audited: float | None


def write(folders: list[Path], out: Path) -> int:
    """The page of all runs in these folders, themselves or one level below; how many there are."""
    entries = [entry(folder) for folder in _with_cards(folders)]
    atomic.write(out, render(entries, beside=out.parent), mode=0o644)
    return len(entries)


def render(entries: list[Entry], *, beside: Path) -> str:
    """The whole page; links are to the reports, from the folder that the page is in."""
    numbers = {text: i for i, text in enumerate(dict.fromkeys(e.settings for e in entries), 1)}
    script = (files("dpvision.released.report") / "board.js").read_text("utf-8")
    groups = _groups(entries, numbers)
    return filled(
        "board.html",
        **drawn({"script": script, "picture": pictures.board(groups) if groups else None}),
        script_hash=_hash(script),
        rows=[_row(e, numbers[e.settings], beside) for e in entries],
        groups=[
            (f"{g.number}", f"{len(g.accuracies)}", upper(g.epsilon), percent(g.mean), _spread(g.spread))
            for g in groups
            if g.spread is not None
        ],
    )


def entry(folder: Path) -> Entry:
    """One run, by its card; checked, for the file can be edited."""
    path = folder / "card.json"
    card = read_json(path)
    if card.get("format") != FORMAT:
        raise DataError(f"{path}: not the card of a run. Fix: name folders that `dpvision train` made.")
    try:
        config, guarantee, accuracy = card["config"], card["guarantee"], card["accuracy"]
        account = (card["data_set"] or {}).get("account", "unknown")
        known, facts = card.get("known_data_set"), card["public_facts"]
        about = [known or account, facts["n"]["value"], facts["image_shape"]["value"], len(facts["classes"]["value"])]
        shaping = {k: v for k, v in config.items() if k not in LOOKED_AFTER}
        evaluation, audit = card.get("evaluation"), card.get("audit")
        return Entry(
            folder=folder,
            settings=json.dumps([about, shaping], sort_keys=True),
            data=reference.KNOWN[known].name if known else f"account {plain(account)}",
            recipe=plain(config["recipe"]),
            model=plain(config["model"]),
            status="private" if card["status"] == "private" else "NOT PRIVATE",
            epsilon=_number(guarantee["epsilon"]),
            delta=_number(guarantee["delta"]) or math.nan,
            accuracy=_share(accuracy["released_test_accuracy"]) if accuracy else None,
            calibration_error=_share(evaluation["calibration_error"]) if evaluation else None,
            steps=int(card["sampler"]["steps"]),
            audited=max((_number(a["epsilon_at_least"]) or 0.0 for a in audit.values()), default=None)
            if audit
            else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as exc:
        raise DataError(f"{path}: not what dpvision writes ({exc!r}). Fix: `dpvision report {folder}`.") from exc


def _with_cards(folders: list[Path]) -> list[Path]:
    found: dict[Path, None] = {}
    for folder in folders:
        here = [folder] if (folder / "card.json").is_file() else []
        if not here and folder.is_dir():
            here = [
                p for p in sorted(folder.iterdir()) if (p / "card.json").is_file() and (p / "config.toml").is_file()
            ]
        if not here:
            raise DataError(f"{folder}: no finished run is here. Fix: the folder of a run, or one that holds runs.")
        found |= dict.fromkeys(Path(os.path.abspath(p)) for p in here)
    if len(found) > MOST_RUNS:
        raise DataError(f"{len(found):,} runs are more than one page can show. Fix: at most {MOST_RUNS:,}.")
    return list(found)


def _groups(entries: list[Entry], numbers: dict[str, int]) -> list[Group]:
    """Points of the picture: private runs with an accuracy."""
    found = []
    for text, number in numbers.items():
        same = [e for e in entries if e.settings == text and e.epsilon is not None and e.accuracy is not None]
        if same:
            epsilon = max(e.epsilon or 0.0 for e in same)
            found.append(Group(number, epsilon, tuple(e.accuracy or 0.0 for e in same)))
    return found


def _row(entry: Entry, number: int, beside: Path) -> dict[str, Any]:
    """Cells: what is shown, and what it is sorted by."""
    place = os.path.relpath(entry.folder / "report.html", beside)
    return {
        "name": plain(entry.folder.name),
        "link": "./" + quote(place) if (entry.folder / "report.html").is_file() else None,
        "cells": [
            (str(number), number),
            (entry.data, entry.data),
            (entry.recipe, entry.recipe),
            (entry.model, entry.model),
            (upper(entry.epsilon) if entry.epsilon is not None else entry.status, _order(entry.epsilon)),
            (f"{entry.delta:g}", entry.delta),
            (_percent(entry.accuracy), _order(entry.accuracy)),
            (_percent(entry.calibration_error), _order(entry.calibration_error)),
            ("none" if entry.audited is None else f"{entry.audited:.2f}", _order(entry.audited)),
            (f"{entry.steps:,}", entry.steps),
        ],
    }


def _hash(script: str) -> str:
    """For the page's policy: this script runs, and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _order(value: float | None) -> float:
    """What is not known comes first."""
    return -1.0 if value is None else value


def _percent(share: float | None) -> str:
    return "none" if share is None else percent(share)


def _spread(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f} points"


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _share(value: Any) -> float:
    found = _number(value)
    if found is None or not 0 <= found <= 1:
        raise ValueError(f"{value!r} is not a share")
    return found
