"""Recall and AUROC by group (sex, site, device) on the test split, with small groups hidden.

Groups are read from a column that the operator names, for the test split alone. Nothing here is used in training.

    a figure is shown    if it is about at least LEAST units: persons if they are known, or else images
    a name is shown      if its group has a figure; so a group of one patient is never named
    subtraction          for each class (or label), the units whose figures are hidden are none, or at least LEAST: if
                         there are fewer, the smallest shown groups are hidden as well, until there are enough. Nothing
                         is stated about a group over all classes, so hidden cells do not follow from a row either.
    AUROC                compares the images of a class with those of the other shown classes of the group: an exact
                         AUROC reveals how many images were compared, and so the size of a hidden cell among them

What this does not prevent: two evaluations with different columns can be compared, and without persons 20 images may
be of one patient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpvision.data.dataset import UNKNOWN
from dpvision.released.measures import auroc, interval, wilson

if TYPE_CHECKING:
    from dpvision.models.inputs import Predictions
    from dpvision.models.tasks import Task

LEAST = 20
NOT_STATED = "not stated"

Bools = NDArray[np.bool_]


def measure_groups(
    predictions: Predictions, labels: NDArray[Any], task: Task, groups: NDArray[Any], persons: NDArray[Any] | None
) -> dict[str, Any]:
    """Return the shown figures of groups as plain values, and whether any group is hidden."""
    labels = np.asarray(labels, dtype=np.int64)
    units = np.arange(len(labels)) if persons is None else np.asarray(persons)
    names, places, images = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    members = {str(names[place]): places == place for place in np.flatnonzero(images >= LEAST)}
    rest = (images < LEAST)[places]  # groups that can have no figure, together: there may be one for each image
    several = task.kind == "labels"
    owns = [labels[:, c] if several else (labels == c).astype(np.int64) for c in range(task.classes)]
    questions = [[own == 1, own == 0] if several else [own == 1] for own in owns]
    table = [
        choose_shown(
            [[side & member for side in sides] for member in members.values()], units, [side & rest for side in sides]
        )
        for sides in questions
    ]
    cells = list[dict[str, Any]]()
    for number, (own, sides, shown) in enumerate(zip(owns, questions, table, strict=True)):
        answers = predictions.answers[:, number] if several else (predictions.answers == number).astype(np.int64)
        for place, (name, member) in enumerate(members.items()):
            if not shown[place]:
                continue
            known = [own != UNKNOWN] if several else [o == 1 for o, row in zip(owns, table, strict=True) if row[place]]
            cell: dict[str, Any] = {"group": name, "class": number}
            for key, side in zip(("present", "absent"), sides, strict=False):
                cell[key] = [int((side & member).sum()), int((side & member & (answers == own)).sum())]
            compared = member & np.logical_or.reduce(known)
            cells.append({**cell, "auroc": _area(predictions, own, number, compared, units)})
    return {"least": LEAST, "cells": cells, "hidden": bool(rest.any()) or not all(map(all, table))}


def choose_shown(sides: list[list[Bools]], units: NDArray[Any], rest: list[Bools]) -> list[bool]:
    """Return which groups are shown, given the images on each side of a question; see the rule at the top.

    `rest` has the images on each side of groups that are hidden in any case.
    """
    counts = [min(_count(units, side) for side in group) for group in sides]
    shown = [count >= LEAST for count in counts]
    while any(shown) and not _enough_hidden([rest, *_hidden(sides, shown)], units):
        smallest = min((place for place, is_shown in enumerate(shown) if is_shown), key=counts.__getitem__)
        shown[smallest] = False
    return shown


def _hidden(sides: list[list[Bools]], shown: list[bool]) -> list[list[Bools]]:
    return [group for group, is_shown in zip(sides, shown, strict=True) if not is_shown]


def _enough_hidden(hidden: list[list[Bools]], units: NDArray[Any]) -> bool:
    """Return whether the hidden groups have no images together, or enough units on each side."""
    together = [np.logical_or.reduce(side) for side in zip(*hidden, strict=True)]
    return not any(side.any() for side in together) or all(
        _count(units, side) >= LEAST or not side.any() for side in together
    )


def _count(units: NDArray[Any], images: Bools) -> int:
    return len(np.unique(units[images]))


def _area(
    predictions: Predictions, own: NDArray[np.int64], number: int, members: Bools, units: NDArray[Any]
) -> list[float] | None:
    """Return the AUROC in a group, if enough units are on each side."""
    if predictions.chances is None or not np.isfinite(predictions.chances).all():
        return None
    sides = [members & (own == side) for side in (0, 1)]
    least = min(_count(units, side) for side in sides)
    found = auroc(predictions.chances[members, number], own[members] == 1) if least >= LEAST else None
    return None if found is None else interval(*found, least=least)


def describe_cells(figures: dict[str, Any], class_names: list[str]) -> list[tuple[str, ...]]:
    """Return rows: group, class, images, recall, specificity of labels, AUROC, each with its interval."""
    rows = []
    for cell in figures["cells"]:
        recall, specificity = (_share(cell.get(side)) for side in ("present", "absent"))
        area = cell["auroc"]
        shown = "none" if area is None else f"{area[0]:.3f} ({area[1]:.3f} to {area[2]:.3f})"
        row = (cell["group"], class_names[cell["class"]], f"{cell['present'][0]:,}", recall, specificity, shown)
        rows.append(tuple(map(str, row)))
    return rows


def _share(counts: list[int] | None) -> str:
    if counts is None:
        return "none"
    images, right = counts
    low, high = wilson(right / images, images)
    return f"{right / images:.1%} ({low:.1%} to {high:.1%})"


HEAD = ("group", "class or label", "images", "recall (95%)", "specificity (95%)", "AUROC (95%)")
WARNING = (
    f"Some groups are not shown: a figure about fewer than {LEAST} units would be about single patients, and neither "
    "may it follow from the others by subtraction. More test images are needed to compare these groups."
)
