"""audit.json of a run or a release: lower bounds that audits found, beside the epsilon that is proved. It may leave.

    mechanism    canaries in other runs of the same mechanism: a function of the settings alone
    one_run      canaries in this run: their scores are made of noisy sums, and their coins are no one's

It is read as strictly as it is written, since anybody may have edited it: these sections, these figures, of these types
and within their range, or a DataError. A bound above what is claimed is refuted, whatever the file says of it; and
`judged` takes the claim from the run or release itself, not from the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.core.rounding import upper
from dpvision.errors import DataError
from dpvision.storage.run_folder import read_json

FILE, FORMAT = "audit.json", "dpvision-audit-2"
MOST_EPSILON, MOST_CANARIES = 1e6, 10**9
# Of epsilon: as much may lie between what two versions of the accountant prove of one event.
VERSIONS = 0.01
_BOTH: dict[str, Any] = {
    "epsilon_proved": (float, type(None)),  # of everything that the model tells; None is no bound
    "epsilon_at_least": float,
    "delta": float,
    "confidence": float,
    "canaries": int,
    "refuted": bool,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "mechanism": _BOTH
    | {
        "epsilon_tested": float,  # the claim of the mechanism that was run: another, where settings changed on the way
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


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The sections of a folder's audit.json; none where no audit was made."""
    path = folder / FILE
    if not path.exists():
        return {}
    found = read_json(path)
    try:
        if found.pop("format", None) != FORMAT or set(found) - set(SECTIONS):
            raise ValueError("another format, or other sections")
        return {name: _section(SECTIONS[name], section) for name, section in found.items()}
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{path}: not what an audit writes ({exc}). Fix: remove it, and audit again.") from exc


def judged(folder: Path, *, proved: float, tested: float, delta: float) -> dict[str, dict[str, Any]]:
    """The sections, held against what the run or release claims at its delta: infinity where nothing is proved.

    Canaries in this very run are held against all that is `proved` of it, those in other runs of the mechanism against
    what was `tested`. A file that says that something else was proved, or at another delta, is of another run.
    """
    found, limits = read(folder), {"mechanism": tested, "one_run": proved}
    for told in found.values():
        if not math.isclose(told["delta"], delta) or not _same(told["epsilon_proved"], proved):
            raise DataError(
                f"{folder / FILE}: is of another run or release: it says that epsilon {upper(told['epsilon_proved'])} "
                f"is proved at delta {told['delta']:g}, and here it is {upper(proved)} at delta {delta:g}. Fix: remove "
                "it, and audit again."
            )
    return {
        name: {**told, "refuted": told["refuted"] or told["epsilon_at_least"] > limits[name]}
        for name, told in found.items()
    }


def provable(epsilon: float) -> float | None:
    """As the file tells it; None is no bound."""
    return epsilon if epsilon <= MOST_EPSILON else None


def _same(told: float | None, proved: float) -> bool:
    if told is None or provable(proved) is None:
        return told is provable(proved)
    return math.isclose(told, proved, rel_tol=VERSIONS)


def record(folder: Path, name: str, section: dict[str, Any]) -> None:
    """Put one section into audit.json, leaving the other."""
    whole = {"format": FORMAT, **read(folder), name: _section(SECTIONS[name], section)}
    files.write(folder / FILE, json.dumps(whole, indent=1, allow_nan=False) + "\n", mode=0o644)


def _section(wanted: dict[str, Any], found: Any) -> dict[str, Any]:
    told = _typed(wanted, found, "a section")
    epsilons = (told["epsilon_at_least"], told["epsilon_proved"] or 0.0, told.get("epsilon_tested", 0.0))
    if not (all(0 <= x <= MOST_EPSILON for x in epsilons) and 0 < told["delta"] < 1 and 0 < told["confidence"] < 1):
        raise ValueError("epsilon, delta or confidence is out of range")
    if (
        not 2 <= told["canaries"] <= MOST_CANARIES
        or not 0 <= told.get("right", 0) <= told.get("guesses", 0) <= MOST_CANARIES
    ):
        raise ValueError("a count is out of range")
    limit = told.get("epsilon_tested", told["epsilon_proved"])
    return {**told, "refuted": told["refuted"] or (limit is not None and told["epsilon_at_least"] > limit)}


def _typed(wanted: dict[str, Any], found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict) or set(found) != set(wanted):
        raise ValueError(f"{where} has other parts")
    told: dict[str, Any] = {}
    for name, kind in wanted.items():
        value = found[name]
        if isinstance(kind, dict):
            told[name] = _typed(kind, value, name)
        elif type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
            raise ValueError(f"{name} is not of its type")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        elif isinstance(value, str) and value not in ("with", "without"):
            raise ValueError(f"{name} is not with or without")
        else:
            told[name] = value
    return told
