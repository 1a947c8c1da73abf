"""Private tuning: a random number of trials, the best by a public score is released, and the ledger pays for all of it.

    prepare    read the data and the public images, make the candidates, find the noise; nothing is charged
    proceed    charge the whole, then draw the number of trials in secret, train them, release the best

Formal guarantee: the released run folder satisfies the epsilon of one event, `Tuned` (stopping.py), which is on
the ledger before the first trial begins. The score is accuracy on labelled public images, none of which is private: it
is computed from a trial's noisy weights and public data, so it tells no more. A score on private validation images
would need noise and an account of its own for these images, and is not offered.

How many trials there were, which, and their scores stay in operator/: the bound rests on their being secret. The
weights of a trial say that they are not private, and its folder that it is a trial, which cannot go on by itself. All
of them are removed, since epsilon covers the best alone: before the run is complete, and also where it is interrupted
or fails; after a kill, by whatever opens the folder next (leftovers.py). A tuning that is stopped has paid, and cannot
go on: to look at what it did and begin again would be another mechanism.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpvision.core import accountant, files
from dpvision.core.account import Charge
from dpvision.core.events import Budget, Composed, Tuned, to_json
from dpvision.core.sampling import PoissonSampler
from dpvision.data import Dataset, Split, identify, load
from dpvision.errors import ConfigError
from dpvision.models.inputs import Inputs, accuracy
from dpvision.private.accounts.accounts import Accounts, choose, require_not_private
from dpvision.private.training import prepare as trainings
from dpvision.private.training import ranks, train
from dpvision.private.training import stopping as tuning
from dpvision.private.training.stopping import Stopping
from dpvision.private.training.units import units
from dpvision.released.model import load_model
from dpvision.settings.setting import declared
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder, safetensors
from dpvision.storage.leftovers import remove_trials, trials_of

MOST_CANDIDATES = 1000


@dataclass(frozen=True)
class Prepared:
    """Everything but the coins."""

    candidates: tuple[trainings.Prepared, ...]
    given: tuple[dict[str, Any], ...]  # what is particular of each
    stopping: Stopping
    event: Tuned
    score: Split
    score_on: dict[str, Any]

    @property
    def first(self) -> trainings.Prepared:
        return self.candidates[0]

    @property
    def epsilon(self) -> float:
        return accountant.epsilon(self.event, self.first.config.delta)


def prepare(
    source: str, settings: Config, grid: Mapping[str, Sequence[Any]], *, score: str, trials: float, eta: float = 1.0
) -> Prepared:
    """Candidates are all combinations of the grid's values; `trials` are expected."""
    if ranks.ranks() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a tuning runs in one process. Fix: without torchrun.")
    if settings.sigma is not None or settings.canaries or settings.probe_steps or settings.probe_share:
        raise ConfigError("a tuning computes sigma, and takes no canaries and no probe steps. Fix: leave them out.")
    given = _combinations(grid)
    stop = tuning.stopping(trials, eta)
    data = load(
        source,
        classes=settings.classes,
        size=settings.size,
        channels=settings.channels,
        skip_broken=settings.skip_broken,
    )
    configs = [merge(settings, each, source="--grid") for each in given]
    samplers = [_sampler(config, data) for config in configs]
    budget = Budget(settings.epsilon, settings.delta)
    event = tuning.calibrated(budget, [(s.rate, s.steps) for s in samplers], stop)
    candidates = tuple(
        trainings.prepare_read(data, replace(config, sigma=trial.sigma), source=source)  # type: ignore[union-attr]
        for config, trial in zip(configs, event.trials, strict=True)
    )
    for candidate, trial in zip(candidates, event.trials, strict=True):
        if candidate.before:
            raise ConfigError(
                "weights to start from were trained privately: a tuning does not count them. Fix: others."
            )
        assert candidate.event() == trial
    split, named = trainings.public_images(score, data, set(identify(data.train)[2]))
    require_not_private(score, [split], fix="public images to score by")
    return Prepared(candidates, tuple(given), stop, event, split, named)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    # What may differ between candidates: how a network learns, and neither whom it learns from nor what it reveals.
    tunable = [name for name, of in declared(Config).items() if of.tunable]
    for name, values in grid.items():
        if name not in tunable:
            raise ConfigError(f"{name} cannot be tuned. Fix: one of {', '.join(tunable)}.")
        if not values:
            raise ConfigError(f"{name} has no values to try. Fix: --grid {name}=1,2.")
    found = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not 2 <= len(found) <= MOST_CANDIDATES:
        raise ConfigError(f"the grid has {len(found)} candidates: 2 to {MOST_CANDIDATES} make a choice.")
    return found


def _sampler(config: Config, data: Dataset) -> PoissonSampler:
    """Who is in which step, before the noise is known."""
    whole = replace(config, sigma=1.0).complete(units(data.train, config.unit))
    assert whole.batch and whole.n and whole.steps
    return PoissonSampler(whole.batch, whole.n, whole.steps)


