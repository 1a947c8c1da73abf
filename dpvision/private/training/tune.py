"""Private tuning: train a random number of trials and release the best by a public score, with a charge for all of it.

    prepare    read the data and the public images, list the candidates, calibrate the noise; nothing is charged
    proceed    charge the whole tuning, draw the number of trials in secret, train them, release the best

Formal guarantee: the released run folder satisfies the epsilon of one event, `Tuned` (stopping.py), which is in the
ledger before the first trial begins. The score is the accuracy on labelled public images, none of which is private. It
is computed from the noisy weights of a trial and public data, so it reveals nothing more. A score on private validation
images would need noise and a separate account for these images, and is not supported.

The number of trials, their candidates and their scores stay in operator/, because the bound requires them to be secret.
The weights of a trial are marked as not private, and its folder as a trial, which cannot be resumed separately. Since
epsilon covers only the best trial, all trials are removed: before the run is complete, and also if the tuning is
interrupted or fails; after a kill, by the next command that opens the folder. An interrupted tuning remains charged and
cannot be resumed: looking at its results and starting again would be another mechanism.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from dpvision.private.training import ranks, stopping, train
from dpvision.private.training.prepare import Prepared, prepare_read
from dpvision.private.training.private_sum import count_units
from dpvision.private.training.public_inputs import read_public_images
from dpvision.private.training.stopping import Stopping
from dpvision.released.model import load_model
from dpvision.settings.setting import declared, reading_options, with_share
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder, safetensors
from dpvision.storage.run_folder import remove_trials, trials_of

MAX_CANDIDATES = 1000


@dataclass(frozen=True)
class PreparedTuning:
    """A tuning before its random draws: its candidates, their event and the public images to score by."""

    candidates: tuple[Prepared, ...]
    given: tuple[dict[str, Any], ...]  # the tuned settings of each candidate
    stopping: Stopping
    event: Tuned
    score: Split
    score_on: dict[str, Any]

    @property
    def first(self) -> Prepared:
        """The first candidate, for everything that all candidates share."""
        return self.candidates[0]

    @property
    def epsilon(self) -> float:
        """The epsilon of the whole tuning."""
        return accountant.epsilon(self.event, self.first.config.delta)


def prepare(
    source: str, settings: Config, grid: Mapping[str, Sequence[Any]], *, score: str, trials: float, eta: float = 1.0
) -> PreparedTuning:
    """Prepare a tuning run over all combinations of the grid's values; `trials` is the expected number of trials."""
    if ranks.ranks() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("a tuning runs in a single process. Fix: run it without torchrun.")
    if settings.sigma is not None or settings.canaries or settings.probe_steps or settings.probe_share:
        raise ConfigError(
            "a tuning run computes sigma, and supports neither canaries nor probe steps. Fix: leave them out."
        )
    given = _combinations(grid)
    stop = stopping.stopping(trials, eta)
    data = load(source, **reading_options(settings))
    settings = with_share(settings, data.test_share, source=source)
    configs = [merge(settings, values, source="--grid") for values in given]
    samplers = [_sampler(config, data) for config in configs]
    budget = Budget(settings.epsilon, settings.delta)
    event = stopping.calibrate_tuning(budget, [(s.rate, s.steps) for s in samplers], stop)
    candidates = tuple(
        prepare_read(data, replace(config, sigma=trial.sigma), source=source)  # type: ignore[union-attr]
        for config, trial in zip(configs, event.trials, strict=True)
    )
    for candidate, trial in zip(candidates, event.trials, strict=True):
        if candidate.public.earlier_events:
            raise ConfigError(
                "the initial weights were trained privately, and a tuning cannot count their event. Fix: use "
                "other weights."
            )
        assert candidate.event() == trial
    split, named = read_public_images(score, data, set(identify(data.train)[2]))
    require_not_private(score, [split], fix="use public images for the score")
    return PreparedTuning(candidates, tuple(given), stop, event, split, named)


