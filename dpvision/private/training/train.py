"""A run of private training: everything around the steps (loop.py), in order.

    prepare    (prepare.py) read the data and complete the settings from public numbers; nothing is charged
    run        all of the following, for the command line, the estimators, tuning runs and shadow models
    begin      create the run folder and its key; nothing is charged yet
    proceed    charge the ledger (charging.py), train (loop.py), write the files for release; also resumes a run

Under torchrun, every rank does all of this with its own share of the data, but only rank 0 charges, adds noise and
writes. The run folder and $DPVISION_HOME must be on a file system that all ranks share, because no key is sent.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpvision.audit.one_run import audit_one_run
from dpvision.core import files
from dpvision.core.account import Charge
from dpvision.core.events import Event, from_json, to_json
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.errors import ConfigError, DataError, LedgerMismatch, PrivacyError, RankLost
from dpvision.models.featured import CLASS_SHARES
from dpvision.models.inputs import Inputs, predict
from dpvision.private.accounts.accounts import Accounts, choose, read_accounts
from dpvision.private.training import metrics, ranks
from dpvision.private.training.canaries import Canaries, draw_inclusion, read_inclusion, require_enough_weights
from dpvision.private.training.charging import await_charge, charge, require_certificate
from dpvision.private.training.loop import Progress, Watch, train_steps
from dpvision.private.training.metrics import Tracker, open_trackers, send_to
from dpvision.private.training.network import fewest_weights
from dpvision.private.training.prepare import Prepared, prepare
from dpvision.private.training.private_sum import count_units
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State, event_charged, flat_weights, load_weights, trainable
from dpvision.released import evaluation, report
from dpvision.settings.setting import declared
from dpvision.settings.training import WAYS, Config, merge
from dpvision.storage import run_folder, safetensors
from dpvision.storage.run_folder import clear


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: whether it is complete, the event of the published weights, and their test accuracy."""

    run: run_folder.Run
    complete: bool
    event: Event
    accuracy: float | None
    seconds: float
    private: bool


class Display:
    """Shows an operator the progress of a run and can stop it. This base class shows nothing and never stops."""

    @contextmanager
    def features(self) -> Iterator[Callable[[int, int], None]]:
        """Yield a function of (done, total) to call while features are computed."""
        yield lambda *_: None

    @contextmanager
    def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
        """Yield a function to call after each training step, and one that returns whether to stop."""
        yield (lambda _: None), (lambda: False)


def run(
    prepared: Prepared,
    to: Path | run_folder.Run,
    *,
    test_key: str | None = None,
    tuning_charge: Charge | None = None,
    accounts: Accounts | None = None,
    key_name: str | None = None,
    track: Sequence[str] = (),
    display: Display | None = None,
) -> Outcome:
    """Do a whole run in a new folder, or the rest of an existing run: charge, train, release.

    `track` names trackers, which receive the lines of metrics.jsonl. The other arguments are those of `begin`.
    """
    run, display, first = to, display or Display(), ranks.team().first
    if not isinstance(run, run_folder.Run):
        run = begin(prepared, run, test_key=test_key, tuning_charge=tuning_charge, accounts=accounts, key_name=key_name)
    with display.features() as progress:
        prepared.compute_features(progress)
    with open_trackers(track if first else (), run.folder) as trackers, display.training() as (watch, stop):
        return proceed(run, prepared, watch=watch, stop=stop, trackers=trackers, tuning_charge=tuning_charge)


def begin(
    prepared: Prepared,
    folder: Path,
    *,
    test_key: str | None = None,
    tuning_charge: Charge | None = None,
    accounts: Accounts | None = None,
    key_name: str | None = None,
) -> run_folder.Run:
    """Create the run folder. The key is on disk before the folder exists; `proceed` makes the charge.

    `tuning_charge` is the charge of the tuning if this run is one of its trials, which are not charged again.
    `accounts` are the accounts to charge; by default those that have some of the images. `key_name` is the name of the
    run's key; by default a random one.
    """
    team = ranks.team()
    with _advise("Nothing was charged. Fix: repair that rank, then start all ranks again."):
        _require_same_on_all_ranks(prepared, team)
        run = run_folder.Run(Path(os.path.abspath(folder)))
        if team.first:
            accounts = accounts or choose(prepared.fingerprint, prepared.sketch)
            run = _create(prepared, folder, test_key, tuning_charge, accounts, key_name or secrets.token_hex(8))
        else:
            require_certificate(prepared, team)
        team.wait()
    if not run.operator.exists():
        raise ConfigError(
            f"{run.folder}: rank {team.rank} does not see the folder that rank 0 created. Fix: use --out on a "
            "file system that all ranks share."
        )
    return run


