"""The head first, then all: one event and one charge, exact resume across the switch, and nothing else moves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpvision.core import accountant
from dpvision.core.events import PoissonGaussian
from dpvision.errors import ConfigError
from dpvision.models import build, train_only
from dpvision.models.parts import CENTRE, SHARES
from dpvision.private.training import prepare, train
from dpvision.private.training.network import phases
from dpvision.private.training.state import State, trainable
from dpvision.released.report import card
from dpvision.settings.recipes import recipe
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.storage.home import ledger_of
from tests.system.runs.commands import run as command
from tests.system.runs.stopping import until

SETTINGS = Config(
    model="wrn-10-1",
    epsilon=3.0,
    batch=8,
    steps=12,
    probe_steps=5,
    lr=0.1,
    probe_lr=2.0,
    momentum=0.5,
    checkpoint_every=4,
)
PROBED = {"4.norm.weight", "4.norm.bias"}  # of wrn-10-1, and its head


@pytest.fixture
def data(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = (rng.random((40, 8, 8, 3)) * 100 + 100 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "data.npz", train_images=images, train_labels=labels)
    return str(tmp_path / "data.npz")


def _begin(data: str, folder: Path, **changes: Any) -> tuple[run_folder.Run, train.Prepared]:
    prepared = train.prepare(data, replace(SETTINGS, **changes))
    return train.begin(prepared, folder), prepared


def _named(run: run_folder.Run, prepared: train.Prepared) -> dict[str, torch.Tensor]:
    """The state's weights by their names."""
    model = prepared.network.build()
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    sizes = [p.numel() for p in trainable(model)]
    return dict(zip(names, State.load(run.state, model).weights.split(sizes), strict=True))


