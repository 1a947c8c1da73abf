"""The charge of a run: in the ledger, on the disk, before the first step. Rank 0 charges; the others wait for it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from torch import nn

from dpvision.core.account import Account, Charge
from dpvision.core.events import Budget, Event
from dpvision.core.keys import Key
from dpvision.errors import ConfigError, LedgerMismatch, PrivacyError, RankLost
from dpvision.private.accounts.accounts import read_accounts
from dpvision.private.training.prepare import Prepared
from dpvision.private.training.ranks import Team
from dpvision.private.training.state import State, same_or_new_branch
from dpvision.storage import run_folder


def charge(
    run: run_folder.Run, prepared: Prepared, model: nn.Module, team: Team, data: str, paid: Charge | None = None
) -> tuple[State, Key, Charge]:
    """On rank 0: decide on the branch, charge for it, and notify the others when the charge is on the disk.

    A trial of a tuning was `paid` for with the whole. `data` names everything that the computation uses. Other features
    under the same noise would reveal records, so they are refused; those that another machine or version computed may
    round differently, and are a new branch.
    """
    config, facts = prepared.config, run.facts()
    before = State.load(run.state, model)
    state, key = same_or_new_branch(before, config, data=data, software=prepared.software())
    if team.any(state.branch != before.branch):
        require_certificate(prepared, team)
    team.text(state.key)
    team.wait()  # until all find the key: without it, nothing need be charged
    accounts = read_accounts(facts)
    assert config.sigma  # complete
    event = prepared.sampler.event(config.sigma, first=state.first)
    name = run_folder.fact(facts, "run", str)
    if not event.steps:
        charged = _no_charge(state, name, event)
    elif paid is None:
        charged, charged_to = accounts.charge(
            event,
            Budget(config.budget or config.epsilon, config.delta),
            fingerprint=prepared.fingerprint,
            sketch=prepared.sketch,
            id=state.branch,
            run=name,
            unit=config.unit,
            private=state.private,
        )
        if charged_to != accounts:
            facts["accounts"] = charged_to.to_facts()
            run.write_facts(facts)
    else:
        charged = _trial_of(run, paid, accounts.first.account(), event, id=state.branch)
    if charged.private != state.private:
        raise LedgerMismatch(f"{run.folder}: its ledger and its state disagree on whether its noise is secret.")
    # On the disk from here on.
    state.save(run)
    run.write_config(config)
    if facts.get("ranks", 1) != team.ranks:
        run.write_facts({**facts, "ranks": team.ranks})
    team.text(state.branch)
    return state, key, charged


def require_certificate(prepared: Prepared, team: Team) -> None:
    """On all ranks, before a charge: require the certificate by trial, on each rank's own accelerator.

    On the CPU rank 0 tries for all, which have the same software. A rank that fails raises its own error.
    """
    failure: Exception | None = None
    if team.first or prepared.device.type != "cpu":
        try:
            prepared.require_certificate()
        except Exception as exc:
            failure = exc
    refused = team.any(failure is not None)
    if failure is not None:
        raise failure
    if refused:
        with suppress(RankLost):
            team.wait()  # until the rank that failed has ended: it reports why
        raise ConfigError("the trial failed on another rank, whose device was refused. Nothing was charged.")


def _no_charge(state: State, name: str, event: Event) -> Charge:
    """Return a charge for a branch without steps: it does nothing to the data, and the ledger gets no line."""
    return Charge(state.branch, name, event, datetime.now(UTC).isoformat(timespec="seconds"), state.private)


def _trial_of(run: run_folder.Run, paid: Charge, account: Account, event: Event, *, id: str) -> Charge:
    """Return the charge of one of the trials that a tuning on the account was charged for.

    The trial is in the folder of that tuning, which is not finished: a charge pays for its own trials.
    """
    if paid not in account.charges:
        raise LedgerMismatch("the ledger was not charged for a tuning with such a trial.")
    charge = paid.trial(event, id=id)
    tuning = run_folder.Run(run.folder.parents[2])
    inside = run.folder.parent == tuning.operator / "trials" and (tuning.operator / "run.json").exists()
    if not inside or (tuning.facts().get("run"), tuning.facts().get("complete")) != (paid.run, False):
        raise LedgerMismatch(f"{run.folder}: is not a trial of a tuning in progress, and nothing else paid for it.")
    return charge


def await_charge(
    run: run_folder.Run, prepared: Prepared, model: nn.Module, team: Team, data: str
) -> tuple[State, Key, Charge]:
    """On the other ranks: find the key where rank 0 keeps it, then wait for the charge and read it from the ledger."""
    if team.any(False):  # rank 0 starts a branch
        require_certificate(prepared, team)
    path = run_folder.key_path(team.text())
    key = Key.read(path)
    if key is None:
        raise PrivacyError(
            f"{path}: rank {team.rank} does not see the run's key, and a key is never sent. Fix: a DPVISION_HOME on a "
            "file system that all ranks share, the same for every rank."
        )
    team.wait()
    branch = team.text()
    state = State.load(run.state, model)
    charge = next((c for c in read_accounts(run.facts()).first.account().charges if c.id == branch), None)
    event = prepared.sampler.event(prepared.config.sigma or 0.0, first=state.first)
    if charge is None and not event.steps:
        charge = _no_charge(state, run_folder.fact(run.facts(), "run", str), event)
    if charge is None or (state.branch, state.data) != (branch, data):
        raise LedgerMismatch(
            f"{run.folder}: rank {team.rank} does not see the state and the charge that rank 0 wrote. Fix: a run "
            "folder and a DPVISION_HOME on a file system that all ranks share."
        )
    return state, key, charge
