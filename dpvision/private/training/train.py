"""Private training: the only place where private data meets the mechanism. It reads top to bottom as things happen.

    prepare    (prepare.py) read the data, complete the settings from public numbers; nothing is charged
    run        all of what follows, for the command line, the estimators, tunings and shadow models
    begin      make the run folder and its key; nothing is charged yet
    proceed    charge the ledger, then train, then write what may be released; also how a run is resumed

Follow one private image: inputs.py turns it into views, `PrivateSum.step` draws, clips, sums and noises. What depends
on private data otherwise (the true batch size, losses, how many were clipped; with --study, gradients before clipping)
goes to `operator/` and steers nothing.

Under torchrun every rank runs through all of this with the data of its own share; rank 0 alone charges, adds noise and
writes. The run folder and $DPVISION_HOME must be on a file system that all ranks see: no key travels.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpvision.audit.one_run import audit_one_run
from dpvision.core import files
from dpvision.core.account import Charge
from dpvision.core.events import Event, from_json, to_json
from dpvision.core.gate import Gate
from dpvision.core.keys import Key
from dpvision.errors import ConfigError, DataError, LedgerMismatch, PrivacyError, RankLost
from dpvision.models.inputs import Inputs, predict_classes
from dpvision.models.parts import CENTRE
from dpvision.private.accounts.accounts import Accounts, choose, read_accounts
from dpvision.private.engine import STYLES, ClippedSum, Tally
from dpvision.private.training import gradient_study, metrics, ranks
from dpvision.private.training.canaries import Carried, inside, require_few, toss
from dpvision.private.training.charging import await_charge, charge
from dpvision.private.training.phases import Phase, fewest_weights, phases
from dpvision.private.training.prepare import Prepared, prepare
from dpvision.private.training.private_sum import PrivateSum
from dpvision.private.training.public_gradients import Assistant
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State, event_charged, software, trainable
from dpvision.private.training.trackers import Tracker, opened, told_to
from dpvision.private.training.units import fetcher, units
from dpvision.public.assist import ALONE
from dpvision.released import evaluation, report
from dpvision.settings.setting import declared
from dpvision.settings.training import WAYS, Config, merged
from dpvision.storage import run_folder, safetensors
from dpvision.storage.leftovers import clear


@dataclass(frozen=True)
class Progress:
    """What a progress bar may show to the operator."""

    step: int
    steps: int
    epsilon: float
    images: int


@dataclass(frozen=True)
class Outcome:
    run: run_folder.Run
    complete: bool
    event: Event  # what the released weights tell
    accuracy: float | None  # of the released weights on the test split
    seconds: float
    private: bool


class Face:
    """What an operator sees of a run, and how it is stopped. This one shows nothing, and the run goes to its end."""

    @contextmanager
    def features(self) -> Iterator[Callable[[int, int], None]]:
        """While features are computed: called with (done, of)."""
        yield lambda *_: None

    @contextmanager
    def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
        """While it trains: called after each step; and whether to stop."""
        yield (lambda _: None), (lambda: False)


def run(
    prepared: Prepared,
    to: Path | run_folder.Run,
    *,
    test_key: str | None = None,
    paid: Charge | None = None,
    accounts: Accounts | None = None,
    key_name: str | None = None,
    track: Sequence[str] = (),
    face: Face | None = None,
) -> Outcome:
    """A whole run in a new folder, or the rest of one that has begun: charge, train, release.

    The other arguments are those of `begin`. `track` names trackers, which get what goes into metrics.jsonl.
    """
    begun, face, first = to, face or Face(), ranks.team().first
    if not isinstance(begun, run_folder.Run):
        begun = begin(prepared, begun, test_key=test_key, paid=paid, accounts=accounts, key_name=key_name)
    with face.features() as progress:
        prepared.warm(progress)
    with opened(track if first else (), begun.folder) as trackers, face.training() as (watch, stop):
        return proceed(begun, prepared, watch=watch, stop=stop, trackers=trackers, paid=paid)


def begin(
    prepared: Prepared,
    folder: Path,
    *,
    test_key: str | None = None,
    paid: Charge | None = None,
    accounts: Accounts | None = None,
    key_name: str | None = None,
) -> run_folder.Run:
    """Make the run folder. The key is on the disk before the folder is there, and the charge comes with `proceed`.

    A trial of a tuning was `paid` for already: with the charge of the whole. `accounts` are those that will be charged;
    by default those that the images are found on. `key_name` is the name of the run's key; by default a random one.
    """
    team = ranks.team()
    with _advice("Nothing was charged. Fix: see to that rank, then start all of them again."):
        _require_same(prepared, team)
        run = run_folder.Run(Path(os.path.abspath(folder)))
        if team.first:
            accounts = accounts or choose(prepared.fingerprint, prepared.sketch)
            run = _begin(prepared, folder, test_key, paid, accounts, key_name or secrets.token_hex(8))
        team.wait()
    if not run.operator.exists():
        raise ConfigError(
            f"{run.folder}: rank {team.rank} does not see the folder that rank 0 made. Fix: --out on a file system "
            "that all ranks share."
        )
    return run


def _begin(
    prepared: Prepared, folder: Path, test_key: str | None, paid: Charge | None, accounts: Accounts, key_name: str
) -> run_folder.Run:
    run_folder.require_free(folder)
    if paid is None:
        accounts.require_room(prepared.event(), prepared.config)
    model = prepared.model()
    prepared.require_separable()
    require_room_for_canaries(prepared)
    key = Key.for_tests(test_key) if test_key else Key.fresh()
    key.write(run_folder.key_path(key_name))
    facts = {
        "run": secrets.token_hex(6),
        "data": prepared.source if prepared.source == "digits" else str(Path(prepared.source).resolve()),
        "fingerprint": prepared.fingerprint,
        "accounts": accounts.to_facts(),
        "in_order": prepared.in_order,
        "public": prepared.public,
        "read_off": list(prepared.read_off),
        "shape": list(prepared.shape),
        "class_names": list(prepared.data.classes),
        "threads": torch.get_num_threads(),
        "ranks": ranks.ranks(),
        "complete": False,
    }
    if paid is not None:
        facts["trial_of"] = paid.run
    if prepared.config.canaries:
        facts["canaries"] = toss(key, prepared.config.canaries)
    weights = parameters_to_vector(trainable(model)).detach()
    state = State(
        weights=weights,
        momentum=torch.zeros_like(weights),
        ema=weights.clone(),
        key=key_name,
        private=key.private,
        config=prepared.config,
        path=prepared.before,
        second=torch.zeros_like(weights) if WAYS[prepared.config.assist].second_moment else None,
        canaries=torch.zeros(prepared.config.canaries, dtype=torch.float64) if prepared.config.canaries else None,
    )
    return run_folder.create(folder, prepared.config, facts, state.dump())


def require_room_for_canaries(prepared: Prepared) -> None:
    """Before anything is charged: in every step each canary has a weight of its own."""
    if prepared.config.canaries:
        require_few(prepared.config.canaries, fewest_weights(prepared))


def reopen(run: run_folder.Run, changes: dict[str, Any] | None = None) -> Prepared:
    """The training of an existing run, with changed settings if asked for."""
    facts = run.facts()
    _require_no_trial(run, facts)
    if "tuning" in facts:
        clear(run)
        raise ConfigError(
            f"{run.folder}: is a tuning, which cannot go on where it stopped. Fix: a new one, with its own charge."
        )
    before = State.config_of(safetensors.read(run.state).header, run.state)
    config = merged(before, changes or {}, source="resume")
    known = declared(Config)  # a change makes a new branch, with fresh noise and its own charge
    fixed = sorted(k for k in (changes or {}) if not known[k].resumable and getattr(config, k) != getattr(before, k))
    if fixed:
        raise ConfigError(f"{run.folder}: {', '.join(fixed)} cannot change in a run that has begun. Fix: a new run.")
    prepared = prepare(run_folder.fact(facts, "data", str), config)
    _require_same_data(facts, prepared)
    return prepared


def _require_no_trial(run: run_folder.Run, facts: dict[str, Any]) -> None:
    """A charge for a tuning pays for the best of its trials, so none of them goes on by itself."""
    if "trial_of" in facts:
        raise ConfigError(
            f"{run.folder}: is a trial of the tuning {facts['trial_of']}, which paid for the best of its trials alone, "
            "so it cannot go on by itself. Fix: a new run, with its own charge."
        )


def _require_same(prepared: Prepared, team: Team) -> None:
    """Ranks with other data or settings would add up sums that do not belong together."""
    team.require_same({"the training data": prepared.everything, "the settings": prepared.config.hash()})


def _require_same_data(facts: dict[str, Any], prepared: Prepared) -> None:
    if (prepared.fingerprint, prepared.in_order) != (facts.get("fingerprint"), facts.get("in_order")):
        raise LedgerMismatch(
            f"{prepared.source}: the training data, or its order, changed since the run began, so going on with the "
            "same noise would show the difference. Fix: restore the data, or start a new run."
        )
    if prepared.public != facts.get("public", {}):
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
    paid: Charge | None = None,
) -> Outcome:
    """Charge, train to the end (or until `stop`), release. Called again after a crash, it gives the same bits.

    Trackers get what goes into metrics.jsonl, which may be released, and nothing else.
    """
    team = ranks.team()
    advice = (
        "What was charged stays in the ledger, and is not charged again by going on from the last saved step with as "
        f"many ranks as before. Fix: `torchrun --nproc-per-node {team.ranks} -m dpvision resume {run.folder}` (another "
        "number of ranks, or one without torchrun, would be a new branch with a charge of its own)."
    )
    with _advice(advice), run_folder.only_one(run) if team.first else nullcontext():
        return _proceed(run, prepared, watch, stop, told_to(trackers), team, paid)


@contextmanager
def _advice(text: str) -> Iterator[None]:
    """What to do when a rank is lost in here."""
    try:
        yield
    except RankLost as exc:
        raise RankLost(f"{exc} {text}") from exc


def _proceed(
    run: run_folder.Run,
    prepared: Prepared,
    watch: Callable[[Progress], None],
    stop: Callable[[], bool],
    track: Callable[[dict[str, Any]], None],
    team: Team,
    paid: Charge | None,
) -> Outcome:
    facts = run.facts()
    if paid is None:
        _require_no_trial(run, facts)
    _require_same_data(facts, prepared)
    torch.set_num_threads(run_folder.fact(facts, "threads", int))  # the order of sums, so the last bits, depend on it
    _require_same(prepared, team)
    team.require_same({"the software": software()})
    config, sampler = prepared.config, prepared.sampler
    assert config.sigma  # complete
    model = prepared.model()
    if facts.get("complete") is True:
        state = State.load(run.state, model)
        if team.first:
            Key.destroy(run_folder.key_path(state.key))
        return _outcome(run, state, prepared, from_json(run_folder.fact(facts, "event", dict)), 0.0)
    inputs = prepared.inputs(prepared.data.train, model)
    everyone = units(prepared.data.train, config.unit)
    data = f"{prepared.everything} {inputs.digest_features()}"
    carried = None
    if config.canaries:
        there = inside(facts, config.canaries)
        carried = Carried(there, sampler, sigma=config.sigma, seed=config.seed, units=everyone)
        data += f" {facts['canaries']}"
    team.require_same({"the features": data})
    state, key, charged = (
        charge(run, prepared, model, team, data, paid) if team.first else await_charge(run, prepared, model, team, data)
    )

    granted = read_accounts(run.facts()).first.account().largest_budget
    event = event_charged(state, granted, before=len(prepared.before))
    epsilon = metrics.stated_epsilon(event, config.delta)
    seen, stretches = Tally(), phases(prepared)
    phase = next((p for p in stretches if state.step < p.end), stretches[-1])
    clipped_sum = _clipped_sum(prepared, phase, seen)
    private_sum = PrivateSum(
        Gate(charged, key, sampler, name=state.branch, first=state.first),
        clipped_sum if carried is None else carried.sum_of(clipped_sum),
        team=team,
        views=config.views,
    )
    test = None if prepared.data.test is None else prepared.inputs(prepared.data.test, model)
    marks = metrics.marks(prepared)
    looks = gradient_study.marks(sampler.steps) if config.study else {}
    if team.first:
        _drop_after(run.metrics, state.step, epsilon=epsilon)
        _drop_after(gradient_study.file(run), state.step)
        _drop_after(run.operator / "log.jsonl", state.step)
    assistant = None if config.assist == "none" else Assistant(prepared, phase, model, team)
    began, images, fetch = time.monotonic(), 0, None
    for number in range(state.step, sampler.steps):
        if team.any(stop()):
            break
        if number == phase.end:
            phase, fetch = next(p for p in stretches if p.first == number), None
            clipped_sum = _clipped_sum(prepared, phase, seen)
            private_sum.sum_with(clipped_sum if carried is None else carried.sum_of(clipped_sum))
        phase.load(state.weights)
        if fetch is None:
            rows = inputs if phase.before is None else inputs.through(phase.before)
            fetch = fetcher(prepared.data.train, config.unit, rows, prepared.views())
        state, assisted = (state, ALONE) if assistant is None else assistant(state)
        if carried is None:
            noisy = private_sum.step(number, everyone, fetch, assisted.public)
        else:
            carried.begin(number, clipped_sum.size)
            noisy = private_sum.step(number, carried.units, carried.fetch_of(fetch), assisted.public)
            assert state.canaries is not None
            state = replace(state, canaries=state.canaries + carried.scores(noisy, norm=clipped_sum.sensitivity))
        state = _descend(state, phase.spread(assisted.finish(noisy).float()), config, lr=phase.lr)
        if state.step == phase.end:
            average = state.weights.clone() if phase.part == CENTRE else state.ema  # not half a mean
            state = replace(state, momentum=torch.zeros_like(state.momentum), ema=average)
        tally = _of_all_ranks(seen.flush(), team)
        if not team.first:
            continue
        images += tally["images"]
        run_folder.append_json(run.operator / "log.jsonl", {"step": state.step, **tally})
        if state.step in looks:
            line = gradient_study.look(clipped_sum, fetch, everyone)
            run_folder.append_json(gradient_study.file(run), {"step": state.step, "share": looks[state.step], **line})
        if state.step in marks:
            line = metrics.line(state, prepared, model, test, epsilon)
            run_folder.append_json(run.metrics, line)
            track(line)
        if state.step % config.checkpoint_every == 0:
            state.save(run)
        watch(Progress(state.step, sampler.steps, epsilon, images))
    if team.first:
        state.save(run)
        if state.step == sampler.steps:
            _release(run, state, prepared, model, test, event, trial=paid is not None)
    team.wait()  # no rank ends before everything is on the disk
    return _outcome(run, state, prepared, event, time.monotonic() - began)


def _of_all_ranks(tally: dict[str, float], team: Team) -> dict[str, Any]:
    """The operator's tallies of one step over all ranks, on rank 0; the others keep their own."""
    units, images = tally["units"], tally["images"]
    sums = [units, images, tally["mean_loss"] * images, tally["clipped_share"] * units]
    total = team.total(torch.tensor(sums, dtype=torch.float64)) if team.ranks > 1 else None
    if total is None:
        return tally
    units, images, loss, clipped = total.tolist()
    return {
        "units": int(units),
        "images": int(images),
        "mean_loss": loss / images if images else 0.0,
        "clipped_share": clipped / units if units else 0.0,
    }