def _create(
    prepared: Prepared,
    folder: Path,
    test_key: str | None,
    tuning_charge: Charge | None,
    accounts: Accounts,
    key_name: str,
) -> run_folder.Run:
    config = prepared.config
    run_folder.require_free(folder)
    if tuning_charge is None:
        accounts.require_room(prepared.event(), config)
    model = prepared.network.build()
    require_certificate(prepared, ranks.team())
    require_room_for_canaries(prepared)
    key = Key.for_tests(test_key) if test_key else Key.fresh()
    key.write(run_folder.key_path(key_name))
    facts = facts_of(prepared, secrets.token_hex(6), accounts)
    facts |= {"threads": torch.get_num_threads(), "ranks": ranks.ranks(), "complete": False}
    facts["reading_rule"] = prepared.rule
    if tuning_charge is not None:
        facts["trial_of"] = tuning_charge.run
    if config.canaries:
        facts["canaries"] = draw_inclusion(key, config.canaries)
    weights = flat_weights(model)
    state = State(
        weights=weights,
        momentum=torch.zeros_like(weights),
        ema=weights.clone(),
        key=key_name,
        private=key.private,
        config=config,
        software=prepared.software(),
        path=prepared.public.earlier_events,
        second=torch.zeros_like(weights) if WAYS[config.assist].second_moment else None,
        canaries=torch.zeros(config.canaries, dtype=torch.float64) if config.canaries else None,
    )
    return run_folder.create(folder, config, facts, state.dump())


def facts_of(prepared: Any, name: str, accounts: Accounts) -> dict[str, Any]:
    """Return the facts about a run's data for operator/run.json."""
    return {
        "run": name,
        "data": prepared.source if prepared.source == "digits" else str(Path(prepared.source).resolve()),
        "fingerprint": prepared.fingerprint,
        "accounts": accounts.to_facts(),
        "in_order": prepared.in_order,
        "public": prepared.public.names,
        "public_stated": prepared.public.stated,
        "read_off": list(prepared.read_off),
        "shape": list(prepared.shape),
        "class_names": list(prepared.data.classes),
    }


def name_task(task: str) -> dict[str, str]:
    """Return the entry of the header of weights that names their task; models of one class per image need none."""
    return {} if task == "classes" else {"task": task}


def require_room_for_canaries(prepared: Prepared) -> None:
    """Require, before anything is charged, that every phase trains at least as many weights as there are canaries."""
    if prepared.config.canaries:
        require_enough_weights(prepared.config.canaries, fewest_weights(prepared.network))


def reopen(run: run_folder.Run, changes: dict[str, Any] | None = None) -> Prepared:
    """Prepare the training of an existing run again, with changed settings if any are given."""
    facts = run.facts()
    _require_no_trial(run, facts)
    if "tuning" in facts:
        clear(run)
        raise ConfigError(
            f"{run.folder}: is a tuning run, which cannot be resumed. Fix: start a new one, with its own charge."
        )
    before = State.config_of(safetensors.read(run.state).header, run.state)
    config = merge(before, changes or {}, source="resume")
    known = declared(Config)  # a change starts a new branch, with fresh noise and its own charge
    fixed = sorted(k for k in (changes or {}) if not known[k].resumable and getattr(config, k) != getattr(before, k))
    if fixed:
        raise ConfigError(f"{run.folder}: {', '.join(fixed)} cannot change in an existing run. Fix: start a new run.")
    prepared = prepare(run_folder.fact(facts, "data", str), config, rule=rule_of(facts))
    require_same_data(facts, prepared)
    return prepared


