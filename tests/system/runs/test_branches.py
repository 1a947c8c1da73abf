"""Resume and branches: the same settings give the same bits for the same charge; a change gives new noise and a new one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.core import accountant, adaptive, noise
from dpvision.core.account import Account
from dpvision.core.events import Budget, Capped, PoissonGaussian
from dpvision.core.keys import Key
from dpvision.errors import BudgetSpent, ConfigError, DataError, LedgerMismatch, PrivacyError
from dpvision.private.training import train
from dpvision.released import report
from dpvision.released.report import guarantee
from dpvision.settings.setting import declared
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import write_data
from tests.system.runs.stopping import until

SETTINGS = Config(epsilon=3.0, batch=20, steps=30, checkpoint_every=5, budget=20.0)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_data(tmp_path / "data.npz"))


def _begin(data: str, folder: Path, **settings: Any) -> tuple[run_folder.Run, train.Prepared]:
    prepared = train.prepare(data, replace(SETTINGS, **settings))
    return train.begin(prepared, folder), prepared


def _account(prepared: train.Prepared) -> Account:
    return ledger_of(prepared.fingerprint).account()


def _final(run: run_folder.Run) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(run.weights).items())])


def test_stopping_and_resuming_changes_no_bit(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    for step in (3, 8, 1):
        outcome = train.proceed(run, train.reopen(run), stop=until(step))
        assert not outcome.complete
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    keys = list((tmp_path / "home" / "keys").glob("*.key"))
    kept = {k: k.read_bytes() for k in keys}
    assert train.proceed(run, train.reopen(run)).complete
    assert not list((tmp_path / "home" / "keys").glob("*.key")), "the key is destroyed when the run is complete"
    for path, secret in kept.items():
        path.write_bytes(secret)
    other = run_folder.Run(copy)
    train.proceed(other, train.reopen(other))
    assert run.weights.read_bytes() == other.weights.read_bytes()
    account = _account(prepared)
    assert len(account.charges) == 1, "the same noise for the same steps is paid once"
    assert account.charges[0].event == PoissonGaussian(0.1, prepared.config.sigma, 30)


def test_one_checkpoint_resumed_twice_with_changed_settings_is_charged_for_both(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    seen: dict[str, list[bytes]] = {}
    original = noise.add_noise
    finals = []
    for name, change in (("plain", {}), ("lr", {"lr": 1.0}), ("clip", {"clip": 0.5}), ("lr again", {"lr": 1.0})):
        folder = tmp_path / name
        shutil.copytree(run.folder, folder)
        keys = {k: k.read_bytes() for k in (tmp_path / "home" / "keys").glob("*.key")}
        drawn = seen.setdefault(name, [])

        def recording(total, stream, *, sensitivity, sigma, drawn=drawn):
            result = original(total, stream, sensitivity=sensitivity, sigma=sigma)
            drawn.append(((result - total) / sensitivity).round(4).tobytes())
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise, "add_noise", recording)
            train.proceed(run_folder.Run(folder), train.reopen(run_folder.Run(folder), change))
        for path, secret in keys.items():
            path.write_bytes(secret)
        finals.append(_final(run_folder.Run(folder)))
    for a, b in (("plain", "lr"), ("plain", "clip"), ("lr", "clip")):
        assert not set(seen[a]) & set(seen[b]), f"branches {a} and {b} share noise"
    assert torch.equal(finals[1], finals[3]), "the same change at the same point is the same branch"
    steps = sorted(c.event.steps for c in _account(prepared).charges)  # type: ignore[union-attr]
    assert steps == [20, 20, 30], "one whole run and two branches of the last twenty steps"


def test_the_same_change_at_another_point_is_another_branch(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    for step in (5, 5):
        train.proceed(run, train.reopen(run), stop=until(step))
        folder = tmp_path / f"after-{run_folder.Run(run.folder).state.stat().st_mtime_ns}"
        shutil.copytree(run.folder, folder)
        train.proceed(run_folder.Run(folder), train.reopen(run_folder.Run(folder), {"lr": 1.0}), stop=until(2))
    charges = _account(prepared).charges
    assert sorted(c.event.steps for c in charges) == [20, 25, 30]  # type: ignore[union-attr]
    assert len({c.id for c in charges}) == 3


def test_the_card_of_a_branch_counts_its_whole_path(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(12))
    before = prepared.config.sigma
    assert before
    outcome = train.proceed(run, train.reopen(run, {"sigma": before * 2}))
    path = (PoissonGaussian(0.1, before, 30), PoissonGaussian(0.1, before * 2, 18))  # all that was charged
    assert outcome.event == Capped(adaptive.compose(path, 1e-5), 20.0, 1e-5), "results may have decided on the branch"
    made = report.card(run, _account(prepared))
    assert made["guarantee"]["epsilon"] == 20.0 and made["guarantee"]["composition"] == guarantee.CAPPED
    assert made["guarantee"]["meter"] == _account(prepared).spent() > accountant.epsilon(path[0], 1e-5)
    assert {x["epsilon"] for x in run_folder.read_lines(run.metrics)} == {20.0}
    assert all(0 < x["true_positive_rate_at_most"] <= 1 for x in made["attack_success"])


def test_who_stops_early_states_the_whole_charge_everywhere(data: str, tmp_path: Path) -> None:
    """Stopped where it looked good, and ended there: the card, the weights, the metrics and the ledger have it all."""
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    outcome = train.proceed(run, train.reopen(run, {"steps": 10}))
    assert outcome.complete
    charged = accountant.epsilon(PoissonGaussian(0.1, prepared.config.sigma, 30), 1e-5)
    account = _account(prepared)
    assert len(account.charges) == 1 and account.spent() == charged
    made = report.card(run, account)
    assert made["guarantee"]["epsilon"] == charged == made["data_set"]["epsilon_spent"]
    header = json.loads(safetensors.read(run.weights).header["card"])
    assert header["guarantee"]["epsilon"] == charged
    assert accountant.epsilon(outcome.event, 1e-5) == charged
    assert {x["epsilon"] for x in run_folder.read_lines(run.metrics)} == {charged}


def test_a_budget_that_is_lowered_afterwards_is_not_the_cap(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(12))
    train.proceed(run, train.reopen(run, {"lr": 0.5}), stop=until(3))
    ledger = ledger_of(prepared.fingerprint)
    ledger.set_budget(Budget(ledger.account().spent() + 0.1, 1e-5))
    assert train.proceed(run, train.reopen(run)).event.epsilon == 20.0  # type: ignore[union-attr]


def test_the_cap_of_a_changed_run_has_what_its_first_weights_revealed(data: str, tmp_path: Path) -> None:
    """Those may have been charged to another account, whose budget is not this one's."""
    first, prepared = _begin(data, tmp_path / "first")
    assert train.proceed(first, prepared).complete
    alone = accountant.epsilon(prepared.event(), 1e-5)
    run, again = _begin(data, tmp_path / "run", pretrained=str(first.weights))
    train.proceed(run, again, stop=until(12))
    changed = train.proceed(run, train.reopen(run, {"lr": 0.5})).event
    assert isinstance(changed, Capped) and (changed.epsilon, changed.delta) == (20.0 + alone, 2e-5)
    made = report.card(run, _account(again))
    assert made["guarantee"]["delta"] == 2e-5 and made["guarantee"]["epsilon"] == changed.epsilon
    third, last = _begin(data, tmp_path / "third", pretrained=str(run.weights), epsilon=0.5)
    event = train.proceed(third, last).event
    assert isinstance(event, Capped) and event.epsilon > changed.epsilon, "the cap of the weights stays"


