"""What audits of a run found, from its audit.json: lower bounds beside the epsilon that is proved."""

from __future__ import annotations

import math
from typing import Any

from dpvision.errors import DataError
from dpvision.report.figures import percent
from dpvision.runs import Run, read_json

FILE, FORMAT = "audit.json", "dpvision-audit-1"
SECTIONS = {
    "mechanism": "audit by canaries in this mechanism",
    "one_run": "audit by canaries in this very run",
}

# On a picture.
SHORT = {"mechanism": "canaries in this mechanism", "one_run": "canaries in this very run"}


def read(run: Run) -> dict[str, dict[str, Any]] | None:
    """The figures that a card tells, and no others; None where no audit was made."""
    path = run.folder / FILE
    if not path.exists():
        return None
    found = read_json(path)
    if found.get("format") != FORMAT:
        raise DataError(f"{path}: not what an audit writes. Fix: remove it, and `dpvision audit {run.folder}` again.")
    return {name: _figures(path, found[name]) for name in SECTIONS if name in found}


def _figures(path: Any, found: Any) -> dict[str, Any]:
    try:
        told = {
            "epsilon_at_least": float(found["epsilon_at_least"]),
            "confidence": float(found["confidence"]),
            "canaries": int(found["canaries"]),
            "refuted": bool(found["refuted"]),
        }
        if not (0 <= told["epsilon_at_least"] < math.inf and 0 < told["confidence"] < 1):
            raise ValueError("a figure is out of range")
        return told
    except (KeyError, ValueError, TypeError, OverflowError) as exc:
        raise DataError(f"{path}: not what an audit writes ({exc}). Fix: remove it and audit again.") from exc


def rows(card: dict[str, Any]) -> list[tuple[str, ...]]:
    """For the table of figures."""
    found: list[tuple[str, ...]] = []
    canaries = card["config"].get("canaries", 0)
    if canaries:
        found.append(
            (
                "canaries in the training",
                f"{canaries:,} units that are no one's, each put in by a secret coin; not counted in the number of "
                f"{card['unit']}s; they cost some accuracy",
            )
        )
    for name, one in (card.get("audit") or {}).items():
        verdict = "REFUTED: more than the claim allows" if one["refuted"] else "not refuted"
        told = f"epsilon at least {one['epsilon_at_least']:.3f} with {percent(one['confidence'])} confidence"
        found.append((SECTIONS[name], f"{told}, {one['canaries']:,} canaries; {verdict}"))
    return found
