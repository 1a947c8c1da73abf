"""The objective "balanced": rare classes are found, by noisy sums that the event counts, and nothing else changes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from dpvision.core.events import Budget
from dpvision.core.ledger import Ledger
from dpvision.core.rows import Preparation, Rows
from dpvision.errors import ConfigError
from dpvision.models.featured import CLASS_SHARES, split_head
from dpvision.models.parts import SHARES, ClassShares, share_loss
from dpvision.private.statistics import fit_head
from dpvision.private.statistics.release import mean_recall, prepare
from dpvision.private.statistics.row_sums import class_counts
from dpvision.private.training import train
from dpvision.private.training.network import phases
from dpvision.private.training.prepare import Prepared
from dpvision.released.learners import DiscriminantLearner, LinearLearner
from dpvision.released.report import card
from dpvision.settings.training import Config
from dpvision.storage.home import ledger_of
from tests.one_thread import one_thread
from tests.private.statistics.releases.small import made, small

assert one_thread
SHARE = 0.06  # of the rare class


def unbalanced(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes whose points overlap, one of them rare."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < SHARE).astype(np.int64)
    return rng.normal(size=(count, 6)) + 1.1 * np.eye(6)[y], y


@pytest.mark.parametrize(("method", "more"), [("gd", 1), ("lda", 0)])
def test_a_head_finds_the_rare_class(method: str, more: int, tmp_path: Path) -> None:
    x, y = unbalanced(4000, seed=0)
    test, labels = unbalanced(4000, seed=1)
    recalls, counts = {}, {}
    for objective in ("accuracy", "balanced"):
        ledger = Ledger(tmp_path / objective, "ab" * 16)
        own = {"covariance": "private"} if method == "lda" else {"steps": 20}
        given = {"classes": 2, "n": 4000, "method": method, "unit": True, "centre": True, "test_key": "k", **own}
        head = fit_head(x, y, Budget(4.0, 1e-5), ledger=ledger, objective=objective, **given)
        recalls[objective], counts[objective] = mean_recall(head.classes_of(test), labels), head.event.count
    assert recalls["balanced"] > max(0.7, recalls["accuracy"])
    if method == "lda":  # descent without an intercept is not far from balanced by itself
        assert recalls["accuracy"] < recalls["balanced"] - 0.1
    assert counts["balanced"] == counts["accuracy"] + more


def test_the_counts_of_the_classes_are_one_sum_of_sensitivity_1() -> None:
    rows = Rows.of(np.ones((5, 3)), [0, 1, 1, 2, 2], Preparation(), classes=3, persons=[0, 0, 0, 1, 2])
    exact = class_counts(rows)
    assert np.allclose(exact.total, [1 / 3, 2 / 3, 2]) and exact.sensitivity == 1


def test_a_method_without_a_balanced_form_is_refused_by_name(tmp_path: Path) -> None:
    x, y = unbalanced(50, seed=0)
    ledger = Ledger(tmp_path / "ledgers", "ab" * 16)
    with pytest.raises(ConfigError, match="objective: moments has no such setting"):
        fit_head(x, y, Budget(4.0, 1e-5), classes=2, ledger=ledger, method="moments", objective="balanced")
    for task in ("labels", "grades"):  # whose counts would have a sensitivity above 1
        with pytest.raises(ConfigError, match=f"task is '{task}'"):
            fit_head(x, y, Budget(4.0, 1e-5), classes=2, ledger=ledger, task=task, objective="balanced")
    with pytest.raises(ConfigError, match="objective: recipe dp-merf does not use this setting"):
        small("dp-merf", objective="balanced")
    for given, name in (
        ({"probe_steps": 2}, "probe_steps"),
        ({"assist": "dope"}, "assist"),
        ({"canaries": 100}, "canaries"),
        ({"steps": 1}, "steps is 1"),
    ):
        with pytest.raises(ConfigError, match=name):
            Config(objective="balanced", **given)
    assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize("learner", [DiscriminantLearner, partial(LinearLearner, rate=0.02)])
def test_learners_of_released_rows_have_equal_priors(learner: Any) -> None:
    (x, y), (test, labels) = unbalanced(4000, seed=0), unbalanced(4000, seed=1)
    usual, balanced = (learner(classes=2, balanced=b).fit(x, y) for b in (False, True))
    assert mean_recall(balanced.predict(test), labels) > max(0.7, mean_recall(usual.predict(test), labels) + 0.1)


def test_rows_of_balanced_moments_are_as_many_of_each_class(tmp_path: Path, own_home: Path) -> None:
    card = made(tmp_path / "out", small("moments", objective="balanced", rank=0, n=1437, rows=5000))
    labels = np.concatenate([load_file(p)["labels"] for p in sorted((tmp_path / "out").glob("rows-*.safetensors"))])
    assert np.abs(np.bincount(labels) / 5000 - 0.1).max() < 0.02
    assert set(card["balanced_accuracy"]) == set(card["accuracy"]) and card["config"]["objective"] == "balanced"
    assert "np.log(shares)" not in (tmp_path / "out" / "README.md").read_text()
    usual = prepare("digits", small("moments", rank=0, n=1437, rows=5000))
    assert usual.event() == prepare("digits", small("moments", objective="balanced", rank=0, n=1437, rows=5000)).event()


def prepared(folder: Path, **given: Any) -> Prepared:
    """Images of 4 pixels whose brightness gives away the class, one of which is rare."""
    arrays = {}
    for seed, split in enumerate(("train", "test")):
        x, y = unbalanced(1500, seed=seed)
        images = np.clip(128 + 50 * x, 0, 255).astype(np.uint8).reshape(-1, 2, 3, 1)
        arrays |= {f"{split}_images": images, f"{split}_labels": y}
    np.savez(folder / "d.npz", **arrays)
    usual = {"epsilon": 8.0, "n": 1500, "classes": 2, "model": "linear", "full_batch": True, "steps": 60, "lr": 4.0}
    return train.prepare(str(folder / "d.npz"), Config(**{**usual, "release": "last", "budget": 1e3, **given}))


def test_a_network_finds_the_rare_class_for_one_of_its_steps(tmp_path: Path, own_home: Path) -> None:
    recalls, events = {}, []
    for objective in ("accuracy", "balanced"):
        settings = prepared(tmp_path, objective=objective)
        run = train.run(settings, tmp_path / objective).run
        stated = card(run, ledger_of(settings.fingerprint).account())
        recalls[objective] = stated["evaluation"]["balanced_accuracy"]
        events.append(settings.event())
        assert not {name for name in load_file(run.weights) if CLASS_SHARES in name}
        assert load_file(run.state)["weights"].size == 14 + 2 * (objective == "balanced")
        names = [phase["name"] for phase in stated["phases"]]
        assert names == (["shares of the classes"] if objective == "balanced" else []) + ["all weights"]
    assert events[0] == events[1], "the shares are estimated in one of the steps"
    assert recalls["balanced"] > recalls["accuracy"] + 0.1


def test_the_shares_are_those_of_the_classes_and_of_finite_images() -> None:
    model = nn.Linear(4, 3)
    model.register_parameter(CLASS_SHARES, nn.Parameter(torch.zeros(3)))
    shares = ClassShares(model)
    assert not shares.offset(torch.zeros(1, 3)).any(), "nothing is added before they are learned"
    x, y = torch.rand(4, 2, 2), torch.tensor([0, 1, 1, 1])
    share_loss(shares(x), y).mean().backward()
    assert torch.allclose(-shares.shares.grad, torch.tensor([0.25, 0.75, 0.0]))
    shares.shares.data.copy_(-shares.shares.grad)
    assert torch.allclose(shares.offset(torch.zeros(1, 3)).exp(), torch.tensor([0.25, 0.75, 0.1 / 3]))
    shares.shares.grad = None
    share_loss(shares(x.index_fill(0, torch.tensor(2), torch.nan)), y).mean().backward()
    assert shares.shares.grad.isnan().any(), "so the engine counts the whole unit as zero"
    soft = torch.tensor([[0.3, 0.7, 0.0]])
    assert torch.equal(share_loss(torch.tensor([[1.0, 2.0, 5.0]]), soft), torch.tensor([-1.7]))


def test_what_is_certified_has_the_offset_of_what_runs(tmp_path: Path, own_home: Path) -> None:
    """The trial of a balanced run uses unequal shares: with none, its loss would be that of another run."""
    settings = prepared(tmp_path, objective="balanced")
    (_, loss, *_), _ = settings._trial("all")
    (first, *_), _ = settings._trial(SHARES)
    outputs, targets = torch.zeros(1, 2), torch.tensor([0])
    assert isinstance(first, ClassShares)
    assert torch.allclose(loss(outputs, targets), -torch.tensor([1 / 3]).log(), atol=1e-6)
    assert [phase.part for phase in phases(settings.network)] == [SHARES, "all"]
    assert settings.certified_settings != prepared(tmp_path, objective="accuracy").certified_settings


def test_a_frozen_part_has_no_shares() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model.register_parameter(CLASS_SHARES, nn.Parameter(torch.zeros(2)))
    parts = split_head(model)
    assert model.get_parameter(CLASS_SHARES).requires_grad and CLASS_SHARES not in dict(parts.named_parameters())
    assert json.dumps(list(parts.state_dict())) == json.dumps(list(split_head(nn.Sequential(*model)).state_dict()))