def test_a_changed_run_with_canaries_ends(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run", canaries=20)
    train.proceed(run, prepared, stop=until(12))
    assert train.proceed(run, train.reopen(run, {"lr": 0.5})).complete
    assert report.card(run, _account(prepared))["audit"]["one_run"]["refuted"] is False


def test_a_refused_branch_changes_nothing_and_the_old_one_goes_on(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run", budget=3.0)
    train.proceed(run, prepared, stop=until(10))
    state = run.state.read_bytes()
    with pytest.raises(BudgetSpent):
        train.proceed(run, train.reopen(run, {"lr": 1.0}))
    assert run.state.read_bytes() == state
    assert train.proceed(run, train.reopen(run)).complete
    assert len(_account(prepared).charges) == 1


def test_a_lost_key_means_new_noise_and_a_new_charge(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    for key in (tmp_path / "home" / "keys").glob("*.key"):
        Key.destroy(key)
    assert train.proceed(run, train.reopen(run)).complete
    assert sorted(c.event.steps for c in _account(prepared).charges) == [20, 30]  # type: ignore[union-attr]


def test_other_software_means_new_noise_and_a_new_charge(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    monkeypatch.setattr("dpvision.private.training.prepare.software", lambda *_, **__: "another torch")
    assert train.proceed(run, train.reopen(run)).complete
    assert sorted(c.event.steps for c in _account(prepared).charges) == [20, 30]  # type: ignore[union-attr]


def test_changed_data_can_not_go_on_with_the_same_noise(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    with np.load(data) as file:
        arrays = dict(file)
    changed = {k: v.copy() for k, v in arrays.items()}
    changed["train_images"][7, 0, 0] ^= 1
    turned = {k: v[::-1] for k, v in arrays.items()}
    for other in (changed, turned):
        np.savez(data, **other)
        with pytest.raises(LedgerMismatch, match="changed since the run began"):
            train.reopen(run)
    assert train.prepare(data, SETTINGS).fingerprint == prepared.fingerprint, "another order has the same ledger"
    np.savez(data, **arrays)
    assert train.proceed(run, train.reopen(run)).complete


@pytest.mark.parametrize(
    "change", [{"epsilon": 9.0}, {"model": "small-cnn"}, {"n": 300}, {"seed": 3}, {"unit": "person"}]
)
def test_what_defines_the_run_can_not_change(change: dict, data: str, tmp_path: Path) -> None:
    run, _ = _begin(data, tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot change"):
        train.reopen(run, change)


def test_a_changed_state_is_refused(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    whole = run.state.read_bytes()
    rng = np.random.default_rng(0)
    for at in [len(whole) - 3, *rng.integers(0, len(whole), 60)]:
        run.state.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises((DataError, ConfigError)):
            train.proceed(run, train.reopen(run))
    for cut in (0, 4, 8, 100, len(whole) - 1):
        run.state.write_bytes(whole[:cut])
        with pytest.raises(DataError):
            train.proceed(run, train.reopen(run))
    assert len(_account(prepared).charges) == 1


def test_nothing_is_drawn_before_the_charge_is_on_the_disk(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    assert not ledger_of(prepared.fingerprint).exists()
    charged = []
    original = noise.add_noise

    def checking(*args, **kwargs):
        charged.append(len(_account(prepared).charges))
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add_noise", checking)
        train.proceed(run, prepared)
    assert charged == [1] * 30


def test_two_processes_can_not_work_on_one_run(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    with run_folder.only_one(run), pytest.raises(ConfigError, match="another process"):
        train.proceed(run, prepared)
    assert not ledger_of(prepared.fingerprint).exists()
    assert train.proceed(run, prepared).complete


def test_a_refused_training_leaves_nothing_behind(data: str, tmp_path: Path) -> None:
    with pytest.raises(BudgetSpent):
        _begin(data, tmp_path / "run", epsilon=3.0, budget=1.0)
    assert not (tmp_path / "run").exists() and not (tmp_path / "home" / "keys").exists()


def test_every_weight_moved_and_steps_are_exact(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run", model="small-cnn")
    start = prepared.network.build().state_dict()
    train.proceed(run, prepared)
    tensors, header = safetensors.load(run.weights, start)
    assert all(not torch.equal(tensors[k], start[k]) for k in start)
    assert json.loads(header["event"])["events"][0]["steps"] == 30
    assert header["private"] == "yes"


def test_the_same_noise_is_never_drawn_for_other_data(data: str, tmp_path: Path) -> None:
    """Not through the Python interface either: a run that began on D cannot continue on D without one record."""
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(5))
    with np.load(data) as file:
        fewer = {k: v[1:] if k.startswith("train") else v for k, v in file.items()}
    np.savez(tmp_path / "fewer.npz", **fewer)
    with pytest.raises(LedgerMismatch):
        train.proceed(run, train.prepare(str(tmp_path / "fewer.npz"), prepared.config))


def test_a_state_made_by_others_can_not_reach_other_files(data: str, tmp_path: Path) -> None:
    """The name of the key comes from a file: it must not become a path."""
    run, prepared = _begin(data, tmp_path / "run")
    victim = tmp_path / "home" / "victim.key"
    victim.write_bytes(b"a server's certificate")
    header = {k: v for k, v in safetensors.read(run.state).header.items() if k not in ("digest", "signature")}
    run.state.write_bytes(safetensors.dump(load_file(run.state), {**header, "key": "../victim"}))
    for complete in (False, True):
        run.write_facts({**run.facts(), "complete": complete})
        with pytest.raises(DataError, match="name of a key"):
            train.proceed(run, prepared)
    with pytest.raises(PrivacyError):
        Key.destroy(victim)
    assert victim.read_bytes() == b"a server's certificate"


@pytest.mark.parametrize(
    "facts", [{"threads": None}, {"threads": -1}, {"threads": "2"}, {"run": 7}, {"threads": 10**9}]
)
def test_a_damaged_run_file_is_a_clear_error(facts: dict, data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    run.write_facts({**run.facts(), **facts})
    with pytest.raises(DataError, match=r"run\.json"):
        train.proceed(run, prepared)


def test_different_fixed_keys_are_different_charges(data: str, tmp_path: Path) -> None:
    prepared = train.prepare(data, SETTINGS)
    for i, word in enumerate(("one", "two", "one")):
        train.proceed(train.begin(prepared, tmp_path / f"run{i}", test_key=word), prepared)
    assert len(_account(prepared).charges) == 2
    assert _final(run_folder.Run(tmp_path / "run0")).equal(_final(run_folder.Run(tmp_path / "run2")))


def test_a_run_that_ends_where_it_stands_adds_no_line_to_the_ledger(data: str, tmp_path: Path) -> None:
    """`resume --steps` with the steps that are done: nothing more is done to the data, and the charge stays."""
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(10))
    (before,) = _account(prepared).charges
    ended = train.reopen(run, {"steps": 10})
    outcome = train.proceed(run, ended)
    assert outcome.complete and _account(prepared).charges == (before,)
    report.write(run, _account(prepared))
    assert json.loads((run.folder / "card.json").read_text())["data_set"]["charges"] == 1


OTHER = {
    "lr": 1.0,
    "momentum": 0.5,
    "clip": 0.5,
    "clip_style": "automatic",
    "ema": 0.5,
    "steps": 40,
    "sigma": 9.0,
    "batch": 30,
    "physical": 16,
    "checkpoint_every": 7,
    "device": "cpu",
    "precision": "bf16",
}


@pytest.mark.parametrize("name", sorted(name for name, of in declared(Config).items() if of.resumable))
def test_every_setting_that_may_change_is_another_branch_with_noise_and_a_charge_of_its_own(
    name: str, data: str, tmp_path: Path
) -> None:
    """But for how often the state is saved, which changes no bit, and the device that it is on already."""
    run, prepared = _begin(data, tmp_path / "run", budget=99.0)
    train.proceed(run, prepared, stop=until(3))
    before = state_of(run)
    train.proceed(run, train.reopen(run, {name: OTHER[name]}), stop=until(1))
    changed = name not in ("checkpoint_every", "device")
    assert (state_of(run) != before) is changed
    assert len(_account(prepared).charges) == 1 + changed


def state_of(run: run_folder.Run) -> str:
    """The branch that names the noise."""
    return safetensors.read(run.state).header["branch"]
