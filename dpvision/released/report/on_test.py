"""The part of the page about the test split: every class, confusions as a table of shades, calibration, pictures."""

from __future__ import annotations

from typing import Any

from dpvision.released.report import pictures, tested
from dpvision.released.report.figures import percent, plain

MOST_SHADED = 20  # classes of a whole table of confusions; of more, the pairs that are confused most
MOST_ROWS = 40  # classes that are listed; of more, those that are found least


def section(found: dict[str, Any], examples: list[dict[str, Any]], class_names: list[str]) -> dict[str, Any]:
    """All that the template shows, as plain values; the calibration is a drawn picture."""
    names = [plain(name) for name in class_names]
    rows = tested.of_classes(found, names)
    shown = rows if len(rows) <= MOST_ROWS else sorted(rows, key=lambda r: (r["found"] is None, r["found"]))[:MOST_ROWS]
    summary = tested.summary(found) or {}
    return {
        "images": f"{found['images']:,}",
        "accuracy": percent(summary["accuracy"]),
        "balanced": percent(summary["balanced_accuracy"]),
        "calibration_error": percent(found["calibration_error"]),
        "calibration": pictures.calibration(found["bins"], error=found["calibration_error"]),
        "classes": [_row(r) for r in shown],
        "left_out": len(rows) - len(shown),
        "table": _shaded(found["confusion"], names) if found["confusion"] and len(names) <= MOST_SHADED else None,
        "confused": [(names[a], names[b], f"{times:,}") for a, b, times in found["confused"][:10]],
        "examples": [
            {
                "right": x["class"] == x["named"],
                "png": x["png"],
                "is": names[x["class"]],
                "named": names[x["named"]],
                "chance": f"{100 * x['chance']:.0f}%",
            }
            for x in examples
        ],
    }


def _row(row: dict[str, Any]) -> dict[str, str]:
    told = {key: "none" if row[key] is None else percent(row[key]) for key in ("found", "precise")}
    return {"name": row["name"], "images": f"{row['images']:,}", "width": f"{100 * (row['found'] or 0):.1f}", **told}


def _shaded(table: list[list[int]], names: list[str]) -> list[dict[str, Any]]:
    """Rows of cells: a count, and how dark it is, by its share of the row."""
    shaded = []
    for place, (name, row) in enumerate(zip(names, table, strict=True)):
        whole = sum(row) or 1
        cells = [
            {"count": f"{count:,}" if count else "", "shade": _shade(count / whole), "right": place == at}
            for at, count in enumerate(row)
        ]
        shaded.append({"name": name, "cells": cells})
    return shaded


def _shade(share: float) -> int:
    """0 for nothing; a single confusion can be seen, and so can the difference of a half and nearly all."""
    limits = (0.0, 0.05, 0.2, 0.5, 0.8)
    return sum(share > limit for limit in limits)