def rule_of(facts: dict[str, Any]) -> int:
    """The rule by which the image files of a run become pixels; 1 for a run that began before there was another."""
    return run_folder.fact(facts, "reading_rule", int) if "reading_rule" in facts else 1


def _require_no_trial(run: run_folder.Run, facts: dict[str, Any]) -> None:
    """Refuse a trial of a tuning run: the charge pays only for the best trial, so trials cannot continue separately."""
    if "trial_of" in facts:
        raise ConfigError(
            f"{run.folder}: is a trial of the tuning {facts['trial_of']}, whose charge covers only its best trial, so "
            "it cannot be resumed separately. Fix: start a new run, with its own charge."
        )


def _require_same_on_all_ranks(prepared: Prepared, team: Team) -> None:
    """Require the same data and settings on all ranks, whose clipped sums are added up."""
    team.require_same({"the training data": prepared.everything, "the settings": prepared.config.hash()})


def require_same_data(facts: dict[str, Any], prepared: Any) -> None:
    """Refuse data or public inputs that changed since the run began."""
    if (prepared.fingerprint, prepared.in_order) != (facts.get("fingerprint"), facts.get("in_order")):
        raise LedgerMismatch(
            f"{prepared.source}: the training data, or its order, changed since the run began, so continuing with the "
            "same noise would reveal the difference. Fix: restore the data, or start a new run."
        )
    if not prepared.public.are(facts.get("public", {})):
        raise LedgerMismatch(
            f"{prepared.source}: the public weights or images changed since the run began. Fix: restore them, or start "
            "a new run."
        )


def proceed(
    run: run_folder.Run,
    prepared: Prepared,
    *,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    trackers: Sequence[Tracker] = (),
    tuning_charge: Charge | None = None,
) -> Outcome:
    """Charge, train to the end (or until `stop`), release. Called again after a crash, it gives the same bits.

    Trackers receive the lines of metrics.jsonl, which may be released, and nothing else.
    """
    team = ranks.team()
    advice = (
        "The charge remains in the ledger; resuming the run from the last saved step with the same number of ranks "
        f"is not charged again. Fix: run `torchrun --nproc-per-node {team.ranks} -m dpvision -- resume {run.folder}` "
        "(another number of ranks would be a new branch with a separate charge)."
    )
    with _advise(advice, run), run_folder.only_one(run) if team.first else nullcontext():
        return _proceed(run, prepared, Watch(watch, stop, send_to(trackers)), team, tuning_charge)


@contextmanager
def _advise(text: str, run: run_folder.Run | None = None) -> Iterator[None]:
    """Add advice to the errors for a failed worker process and for insufficient memory on the device."""
    try:
        yield
    except RankLost as exc:
        raise RankLost(f"{exc} {text}") from exc
    except torch.OutOfMemoryError as exc:
        if run is None:
            raise
        raise DataError(
            "the device ran out of memory, perhaps because another program has used some since the test. The charge "
            "remains in the ledger, and resuming is not charged again. Fix: free memory, then `dpvision resume "
            f"{run.folder}` continues from the last saved step with the same noise. (A smaller --physical would be a "
            "new branch with a separate charge.)"
        ) from exc