CERTIFIED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "head": ({"part": "head"}, ("head",)),
    "centred head": ({"part": "centred-head"}, (CENTRE, "head")),
    "balanced": ({"part": "head", "objective": "balanced"}, (SHARES, "head")),
    "centred and balanced": ({"part": "centred-head", "objective": "balanced"}, (CENTRE, SHARES, "head")),
    "the head first": ({"part": "all", "probe_steps": 2, "probe_lr": 1.0}, ("probe", "all")),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_every_part_that_is_trained_is_certified_before_the_charge(
    name: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, expected = CERTIFIED[name]
    model = "small-cnn-centred" if changes["part"] == "centred-head" else "small-cnn"
    settings = Config(model=model, epsilon=3.0, batch=8, steps=6, n=40, classes=2, **changes)
    prepared, certify, certified = train.prepare(data, settings), prepare.certify, list[int]()

    def watched(learner: torch.nn.Module, *rest: Any, **named: Any) -> None:
        assert not ledger_of(prepared.fingerprint).exists()
        certified.append(_size(learner))
        certify(learner, *rest, **named)

    monkeypatch.setattr(prepare, "certify", watched)
    train.proceed(train.begin(prepared, tmp_path / "run"), prepared, stop=until(0))
    network = prepared.network
    assert certified == [_size(network.learner(network.build(part=part), part=part)[0]) for part in expected]
    assert len(set(certified)) == len(expected) and len(ledger_of(prepared.fingerprint).account().charges) == 1


def _size(learner: torch.nn.Module) -> int:
    """The number of weights that are trained."""
    return sum(p.numel() for p in learner.parameters() if p.requires_grad)


def test_only_the_head_and_its_norm_move_in_the_first_phase(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    first = _named(run, prepared)
    train.proceed(run, prepared, stop=until(5))
    probed = _named(run, prepared)
    moved = {n for n in first if not torch.equal(first[n], probed[n])}
    assert moved > PROBED and moved == PROBED | {n for n in first if n.startswith("7.")}
    train.proceed(run, prepared)
    last = _named(run, prepared)
    assert {n for n in first if not torch.equal(probed[n], last[n])} == set(first)


def test_all_steps_are_one_event_and_one_charge(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared, stop=until(3))
    outcome = train.proceed(run, prepared)
    charges = ledger_of(prepared.fingerprint).account().charges
    assert [c.event for c in charges] == [PoissonGaussian(8 / 40, prepared.config.sigma or 0, 12)]
    assert accountant.epsilon(outcome.event, 1e-5) <= 3.0


@pytest.mark.parametrize("where", [4, 5, 6])
def test_stopping_around_the_switch_changes_no_bit(where: int, data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    shutil.copytree(run.folder, tmp_path / "copy")
    (key,) = (tmp_path / "home" / "keys").glob("*.key")
    secret = key.read_bytes()
    train.proceed(run, prepared)
    key.write_bytes(secret)
    copy = run_folder.Run(tmp_path / "copy")
    train.proceed(copy, train.reopen(copy), stop=until(where))
    stopped = State.load(copy.state, prepared.network.build())
    assert stopped.step == where and (where == 5) == (not stopped.momentum.any()), "momentum restarts in each phase"
    train.proceed(copy, train.reopen(copy))
    assert run.weights.read_bytes() == copy.weights.read_bytes()
    assert len(ledger_of(prepared.fingerprint).account().charges) == 1


def test_a_share_of_epsilon_is_turned_into_steps() -> None:
    config = Config(model="wrn-10-1", probe_share=0.4, batch=100, steps=200).complete(1000)
    event = PoissonGaussian(0.1, config.sigma or 0, 200)
    at = {
        s: accountant.epsilon(replace(event, steps=s), 1e-5) for s in (config.probe_steps, config.probe_steps + 1, 200)
    }
    assert 0 < config.probe_steps < 200 and config.probe_share is None
    assert at[config.probe_steps] <= 0.4 * at[200] * 1.001
    assert at[config.probe_steps + 1] > 0.4 * at[200] * 0.999


def test_the_card_tells_the_share(data: str, tmp_path: Path) -> None:
    run, prepared = _begin(data, tmp_path / "run")
    train.proceed(run, prepared)
    probe = card(run, ledger_of(prepared.fingerprint).account())["probe"]
    event = PoissonGaussian(8 / 40, prepared.config.sigma or 0, 5)
    assert probe["steps"] == 5 and probe["epsilon"] == accountant.epsilon(event, 1e-5)
    assert 0 < probe["share_of_epsilon"] < 1
    assert json.dumps(probe)


@pytest.mark.parametrize("where", [3, 5, 7])
def test_the_card_of_a_changed_run_tells_the_whole_charge_alone(where: int, data: str, tmp_path: Path) -> None:
    """Also where the batch was changed before, at or after the switch."""
    run, prepared = _begin(data, tmp_path / "run", batch=20, budget=100.0)
    train.proceed(run, prepared, stop=until(where))
    changed = train.reopen(run, {"batch": 2})
    train.proceed(run, changed)
    made = card(run, ledger_of(prepared.fingerprint).account())
    assert made["probe"] == {"steps": 5, "epsilon": None, "share_of_epsilon": None}, "branches are charged as wholes"
    assert made["guarantee"]["epsilon"] == 100.0 > made["guarantee"]["meter"] == made["data_set"]["epsilon_spent"]


def test_a_gradient_goes_where_it_belongs(data: str) -> None:
    head, whole = phases(train.prepare(data, SETTINGS).network)
    count = sum(p.numel() for p in trainable(head.learner))
    spread = head.spread(torch.arange(1.0, count + 1))
    assert torch.equal(spread[spread != 0], torch.arange(1.0, count + 1))
    names = [n for n, p in whole.learner.named_parameters() for _ in range(p.numel())]
    assert {n for n, v in zip(names, spread.tolist(), strict=True) if v} == PROBED | {"7.weight", "7.bias"}
    full = torch.randn(len(spread))
    assert torch.equal(whole.spread(full), full)


def test_impossible_phases_are_refused(data: str) -> None:
    with pytest.raises(ConfigError, match="probe_steps is 20"):
        train.prepare(data, replace(SETTINGS, probe_steps=20))
    with pytest.raises(ConfigError, match="come before training all weights"):
        replace(SETTINGS, part="head")
    with pytest.raises(ConfigError, match="there is no normalisation right before its head"):
        train_only(build("tanh-cnn", (3, 32, 32), classes=10, seed=0), "probe")


def test_a_share_that_no_step_fits_into_is_refused() -> None:
    with pytest.raises(ConfigError, match="a single step already uses more"):
        Config(model="wrn-10-1", probe_share=0.05, batch=30, steps=400).complete(3000)


def test_settings_that_came_later_do_not_rename_older_runs() -> None:
    assert Config(model="linear", epsilon=3.0, n=100, steps=5).hash() == "a5c37879bd9c9634d6150107d0b96825"
    assert replace(SETTINGS, probe_steps=0).hash() != SETTINGS.hash()


@pytest.mark.parametrize("epsilon", ["-1", "0", "nan"])
def test_an_impossible_epsilon_is_one_clear_error(epsilon: str, data: str, tmp_path: Path) -> None:
    code, _, err = command("train", data, "--recipe", "dp-randp", "--epsilon", epsilon, home=tmp_path / "home")
    assert code == 2 and "epsilon" in err and "Traceback" not in err


def test_published_settings_by_epsilon() -> None:
    assert (recipe("dp-randp", epsilon=2.0).steps, recipe("dp-randp", epsilon=2.0).lr) == (1125, 1.0)
    assert recipe("dp-randp", epsilon=0.5).steps == 875 and recipe("dp-randp").probe_lr == 15
    assert recipe("dp-randp-dermamnist", epsilon=7.42).probe_lr == 2.8
    assert recipe("dp-randp-probe", epsilon=0.1).lr == 0.8
    probe = replace(recipe("dp-randp-probe", epsilon=1.0), epsilon=1.0).complete(50_000)
    assert probe.batch == 50_000 and 37 < (probe.sigma or 0) < 38.2  # table 15: 38


@pytest.mark.parametrize(
    ("name", "epsilon", "n", "sigma"),
    [("dp-randp", 1.0, 50_000, 9.3), ("dp-randp", 8.0, 50_000, 2.6), ("dp-randp-dermamnist", 1.0, 7_007, 13.6)],
)
def test_sigmas_are_those_of_the_paper_or_smaller(name: str, epsilon: float, n: int, sigma: float) -> None:
    result = replace(recipe(name, epsilon=epsilon), epsilon=epsilon).complete(n).sigma or 0
    assert 0.95 * sigma < result < 1.005 * sigma