def proceed(
    prepared: Prepared,
    folder: Path,
    *,
    accounts: Accounts | None = None,
    watch: Callable[[int], None] = lambda _: None,
) -> run_folder.Run:
    """Charge, try, release the best. `watch` is told how many trials are done, for the operator's eyes."""
    run_folder.require_free(folder)
    accounts = accounts or choose(prepared.first.fingerprint, prepared.first.sketch)
    accounts.require_room(prepared.event, prepared.first.config)
    first, name = prepared.first, secrets.token_hex(6)
    for candidate in {c.tried_as: c for c in prepared.candidates}.values():
        candidate.require_separable()
    facts = _facts(prepared, name, accounts)
    run = run_folder.create(folder, first.config, facts, b"")
    with run_folder.only_one(run):
        charge, accounts = _charged(prepared, name, accounts)
        facts["accounts"] = accounts.to_facts()
        run.write_facts(facts)
        # On the disk from here on.
        try:
            best, which, score = _best(run, prepared, charge, accounts, watch)
            _release(run, prepared, best, which, score=score, facts=facts)
        finally:
            remove_trials(run)
    return run


def _best(
    run: run_folder.Run, prepared: Prepared, charge: Charge, accounts: Accounts, watch: Callable[[int], None]
) -> tuple[run_folder.Run, int, float]:
    """The best trial of a number drawn in secret, which candidate it is, and its score."""
    best: tuple[float, int, run_folder.Run, int] | None = None
    for number in range(1, prepared.stopping.draw() + 1):
        which = secrets.randbelow(len(prepared.candidates))
        candidate = prepared.candidates[which]
        trial = train.run(candidate, trials_of(run) / str(number), paid=charge, accounts=accounts).run
        found = accuracy(load_model(trial.folder).model, Inputs(prepared.score))
        run_folder.append_json(
            run.operator / "trials.jsonl", {"trial": number, **prepared.given[which], "score": found}
        )
        place = (found, secrets.randbits(64), trial, which)  # a coin breaks ties
        best = place if best is None else max(best, place, key=lambda x: x[:2])
        watch(number)
    assert best is not None
    return best[2], best[3], best[0]


def _charged(prepared: Prepared, name: str, accounts: Accounts) -> tuple[Charge, Accounts]:
    tuning.require_proven(prepared.event)
    first, config = prepared.first, prepared.first.config
    return accounts.charge(
        prepared.event,
        Budget(config.budget or config.epsilon, config.delta),
        fingerprint=first.fingerprint,
        sketch=first.sketch,
        id=secrets.token_hex(16),
        run=name,
        unit=config.unit,
    )


def _facts(prepared: Prepared, name: str, accounts: Accounts) -> dict[str, Any]:
    first = prepared.first
    return {
        "run": name,
        "data": first.source if first.source == "digits" else str(Path(first.source).resolve()),
        "fingerprint": first.fingerprint,
        "accounts": accounts.to_facts(),
        "in_order": first.in_order,
        "public": first.public,
        "read_off": list(first.read_off),
        "shape": list(first.shape),
        "class_names": list(first.data.classes),
        "complete": False,
        "tuning": {
            "candidates": len(prepared.candidates),
            "expected_trials": prepared.stopping.mean,
            "eta": prepared.stopping.eta,
            "gamma": prepared.stopping.gamma,
            "score": prepared.score_on["file"],
            "score_digest": prepared.score_on["digest"],
            "score_images": len(prepared.score),
        },
    }


def _release(
    run: run_folder.Run, prepared: Prepared, trial: run_folder.Run, which: int, *, score: float, facts: dict[str, Any]
) -> None:
    """The best trial's model and settings, with the event of the whole; its own is no guarantee of the choice."""
    candidate, model = prepared.candidates[which], load_model(trial.folder).model
    tensors, header = safetensors.load(trial.weights, model.state_dict())
    event = to_json(Composed((prepared.event,)))
    plain = {k: v for k, v in header.items() if k not in ("digest", "signature")}
    told = {**plain, "event": json.dumps(event), "private": "yes"}
    files.write(run.weights, safetensors.dump(tensors, told), mode=0o644)
    run.write_config(candidate.config)
    last: dict[str, Any] = next(reversed(run_folder.read_lines(trial.metrics)), {})
    files.write(run.metrics, json.dumps({**last, "epsilon": prepared.epsilon}) + "\n")
    chosen = {**facts["tuning"], "chosen": prepared.given[which], "score_of_the_chosen": score}
    remove_trials(run)  # none of them may ever be taken for private
    run.write_facts({**facts, "complete": True, "event": event, "private": True, "tuning": chosen})
    without_times(run)


def without_times(run: run_folder.Run) -> None:
    """Give what may leave the time of midnight: when it was written tells how long the trials took."""
    midnight = datetime.combine(datetime.now(UTC).date(), datetime.min.time(), UTC).timestamp()
    for path in run.folder.iterdir():
        if path.is_file():
            os.utime(path, (midnight, midnight))
    os.utime(run.folder, (midnight, midnight))
