"""Canaries in every mechanism: is its claim refuted, and is it when noise is cut to 0.83? And in one training."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.audited_mechanisms import mechanisms
from benchmarks.results import Figure, main
from dpvision.audit.bounds import judge, lower_bound
from dpvision.audit.canaries import CanaryRandom
from dpvision.core.events import Budget
from dpvision.storage import run_folder

DELTA, CUT = 1e-5, 0.83
QUICK = {3.0: 10_000}  # epsilon -> canaries of each mechanism, with as many again for the cut
FULL = {1.0: 80_000, 3.0: 20_000, 8.0: 10_000}
NULLS = 200


def measure(quick: bool) -> list[Figure]:
    torch.set_num_threads(1)
    figures = []
    for epsilon, canaries in (QUICK if quick else FULL).items():
        figures += _mechanisms(epsilon, canaries)
    rng = np.random.default_rng(0)
    above = sum(lower_bound(*rng.normal(size=(2, 1000)), delta=DELTA).epsilon > 0 for _ in range(NULLS))
    figures.append(Figure(f"null scores: {NULLS} bounds, share above 0 (5% are allowed)", above / NULLS, high=0.05))
    return [*figures, *_one_run(3.0 if quick else 8.0)]


def _mechanisms(epsilon: float, canaries: int) -> list[Figure]:
    """Fresh random draws. Confidence is family-wise: 95% over all mechanisms at once."""
    cases, figures, kept, found_out, began = mechanisms(Budget(epsilon, DELTA)), [], 0, 0, time.process_time()
    confidence = 1 - 0.05 / len(cases)
    for name, case in cases.items():
        clean, cut = (
            judge(case(canaries, CanaryRandom(noise=noise)), delta=DELTA, confidence=confidence) for noise in (1.0, CUT)
        )
        kept, found_out = kept + (not clean.refuted), found_out + cut.refuted
        figures += [
            Figure(f"epsilon {epsilon:g}, {name}: epsilon at least", clean.bound.epsilon, high=clean.epsilon),
            Figure(f"epsilon {epsilon:g}, {name}: mu / claimed", clean.estimate.mu / clean.claimed_mu),
            Figure(f"epsilon {epsilon:g}, {name}, noise {CUT:g}: mu / claimed", cut.estimate.mu / cut.claimed_mu),
        ]
    return [
        *figures,
        Figure(f"epsilon {epsilon:g}: mechanisms not refuted, of {len(cases)}", kept, low=len(cases)),
        Figure(f"epsilon {epsilon:g}, noise {CUT:g}: mechanisms refuted, of {len(cases)}", found_out, low=len(cases)),
        Figure(f"epsilon {epsilon:g}: processor seconds", time.process_time() - began, unit="s"),
    ]


def _one_run(epsilon: float) -> list[Figure]:
    """A training on the built-in digits that carries 500 canaries, and one without."""
    from dpvision.private.training.prepare import prepare
    from dpvision.private.training.train import begin, proceed
    from dpvision.settings.training import Config

    figures, hits = [], {}
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("DPVISION_HOME")
        for canaries in (0, 500):
            os.environ["DPVISION_HOME"] = f"{folder}/home {canaries}"
            prepared = prepare("digits", Config(epsilon=epsilon, canaries=canaries))
            run = begin(prepared, Path(folder) / f"run {canaries}")
            hits[canaries] = proceed(run, prepared).accuracy
            if canaries:
                measured = run_folder.read_json(run.folder / "audit.json")["one_run"]
                name = f"one run at epsilon {epsilon:g}, 500 canaries: epsilon at least"
                figures.append(Figure(name, measured["epsilon_at_least"], high=epsilon))
        os.environ.pop("DPVISION_HOME")
        if before is not None:
            os.environ["DPVISION_HOME"] = before
    figures += [Figure(f"the same: accuracy with {k} canaries", v or 0.0) for k, v in hits.items()]
    return figures


ABOUT = (
    "White-box canaries in runs of every mechanism, half of them in the data; delta 1e-5. A claim is refuted by the "
    "profile test or by the matched filter, at a family-wise confidence of 95%; 'noise 0.83' is the same with the true "
    "noise cut to 0.83 of what is claimed. Fresh random draws each time; one thread."
)

if __name__ == "__main__":
    main("audit", measure, about=ABOUT)
