"""Two ordinary conditions at once: each is tested elsewhere, and a bug that needs both would pass those tests."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.core import noise
from dpvision.core.account import Charge
from dpvision.core.events import Capped, parts
from dpvision.core.keys import Key
from dpvision.errors import LedgerMismatch
from dpvision.private.training import stopping, train, tune
from dpvision.private.training.prepare import Prepared
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread  # noqa: F401
from tests.system.runs.commands import write_data
from tests.system.runs.stopping import until

SETTINGS = Config(epsilon=3.0, model="linear", full_batch=True, steps=4, budget=99.0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_data(tmp_path / "data.npz", images=60)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def _turned(path: Path, to: Path, *names: str) -> str:
    """A copy with these arrays in reverse order; by default all of the training split."""
    arrays = _arrays(path)
    chosen = names or tuple(name for name in arrays if name.startswith("train"))
    np.savez(to, **{name: values[::-1] if name in chosen else values for name, values in arrays.items()})
    return str(to)


def _charges(prepared: Prepared) -> tuple[Charge, ...]:
    return ledger_of(prepared.fingerprint).account().charges


def _finish(run: run_folder.Run, change: dict[str, Any]) -> tuple[train.Outcome, set[bytes]]:
    """Resume, and return the outcome and all noise that was drawn."""
    drawn, add_noise = list[bytes](), noise.add_noise

    def recording(total: Any, stream: Any, *, sensitivity: float, sigma: float) -> Any:
        noisy = add_noise(total, stream, sensitivity=sensitivity, sigma=sigma)
        drawn.append(((noisy - total) / (sensitivity * sigma)).round(4).tobytes())
        return noisy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "add_noise", recording)
        outcome = train.proceed(run, train.reopen(run, change))
    assert len(set(drawn)) == len(drawn) == 4
    return outcome, set(drawn)


# A resumed run on another branch, and no step was saved yet


def test_changed_before_the_first_step_is_saved(data: Path, tmp_path: Path) -> None:
    """Killed after the charge and before the first checkpoint: what was noised until then may have been seen."""
    prepared = train.prepare(str(data), SETTINGS)
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared, stop=until(0))
    assert len(_charges(prepared)) == 1
    changes: list[dict[str, Any]] = [{}, {"lr": 1.0}, {"clip": 0.5}]
    keys = {path: path.read_bytes() for path in (tmp_path / "home" / "keys").glob("*.key")}
    seen: list[set[bytes]] = []
    for number, change in enumerate(changes):
        copy = tmp_path / str(number)
        shutil.copytree(run.folder, copy)
        for path, secret in keys.items():
            path.write_bytes(secret)
        outcome, drawn = _finish(run_folder.Run(copy), change)
        assert not any(drawn & other for other in seen), f"{change} has the noise of another branch"
        seen.append(drawn)
        assert len(_charges(prepared)) == number + 1
        assert isinstance(outcome.event, Capped) is bool(change), "the first branch was charged, and counts"
        assert len(parts(outcome.event)) == (2 if change else 1)


def test_changed_three_times_before_the_first_step_is_saved(data: Path, tmp_path: Path) -> None:
    prepared = train.prepare(str(data), SETTINGS)
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared, stop=until(0))
    for rate in (1.0, 2.0):
        train.proceed(run, train.reopen(run, {"lr": rate}), stop=until(0))
    outcome = train.proceed(run, train.reopen(run, {"lr": 3.0}))
    assert len(_charges(prepared)) == len({c.id for c in _charges(prepared)}) == 4 == len(parts(outcome.event))


@pytest.mark.parametrize("step", [0, 2])
def test_a_fixed_key_that_was_lost_leaves_the_run_without_privacy(step: int, data: Path, tmp_path: Path) -> None:
    """The new key is secret, but the steps before it are not."""
    prepared = train.prepare(str(data), SETTINGS)
    run = train.begin(prepared, tmp_path / "run", test_key="public")
    train.proceed(run, prepared, stop=until(step))
    for path in (tmp_path / "home" / "keys").glob("*.key"):
        Key.destroy(path)
    outcome = train.proceed(run, train.reopen(run, {"lr": 1.0}))
    assert not outcome.private and not any(charge.private for charge in _charges(prepared))


# The same images in another order


@pytest.mark.parametrize("swapped", ["labels", "persons"])
def test_labels_or_persons_in_another_order_are_other_data(swapped: str, data: Path, tmp_path: Path) -> None:
    """The images, their order, and how many there are of each class and person stay as they are."""
    arrays = _arrays(data)
    persons = {f"{split}_persons": np.arange(len(arrays[f"{split}_labels"])) // 3 for split in ("train", "test")}
    np.savez(data, **arrays, **{name: ids + 1000 * ("test" in name) for name, ids in persons.items()})
    prepared = train.prepare(str(data), replace(SETTINGS, unit="person"))
    run = train.begin(prepared, tmp_path / "run")
    train.proceed(run, prepared, stop=until(2))
    other = _turned(data, tmp_path / "other.npz", f"train_{swapped}")
    again = train.prepare(other, prepared.config)
    assert again.fingerprint == prepared.fingerprint and again.in_order != prepared.in_order
    shutil.copy(other, data)
    with pytest.raises(LedgerMismatch, match="changed since the run began"):
        train.reopen(run)


def test_a_fixed_key_gives_other_noise_for_another_order(data: Path, tmp_path: Path) -> None:
    """Who is drawn goes by place, so the sums differ; the account is the same, and has both charges."""
    sources = (str(data), _turned(data, tmp_path / "turned.npz"), str(data))
    settings = replace(SETTINGS, full_batch=False, batch=30, steps=1)
    prepared = [train.prepare(source, settings) for source in sources]
    assert len({p.fingerprint for p in prepared}) == 1
    for number, result in enumerate(prepared):
        run = train.begin(result, tmp_path / str(number), test_key="the same")
        train.proceed(run, result)
    assert len(_charges(prepared[0])) == 2
    first, turned, again = (load_file(tmp_path / str(n) / "weights.safetensors") for n in range(3))
    assert all(torch.equal(first[name], again[name]) and not torch.equal(first[name], turned[name]) for name in first)


# Ways in, and units


@pytest.mark.parametrize("unit", ["image", "person"])
def test_a_tuning_is_charged_in_its_unit(
    unit: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping.Stopping, "draw", lambda _: 1)
    arrays = _arrays(data)
    np.savez(data, **arrays, train_persons=np.arange(60) // 2, test_persons=1000 + np.arange(60))
    public = write_data(tmp_path / "public.npz", images=20, seed=5)
    settings = replace(SETTINGS, unit=unit)
    prepared = tune.prepare(str(data), settings, {"lr": [1.0, 2.0]}, score=str(public), trials=2.0)
    tune.proceed(prepared, tmp_path / "run")
    account = ledger_of(prepared.first.fingerprint).account()
    assert account.unit == unit
