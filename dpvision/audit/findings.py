"""What audits found, as sections of audit.json (record.py), which may leave.

The coins and scores of canaries themselves are in operator/canaries.json. What was computed from private images is in
neither.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvision.audit import record
from dpvision.audit.canaries import claimed_mu
from dpvision.audit.one_run import OneRun, guesses_for, one_run
from dpvision.audit.profile import Verdict
from dpvision.core import accountant, files
from dpvision.core.events import Capped, Composed, Event, exposures, parts
from dpvision.storage import run_folder


def of_mechanism(verdict: Verdict, *, proved: float) -> dict[str, Any]:
    """A verdict as plain values, beside the epsilon of all that was done: settings may have changed on the way."""
    return {
        "epsilon_proved": record.provable(proved),
        "epsilon_tested": verdict.epsilon,
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
    run: run_folder.Run, scores: NDArray[np.float64], inside: NDArray[np.bool_], *, event: Event, delta: float
) -> OneRun:
    """The bound of the canaries that a run carried, into audit.json; what is known of each, into operator/."""
    done = exposures(Composed(parts(event)))  # the steps, not what bounds them
    guesses = guesses_for(len(scores), max(map(claimed_mu, done)), delta=delta)
    found = one_run(scores, inside, guesses=guesses, delta=delta)
    proved = accountant.epsilon(event, max(delta, event.delta) if isinstance(event, Capped) else delta)
    kept = {"inside": [int(x) for x in inside], "scores": scores.tolist()}
    files.write(run.operator / "canaries.json", json.dumps(kept) + "\n")
    section = {
        "epsilon_proved": record.provable(proved),
        "epsilon_at_least": found.epsilon,
        "delta": delta,
        "confidence": found.confidence,
        "canaries": found.canaries,
        "guesses": found.guesses,
        "right": found.right,
        "refuted": found.refutes(proved),
    }
    record.record(run.folder, "one_run", section)
    return found