def _clipped_sum(prepared: Prepared, phase: Phase, watch: Tally) -> ClippedSum:
    config = prepared.config
    return ClippedSum(
        phase.learner,
        phase.loss,
        clip=STYLES[config.clip_style](config.clip),
        physical=config.physical,
        watch=watch,
        one_view=config.one_view,
    )


def _descend(state: State, gradient: Tensor, config: Config, *, lr: float) -> State:
    """SGD with momentum on the noisy gradient; the average's decay warms up as (1 + t) / (10 + t)."""
    momentum = config.momentum * state.momentum + gradient
    weights = state.weights - lr * momentum
    decay = min(config.ema, (1 + state.step) / (10 + state.step))
    ema = decay * state.ema + (1 - decay) * weights
    return replace(state, step=state.step + 1, weights=weights, momentum=momentum, ema=ema)


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
    """Write what may be released, then mark the run complete, then destroy the key. A trial's weights say so."""
    if torch.equal(state.weights, parameters_to_vector(trainable(prepared.model())).detach()):
        raise PrivacyError(f"{run.folder}: the weights did not move in {state.step} steps; that is a fault.")
    vector_to_parameters(state.ema if prepared.config.release == "ema" else state.weights, trainable(model))
    header = {
        "format": "dpvision-weights-1",
        "model": str(prepared.config.model),
        "shape": json.dumps(list(prepared.shape)),
        "classes": json.dumps(list(prepared.data.classes)),
        "config": prepared.config.hash(),
        "unit": prepared.config.unit,
        "event": json.dumps(to_json(event)),
        "delta": repr(prepared.config.delta),
        "private": run_folder.NOT_PRIVATE if not state.private else run_folder.A_TRIAL if trial else "yes",
    }
    if prepared.provenance:
        header["learned_from"] = prepared.provenance
    done = {"complete": True, "event": to_json(event), "private": state.private}
    if not trial:
        card = report.on_weights({**run.facts(), **done}, prepared.config.without_folders())
        header["card"] = json.dumps(card, sort_keys=True, allow_nan=False)
    files.write(run.weights, safetensors.dump(model.state_dict(), header), mode=0o644)
    if test is not None and prepared.data.test is not None:
        evaluation.write(
            run.folder,
            prepared.data.test,
            *predict_classes(prepared.learner(model)[0], test),
            classes=len(prepared.data.classes),
            weights=safetensors.read(run.weights).header["digest"],
            examples=prepared.config.examples,
        )
    run.write_config(prepared.config)
    if state.canaries is not None:
        there = inside(run.facts(), prepared.config.canaries)
        audit_one_run(run, state.canaries.numpy(), there, event=event, delta=prepared.config.delta)
    run.write_facts({**run.facts(), **done})
    Key.destroy(run_folder.key_path(state.key))


def _outcome(run: run_folder.Run, state: State, prepared: Prepared, event: Event, seconds: float) -> Outcome:
    complete = run.facts().get("complete") is True
    last: dict[str, Any] = next(reversed(run_folder.read_lines(run.metrics)), {})
    hit = last.get(f"test_accuracy_{prepared.config.release}") if complete else None
    return Outcome(run, complete, event, hit, seconds, state.private)


def _drop_after(path: Path, step: int, **now: float) -> None:
    """Leave out lines of steps that are about to be done again; the others state what holds `now`."""
    lines = run_folder.read_lines(path)
    if not all(type(x.get("step", 0)) is int for x in lines):
        raise DataError(f"{path}: a line has no number of a step. Fix: remove the file, and resume.")
    lines = [{**x, **now} for x in lines if x.get("step", 0) <= step]
    files.write(path, "".join(json.dumps(x) + "\n" for x in lines))
