"""board.html: a comparison of runs by their cards, as a plot of accuracy against epsilon and as a sortable table.

It shows only what the cards state and the names of the folders, and is a single file like the report. Runs on the same
data that differ only in their seed are one point, with the standard deviation of their accuracies.
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
from dpvision.released import evaluation
from dpvision.released.report import pictures
from dpvision.released.report.cards import FORMAT
from dpvision.released.report.page import as_markup, fill
from dpvision.released.report.pictures import Group
from dpvision.released.report.tables import percent, plain
from dpvision.settings.figures import upper
from dpvision.settings.setting import declared
from dpvision.settings.training import Config
from dpvision.storage.run_folder import read_json

MAX_RUNS = 1000
# Runs that differ only in these settings are in one group.
IGNORED = {name for name, of in declared(Config).items() if of.names_branch == "never"}
IGNORED |= {"seed", "sigma", "physical"}


@dataclass(frozen=True)
class Entry:
    """What the board shows about one run."""

    folder: Path
    settings: str  # equal for runs that differ only in the seed
    data: str
    recipe: str
    model: str
    status: str
    epsilon: float | None
    delta: float
    accuracy: float | None
    balanced: float | None
    calibration_error: float | None
    steps: int
    audited: float | None


def write(folders: list[Path], out: Path) -> int:
    """Write the page of all runs that are these folders or are directly inside them; return their number."""
    entries = [read_entry(folder) for folder in _find_runs(folders)]
    atomic.write(out, render(entries, folder=out.parent), mode=0o644)
    return len(entries)


def render(entries: list[Entry], *, folder: Path) -> str:
    """Return the page, with links to the reports that are relative to `folder`, where the page will be."""
    numbers = {text: i for i, text in enumerate(dict.fromkeys(e.settings for e in entries), 1)}
    script = (files("dpvision.released.report") / "board.js").read_text("utf-8")
    groups = _groups(entries, numbers)
    return fill(
        "board.html",
        **as_markup({"script": script, "picture": pictures.board(groups) if groups else None}),
        script_hash=_hash(script),
        rows=[_row(e, numbers[e.settings], folder) for e in entries],
        groups=[
            (f"{g.number}", f"{len(g.accuracies)}", upper(g.epsilon), percent(g.mean), _spread(g.spread))
            for g in groups
            if g.spread is not None
        ],
    )


def read_entry(folder: Path) -> Entry:
    """Read one run from its card. The file may have been edited, so it is checked."""
    path = folder / "card.json"
    card = read_json(path)
    if card.get("format") != FORMAT:
        raise DataError(f"{path}: not the card of a run. Fix: name folders of finished runs.")
    try:
        config, guarantee, accuracy = card["config"], card["guarantee"], card["accuracy"]
        account = (card["data_set"] or {}).get("account", "unknown")
        known, facts = card.get("known_data_set"), card["public_facts"]
        about = [known or account, facts["n"]["value"], facts["image_shape"]["value"], len(facts["classes"]["value"])]
        about += [] if card.get("task", "classes") == "classes" else [card["task"]]
        shaping = {k: v for k, v in config.items() if k not in IGNORED}
        test, audit = card.get("evaluation"), card.get("audit")
        return Entry(
            folder=folder,
            settings=json.dumps([about, shaping], sort_keys=True),
            data=evaluation.KNOWN[known].name if known else f"account {plain(account)}",
            recipe=plain(config["recipe"]),
            model=plain(config["model"]),
            status="private" if card["status"] == "private" else "NOT PRIVATE",
            epsilon=_number(guarantee["epsilon"]),
            delta=_number(guarantee["delta"]) or math.nan,
            accuracy=_share(accuracy["released_test_accuracy"]) if accuracy else None,
            balanced=_share(test["balanced_accuracy"]) if test and test["balanced_accuracy"] is not None else None,
            calibration_error=_share(test["calibration_error"]) if test else None,
            steps=int(card["sampler"]["steps"]),
            audited=max((_number(a["epsilon_at_least"]) or 0.0 for a in audit.values()), default=None)
            if audit
            else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as exc:
        raise DataError(f"{path}: not a valid card ({exc!r}). Fix: run `dpvision report {folder}`.") from exc


def _find_runs(folders: list[Path]) -> list[Path]:
    runs: dict[Path, None] = {}
    for folder in folders:
        here = [folder] if (folder / "card.json").is_file() else []
        if not here and folder.is_dir():
            here = [
                p for p in sorted(folder.iterdir()) if (p / "card.json").is_file() and (p / "config.toml").is_file()
            ]
        if not here:
            raise DataError(
                f"{folder}: has no finished run. Fix: name the folder of a run, or a folder that contains runs."
            )
        runs |= dict.fromkeys(Path(os.path.abspath(p)) for p in here)
    if len(runs) > MAX_RUNS:
        raise DataError(f"{len(runs):,} runs are more than one page can show. Fix: name at most {MAX_RUNS:,}.")
    return list(runs)


def _groups(entries: list[Entry], numbers: dict[str, int]) -> list[Group]:
    """Return the points of the picture: private runs with an accuracy."""
    groups = []
    for text, number in numbers.items():
        same = [e for e in entries if e.settings == text and e.epsilon is not None and e.accuracy is not None]
        if same:
            epsilon = max(e.epsilon or 0.0 for e in same)
            groups.append(Group(number, epsilon, tuple(e.accuracy or 0.0 for e in same)))
    return groups


def _row(entry: Entry, number: int, folder: Path) -> dict[str, Any]:
    """Return a row as cells: the text of each, and its key for sorting."""
    report = os.path.relpath(entry.folder / "report.html", folder)
    return {
        "name": plain(entry.folder.name),
        "link": "./" + quote(report) if (entry.folder / "report.html").is_file() else None,
        "cells": [
            (str(number), number),
            (entry.data, entry.data),
            (entry.recipe, entry.recipe),
            (entry.model, entry.model),
            (upper(entry.epsilon) if entry.epsilon is not None else entry.status, _order(entry.epsilon)),
            (f"{entry.delta:g}", entry.delta),
            (_percent(entry.accuracy), _order(entry.accuracy)),
            (_percent(entry.balanced), _order(entry.balanced)),
            (_percent(entry.calibration_error), _order(entry.calibration_error)),
            ("none" if entry.audited is None else f"{entry.audited:.2f}", _order(entry.audited)),
            (f"{entry.steps:,}", entry.steps),
        ],
    }


def _hash(script: str) -> str:
    """Return the digest by which the page's security policy allows this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _order(value: float | None) -> float:
    """Return the key to sort by: unknown values come first."""
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
    share = _number(value)
    if share is None or not 0 <= share <= 1:
        raise ValueError(f"{value!r} is not a share")
    return share
