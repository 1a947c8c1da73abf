"""What audits of a run or a release found, from its audit.json: lower bounds beside the epsilon that is proved."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpvision import audit_file
from dpvision.report.figures import percent

SECTIONS = {
    "mechanism": "audit by canaries in this mechanism",
    "one_run": "audit by canaries in this very run",
}
# What a card tells of each.
FIGURES = ("epsilon_at_least", "confidence", "canaries", "refuted")

# On a picture.
SHORT = {"mechanism": "canaries in this mechanism", "one_run": "canaries in this very run"}


def read(folder: Path, *, sections: Iterable[str] = SECTIONS) -> dict[str, dict[str, Any]] | None:
    """The figures that a card tells, and no others; None where no audit was made."""
    found = audit_file.read(folder)
    told = {name: {figure: found[name][figure] for figure in FIGURES} for name in sections if name in found}
    return told or None


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
