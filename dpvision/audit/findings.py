"""audit.json of a run: lower bounds that audits found, beside the epsilon that is proved. It may be released.

    mechanism    canaries in other runs of the same mechanism: a function of the run's settings alone
    one_run      canaries in this run: their scores are made of noisy sums, and their coins are no one's

The coins and scores themselves are in operator/canaries.json. What was computed from private images is not in here.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision import atomic, runs
from dpvision.audit.canaries import claimed_mu
from dpvision.audit.one_run import OneRun, guesses_for, one_run
from dpvision.audit.profile import Verdict
from dpvision.errors import DataError
from dpvision.privacy import accountant
from dpvision.privacy.events import Event, exposures

FILE, FORMAT = "audit.json", "dpvision-audit-1"


def record(run: runs.Run, section: str, found: dict[str, Any]) -> None:
    """Put one section into audit.json, leaving the other."""
    path = run.folder / FILE
    before = runs.read_json(path) if path.exists() else {}
    whole = {**before, "format": FORMAT, section: found}
    try:
        text = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    except (ValueError, RecursionError) as exc:
        raise DataError(f"{path}: not what an audit writes ({exc}). Fix: remove it, and audit again.") from exc
    atomic.write(path, text, mode=0o644)


def carried(run: runs.Run) -> dict[str, Any] | None:
    """What the canaries of this very run showed; None where it carried none."""
    path = run.folder / FILE
    found = runs.read_json(path).get("one_run") if path.exists() else None
    if found is None:
        return None
    wanted = {"epsilon_at_least": float, "right": int, "guesses": int, "refuted": bool}
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in wanted.items()):
        raise DataError(f"{path}: not what an audit writes. Fix: remove it, and audit again.")
    return found


def of_mechanism(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain values."""
    return {
        "epsilon_proved": verdict.epsilon,
        "epsilon_at_least": verdict.bound.epsilon,
        "delta": verdict.delta,
        "confidence": verdict.bound.confidence,
        "canaries": verdict.bound.runs,
        "mu": {
            "estimate": verdict.estimate.mu,
            "low": verdict.estimate.low,
            "high": verdict.estimate.high,
            "claimed": verdict.claimed_mu,
        },
        "profile": asdict(verdict.profile),
        "refuted": verdict.refuted,
    }


def audit_carried(
    run: runs.Run, scores: NDArray[np.float64], inside: NDArray[np.bool_], *, event: Event, delta: float
) -> OneRun:
    """The bound of the canaries that a run carried, into audit.json; what is known of each, into operator/."""
    guesses = guesses_for(len(scores), max(map(claimed_mu, exposures(event))), delta=delta)
    found = one_run(scores, inside, guesses=guesses, delta=delta)
    proved = accountant.epsilon(event, delta)
    kept = {"inside": [int(x) for x in inside], "scores": scores.tolist()}
    atomic.write(run.operator / "canaries.json", json.dumps(kept) + "\n")
    section = {
        "epsilon_proved": proved if np.isfinite(proved) else None,
        "epsilon_at_least": found.epsilon,
        "delta": delta,
        "confidence": found.confidence,
        "canaries": found.canaries,
        "guesses": found.guesses,
        "right": found.right,
        "refuted": found.refutes(proved),
    }
    record(run, "one_run", section)
    return found
