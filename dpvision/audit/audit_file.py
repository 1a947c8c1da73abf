"""audit.json of a run or a release: lower bounds from audits, and the proven epsilon. It may be released.

    mechanism    canaries in other runs of the same mechanism; depends on the settings only
    one_run      synthetic canaries in this run; computed from noisy sums

Anyone may have edited the file, so only these sections and fields, of these types and within their ranges, are read.
Anything else is a DataError. A bound above the claim refutes it, whatever the file states, and `read_and_judge` takes
the claim from the run or release, not from the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.errors import DataError
from dpvision.settings.figures import upper
from dpvision.storage.run_folder import read_json

FILE, FORMAT = "audit.json", "dpvision-audit-2"
LARGEST_EPSILON, MAX_CANARIES = 1e6, 10**9
# Tolerated relative difference of epsilon between two versions of the accountant.
VERSIONS = 0.01
_BOTH: dict[str, Any] = {
    "epsilon_proved": (float, type(None)),  # of everything that the model reveals; None if there is no bound
    "epsilon_at_least": float,
    "delta": float,
    "confidence": float,
    "canaries": int,
    "refuted": bool,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "mechanism": _BOTH
    | {
        "epsilon_tested": float,  # claimed for the attacked mechanism; settings may have changed in training
        "mu": {"estimate": float, "low": float, "high": float, "claimed": float},
        "profile": {
            "refuted": bool,
            "epsilon": float,
            "claimed": float,
            "shown": float,
            "threshold": float,
            "guess": str,
            "confidence": float,
        },
    },
    "one_run": _BOTH | {"guesses": int, "right": int},
}


def read_sections(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a folder's audit.json; an empty dictionary if there was no audit."""
    path = folder / FILE
    if not path.exists():
        return {}
    content = read_json(path)
    try:
        if content.pop("format", None) != FORMAT or set(content) - set(SECTIONS):
            raise ValueError("unknown format or section")
        return {name: _section(SECTIONS[name], section) for name, section in content.items()}
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{path}: not a valid file of an audit ({exc}). Fix: remove it and audit again.") from exc


def read_and_judge(folder: Path, *, proved: float, tested: float, delta: float) -> dict[str, dict[str, Any]]:
    """Return the sections, compared with the epsilons that the run or release claims (infinity if none is proven).

    Canaries in this run are compared with `proved`, the epsilon of everything that the run reveals; canaries in other
    runs of the mechanism with `tested`. A file with another proven epsilon or delta belongs to another run.
    """
    sections, limits = read_sections(folder), {"mechanism": tested, "one_run": proved}
    for section in sections.values():
        if not math.isclose(section["delta"], delta) or not _is_same(section["epsilon_proved"], proved):
            raise DataError(
                f"{folder / FILE}: belongs to another run or release: it states a proven epsilon of "
                f"{upper(section['epsilon_proved'])} at delta {section['delta']:g}, and here it is {upper(proved)} at "
                f"delta {delta:g}. Fix: remove it and audit again."
            )
    return {
        name: {**section, "refuted": section["refuted"] or section["epsilon_at_least"] > limits[name]}
        for name, section in sections.items()
    }


def write_section(folder: Path, name: str, section: dict[str, Any]) -> None:
    """Write one section to audit.json; the other is unchanged."""
    whole = {"format": FORMAT, **read_sections(folder), name: _section(SECTIONS[name], section)}
    files.write(folder / FILE, json.dumps(whole, indent=1, allow_nan=False) + "\n", mode=0o644)


def finite_or_none(epsilon: float) -> float | None:
    """Return epsilon, or None, which means "no bound" in the file."""
    return epsilon if epsilon <= LARGEST_EPSILON else None


def _is_same(stated: float | None, proved: float) -> bool:
    if stated is None or finite_or_none(proved) is None:
        return stated is finite_or_none(proved)
    return math.isclose(stated, proved, rel_tol=VERSIONS)


def _section(schema: dict[str, Any], content: Any) -> dict[str, Any]:
    section = _check_types(schema, content, "a section")
    epsilons = (section["epsilon_at_least"], section["epsilon_proved"] or 0.0, section.get("epsilon_tested", 0.0))
    if not all(0 <= x <= LARGEST_EPSILON for x in epsilons) or not all(
        0 < section[x] < 1 for x in ("delta", "confidence")
    ):
        raise ValueError("epsilon, delta or confidence is out of range")
    guesses = section.get("guesses", 0)
    if not 2 <= section["canaries"] <= MAX_CANARIES or not 0 <= section.get("right", 0) <= guesses <= MAX_CANARIES:
        raise ValueError("a count is out of range")
    limit = section.get("epsilon_tested", section["epsilon_proved"])
    return {**section, "refuted": section["refuted"] or (limit is not None and section["epsilon_at_least"] > limit)}


def _check_types(schema: dict[str, Any], content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict) or set(content) != set(schema):
        raise ValueError(f"{where} has missing or unknown fields")
    checked: dict[str, Any] = {}
    for name, kind in schema.items():
        value = content[name]
        if isinstance(kind, dict):
            checked[name] = _check_types(kind, value, name)
        elif type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise ValueError(f"{name} has the wrong type")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        elif isinstance(value, str) and value not in ("with", "without"):
            raise ValueError(f"{name} is neither 'with' nor 'without'")
        else:
            checked[name] = value
    return checked
