"""Run folders written by hand, as a finished training leaves them: no torch, no training."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from dpvision.core.account import Account, read_line
from dpvision.core.events import Budget, Composed, Event, Gaussian, PoissonGaussian, to_json
from dpvision.settings.training import Config
from dpvision.storage import safetensors
from dpvision.storage.run_folder import NOT_PRIVATE, Run, append_json

NAME = "b82f234dd638"
EVENT = PoissonGaussian(rate=0.1, sigma=2.0, steps=200)
# All that was charged to the data set of the runs that conftest.py writes.
EVENTS = (EVENT, Gaussian(5.0), PoissonGaussian(rate=0.1, sigma=2.0, steps=50))
# What must stay in operator/: a reader of the released files could learn who was in the data from any of them.
FINGERPRINT = "deadbeef" * 8
DATA = "/secret/ward-7/scans"
TRUE_BATCH = 987123
CHARGE_ID = "feedc0de" * 4


def make(folder: Path, *, event: Event = EVENT, config: dict[str, Any] | None = None, **facts: Any) -> Run:
    """A finished run, with `facts` in its run.json and `config` among its settings."""
    run = Run(folder)
    run.operator.mkdir(parents=True)
    settings: dict[str, Any] = {"model": "linear", "n": 1000, "batch": 100, "steps": 200, "sigma": 2.0}
    run.write_config(Config(**settings | (config or {})))
    known = {
        "run": NAME,
        "data": DATA,
        "fingerprint": FINGERPRINT,
        "read_off": [],
        "shape": [3, 32, 32],
        "class_names": ["cat", "dog"],
        "threads": 2,
        "complete": True,
        "event": to_json(Composed((event,))),
        "private": True,
    }
    run.write_facts(known | facts)
    weigh(run)
    for i in range(1, 5):
        line = {"step": 50 * i, "epsilon": 0.8 * i**0.5, "test_accuracy_ema": 0.6 + 0.08 * i, "test_accuracy_last": 0.9}
        append_json(run.metrics, line)
    append_json(run.operator / "log.jsonl", {"step": 1, "units": TRUE_BATCH, "mean_loss": 2.3, "clipped_share": 0.5})
    return run


def weigh(run: Run) -> None:
    """A weights file that agrees with the run."""
    facts, config = run.facts(), run.config()
    header = {
        "event": json.dumps(facts["event"]),
        "config": config.hash(),
        "delta": repr(config.delta),
        "private": "yes" if facts["private"] else NOT_PRIVATE,
    }
    numbers = partial(save, {"w": np.zeros(3, np.float32)})
    run.weights.write_bytes(safetensors.seal(numbers, header))


def account(*events: Event, run: str = NAME, budget: float = 50.0) -> Account:
    """An account with one charge per event; the first is this run's."""
    book = Account("a0736a507830ef2b", Budget(budget, 1e-5), "image", ())
    for i, event in enumerate(events or (EVENT,)):
        line = {"kind": "charge", "id": f"{CHARGE_ID}{i}", "run": run if i == 0 else f"other{i}", "private": True}
        book = read_line(book, {**line, "event": to_json(event), "time": f"2026-11-15T22:0{i}:00+00:00"})
    return book


def released(run: Run) -> dict[str, str]:
    """The text of every file at the top of the folder."""
    return {p.name: p.read_text("utf-8", errors="replace") for p in run.folder.iterdir() if p.is_file()}


def card_of(run: Run) -> dict[str, Any]:
    return dict(json.loads((run.folder / "card.json").read_text("utf-8")))