def _combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of the values, which may change how a network is trained, but not its data or privacy."""
    tunable = [name for name, setting in declared(Config).items() if setting.tunable]
    for name, values in grid.items():
        if name not in tunable:
            raise ConfigError(f"{name} cannot be tuned. Fix: use one of {', '.join(tunable)}.")
        if not values:
            raise ConfigError(f"{name} has no values to try. Fix: use --grid {name}=1,2.")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not 2 <= len(combinations) <= MAX_CANDIDATES:
        raise ConfigError(f"the grid has {len(combinations)} candidates: it must have 2 to {MAX_CANDIDATES}.")
    return combinations


def _sampler(config: Config, data: Dataset) -> PoissonSampler:
    """Return the sampler of a candidate, before the noise is calibrated."""
    complete = replace(config, sigma=1.0).complete(count_units(data.train, config.unit))
    assert complete.batch and complete.n and complete.steps
    return PoissonSampler(complete.batch, complete.n, complete.steps)


def proceed(
    prepared: PreparedTuning,
    folder: Path,
    *,
    accounts: Accounts | None = None,
    watch: Callable[[int], None] = lambda _: None,
) -> run_folder.Run:
    """Charge, train the trials, release the best. `watch` receives the number of trials so far, not for release."""
    run_folder.require_free(folder)
    accounts = accounts or choose(prepared.first.fingerprint, prepared.first.sketch)
    accounts.require_room(prepared.event, prepared.first.config)
    first, name = prepared.first, secrets.token_hex(6)
    for candidate in {c.certified_settings: c for c in prepared.candidates}.values():
        candidate.require_certificate()
    facts = _facts(prepared, name, accounts)
    run = run_folder.create(folder, first.config, facts, b"")
    with run_folder.only_one(run):
        charge, accounts = _charge(prepared, name, accounts)
        facts["accounts"] = accounts.to_facts()
        run.write_facts(facts)
        # From here on, the charge is on disk.
        try:
            best, which, score = _train_trials(run, prepared, charge, accounts, watch)
            _release(run, prepared, best, which, score=score, facts=facts)
        finally:
            remove_trials(run)
    return run


def _train_trials(
    run: run_folder.Run, prepared: PreparedTuning, charge: Charge, accounts: Accounts, watch: Callable[[int], None]
) -> tuple[run_folder.Run, int, float]:
    """Train a secretly drawn number of trials; return the best trial, its candidate number and its score."""
    best: tuple[float, int, run_folder.Run, int] | None = None
    for number in range(1, prepared.stopping.draw() + 1):
        which = secrets.randbelow(len(prepared.candidates))
        candidate = prepared.candidates[which]
        trial = train.run(candidate, trials_of(run) / str(number), tuning_charge=charge, accounts=accounts).run
        score = accuracy(load_model(trial.folder).model, Inputs(prepared.score), candidate.network.task)
        run_folder.append_json(
            run.operator / "trials.jsonl", {"trial": number, **prepared.given[which], "score": score}
        )
        outcome = (score, secrets.randbits(64), trial, which)  # ties are broken at random
        best = outcome if best is None else max(best, outcome, key=lambda x: x[:2])
        watch(number)
    assert best is not None
    return best[2], best[3], best[0]


def _charge(prepared: PreparedTuning, name: str, accounts: Accounts) -> tuple[Charge, Accounts]:
    stopping.require_proven(prepared.event)
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


def _facts(prepared: PreparedTuning, name: str, accounts: Accounts) -> dict[str, Any]:
    return {
        **train.facts_of(prepared.first, name, accounts),
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
    run: run_folder.Run,
    prepared: PreparedTuning,
    trial: run_folder.Run,
    which: int,
    *,
    score: float,
    facts: dict[str, Any],
) -> None:
    """Write the best trial's model and settings, with the event of the tuning, which covers the choice."""
    candidate, model = prepared.candidates[which], load_model(trial.folder).model
    tensors, header = safetensors.load(trial.weights, model.state_dict())
    event = to_json(Composed((prepared.event,)))
    plain = {k: v for k, v in header.items() if k not in ("digest", "signature")}
    metadata = {**plain, "event": json.dumps(event), "private": "yes"}
    files.write(run.weights, safetensors.dump(tensors, metadata), mode=0o644)
    run.write_config(candidate.config)
    last: dict[str, Any] = next(reversed(run_folder.read_lines(trial.metrics)), {})
    files.write(run.metrics, json.dumps({**last, "epsilon": prepared.epsilon}) + "\n")
    chosen = {**facts["tuning"], "chosen": prepared.given[which], "score_of_the_chosen": score}
    remove_trials(run)  # none of them may ever be mistaken for private
    run.write_facts({**facts, "complete": True, "event": event, "private": True, "tuning": chosen})
    run_folder.hide_times(run)
