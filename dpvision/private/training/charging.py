"""Charges a run to the ledger, on disk, before the first step. Rank 0 charges; the other ranks wait for it."""

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
    run: run_folder.Run,
    prepared: Prepared,
    model: nn.Module,
    team: Team,
    data: str,
    tuning_charge: Charge | None = None,
) -> tuple[State, Key, Charge]:
    """On rank 0: determine the branch, charge for it, and notify the other ranks when the charge is on disk.

    A trial of a tuning run is not charged again: `tuning_charge` pays for it. `data` names everything that the
    computation uses. Changed features under the same noise would reveal records, so they are refused; features computed
    by another machine or version may round differently, and get a new branch.
    """
    config, facts = prepared.config, run.facts()
    before = State.load(run.state, model)
    state, key = same_or_new_branch(before, config, data=data, software=prepared.software())
    if team.any(state.branch != before.branch):
        require_certificate(prepared, team)
    team.text(state.key)
    team.wait()  # all ranks have found the key: if one had not, nothing would be charged
    accounts = read_accounts(facts)
    assert config.sigma  # complete
    event = prepared.sampler.event(config.sigma, first=state.first)
    name = run_folder.fact(facts, "run", str)
    if not event.steps:
        charged = _no_charge(state, name, event)
    elif tuning_charge is None:
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
        charged = _trial_of(run, tuning_charge, accounts.first.account(), event, id=state.branch)
    if charged.private != state.private:
        raise LedgerMismatch(
            f"{run.folder}: its ledger and its state disagree on whether its noise is secret. Fix: start a new run."
        )
    # From here on, the charge is on disk.
    state.save(run)
    run.write_config(config)
    if facts.get("ranks", 1) != team.ranks:
        run.write_facts({**facts, "ranks": team.ranks})
    team.text(state.branch)
    return state, key, charged


def require_certificate(prepared: Prepared, team: Team) -> None:
    """On all ranks, before a charge: require the certificate, by a test on each rank's accelerator.

    On the CPU, rank 0 runs the test for all ranks, as they have the same software. A rank that fails raises its error.
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
            team.wait()  # until the failed rank has ended; it reports the reason
        raise ConfigError("a test failed on another rank. Nothing was charged. Fix: see the error of that rank.")


def _no_charge(state: State, name: str, event: Event) -> Charge:
    """Return a charge for a branch without steps, which does not touch the data; the ledger gets no entry."""
    return Charge(state.branch, name, event, datetime.now(UTC).isoformat(timespec="seconds"), state.private)


def _trial_of(run: run_folder.Run, tuning_charge: Charge, account: Account, event: Event, *, id: str) -> Charge:
    """Return the charge of a trial, as part of the charge of its tuning on this account.

    The trial must be in the folder of that tuning, which must be in progress: a charge pays only for its own trials.
    """
    if tuning_charge not in account.charges:
        raise LedgerMismatch("the ledger has no charge for a tuning run with this trial. Fix: start a new tuning run.")
    charge = tuning_charge.trial(event, id=id)
    tuning = run_folder.Run(run.folder.parents[2])
    inside = run.folder.parent == tuning.operator / "trials" and (tuning.operator / "run.json").exists()
    if not inside or (tuning.facts().get("run"), tuning.facts().get("complete")) != (tuning_charge.run, False):
        raise LedgerMismatch(f"{run.folder}: is not a trial of a tuning run in progress, so no charge covers it.")
    return charge


def await_charge(
    run: run_folder.Run, prepared: Prepared, model: nn.Module, team: Team, data: str
) -> tuple[State, Key, Charge]:
    """On the other ranks: read the key that rank 0 wrote, wait for the charge, and read it from the ledger."""
    if team.any(False):  # rank 0 starts a branch
        require_certificate(prepared, team)
    path = run_folder.key_path(team.text())
    key = Key.read(path)
    if key is None:
        raise PrivacyError(
            f"{path}: rank {team.rank} does not see the run's key, and keys are never sent. Fix: use the same "
            "DPVISION_HOME for every rank, on a file system that all ranks share."
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
            f"{run.folder}: rank {team.rank} does not see the state and the charge that rank 0 wrote. Fix: put "
            "the run folder and DPVISION_HOME on a file system that all ranks share."
        )
    return state, key, charge