def _proceed(
    run: run_folder.Run, prepared: Prepared, watch: Watch, team: Team, tuning_charge: Charge | None
) -> Outcome:
    facts = run.facts()
    if tuning_charge is None:
        _require_no_trial(run, facts)
    require_same_data(facts, prepared)
    # The order of summation, and with it the last bits, depends on the number of threads.
    torch.set_num_threads(run_folder.fact(facts, "threads", int))
    _require_same_on_all_ranks(prepared, team)
    team.require_same({"the software, device or precision": prepared.software()})
    config, sampler, network = prepared.config, prepared.sampler, prepared.network
    assert config.sigma  # complete
    model = network.build()
    if facts.get("complete") is True:
        state = State.load(run.state, model)
        if team.first:
            Key.destroy(run_folder.key_path(state.key))
        return _outcome(run, state, prepared, from_json(run_folder.fact(facts, "event", dict)), 0.0)
    inputs = network.load_or_compute_inputs(prepared.data.train, model)
    data = f"{prepared.everything} {inputs.digest_features()}"
    canaries = None
    if config.canaries:
        units = count_units(prepared.data.train, config.unit)
        included = read_inclusion(facts, config.canaries)
        canaries = Canaries(included, sampler, sigma=config.sigma, seed=config.seed, units=units)
        data += f" {facts['canaries']}"
    team.require_same({"the features": data})
    if team.first:
        state, key, charged = charge(run, prepared, model, team, data, tuning_charge)
    else:
        state, key, charged = await_charge(run, prepared, model, team, data)

    largest = read_accounts(run.facts()).first.account().largest_budget
    event = event_charged(state, largest, before=len(prepared.public.earlier_events))
    test = None if prepared.data.test is None else network.load_or_compute_inputs(prepared.data.test, model)
    began = time.monotonic()
    state = train_steps(
        run,
        prepared,
        state,
        Gate(charged, key, sampler, name=state.branch, first=state.first),
        model=model,
        inputs=inputs,
        test=test,
        canaries=canaries,
        epsilon=metrics.stated_epsilon(event, config.delta),
        team=team,
        watch=watch,
    )
    if team.first:
        state.save(run)
        if state.step == sampler.steps:
            _release(run, state, prepared, model, test, event, trial=tuning_charge is not None)
    team.wait()  # no rank ends before everything is on disk
    return _outcome(run, state, prepared, event, time.monotonic() - began)


def _release(
    run: run_folder.Run,
    state: State,
    prepared: Prepared,
    model: nn.Module,
    test: Inputs | None,
    event: Event,
    *,
    trial: bool,
) -> None:
    """Write the files for release, mark the run complete, then destroy the key. The weights of a trial are marked."""
    config = prepared.config
    if torch.equal(state.weights, flat_weights(prepared.network.build())):
        raise PrivacyError(f"{run.folder}: internal error: the weights are unchanged after {state.step} steps.")
    load_weights(state.ema if config.release == "ema" else state.weights, trainable(model))
    header = {
        "format": "dpvision-weights-1",
        "model": str(config.model),
        "shape": json.dumps(list(prepared.shape)),
        "classes": json.dumps(list(prepared.data.classes)),
        **name_task(config.task),
        "reading": json.dumps(
            {"rule": prepared.rule}
            | {name: getattr(config, name) for name in ("test_share", "window", "columns", "skip_broken")}
        ),
        "config": config.hash(),
        "unit": config.unit,
        "event": json.dumps(to_json(event)),
        "delta": repr(config.delta),
        "private": run_folder.NOT_PRIVATE if not state.private else run_folder.A_TRIAL if trial else "yes",
    }
    provenance = prepared.public.read_provenance()
    if provenance:
        header["learned_from"] = provenance
    done = {"complete": True, "event": to_json(event), "private": state.private}
    if not trial:
        card = report.on_weights({**run.facts(), **done}, config.without_folders())
        header["card"] = json.dumps(card, sort_keys=True, allow_nan=False)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != CLASS_SHARES}
    files.write(run.weights, safetensors.dump(weights, header), mode=0o644)
    if test is not None and prepared.data.test is not None:
        evaluation.write(
            run.folder,
            prepared.data.test,
            predict(prepared.network.learner(model)[0], test, prepared.network.task),
            prepared.network.task,
            weights=safetensors.read(run.weights).header["digest"],
            examples=config.examples,
        )
    run.write_config(config)
    if state.canaries is not None:
        included = read_inclusion(run.facts(), config.canaries)
        audit_one_run(run, state.canaries.numpy(), included, event=event, delta=config.delta)
    run.write_facts({**run.facts(), **done})
    Key.destroy(run_folder.key_path(state.key))


def _outcome(run: run_folder.Run, state: State, prepared: Prepared, event: Event, seconds: float) -> Outcome:
    complete = run.facts().get("complete") is True
    last: dict[str, Any] = next(reversed(run_folder.read_lines(run.metrics)), {})
    accuracy = last.get(f"test_accuracy_{prepared.config.release}") if complete else None
    return Outcome(run, complete, event, accuracy, seconds, state.private)
