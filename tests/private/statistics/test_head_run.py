"""`dpvision train FEATURES.npz`: a head from an .npz of features, as a run with a ledger, a card and weights."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from dpvision.cli.app import app
from dpvision.core import accountant, noise
from dpvision.core.events import Budget
from dpvision.data import holds_features, identify, limits, load, load_rows
from dpvision.errors import BudgetSpent, ConfigError, DataError, DPVisionError, LedgerMismatch, PrivacyError
from dpvision.estimators import account_of
from dpvision.private.accounts.accounts import choose
from dpvision.private.statistics import fit_head, head_run
from dpvision.private.statistics.head_run import PreparedHead, prepare, private_rows, rows_of, run
from dpvision.released.model import load_model
from dpvision.settings.training import Config
from dpvision.storage import run_folder
from dpvision.storage.home import count_threads, ledger_of
from tests.private.statistics.cases import new_ledger

CLASSES, WIDTH = 4, 12
HEADS = ("descent", "newton", "moments", "lda")


def write_features(path: Path, *, count: int = 600, seed: int = 0, **changes: np.ndarray) -> Path:
    """Rows around four points, of any norm, with a test split."""
    rng, arrays = np.random.default_rng(seed), {}
    for split, size in (("train", count), ("test", 80)):
        labels = np.arange(size) % CLASSES
        rows = 5 * np.eye(WIDTH)[labels] + rng.normal(size=(size, WIDTH)) - 2
        arrays |= {f"{split}_features": rows.astype(np.float32), f"{split}_labels": labels}
    np.savez(path, **(arrays | changes))
    return path


def prepared_head(folder: Path, *, head: str = "auto", **settings: Any) -> PreparedHead:
    public = str(write_features(folder / "public.npz", seed=9)) if head == "newton" else None
    config = Config(**{"epsilon": 8.0, "classes": CLASSES, "n": 600, "head": head, "synthetic": public, **settings})
    return prepare(str(write_features(folder / "features.npz")), config)


def call(*words: str | Path | float) -> None:
    app([str(word) for word in words], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize("kind", ["int64", "uint8", "uint16", "bool", "float16", "float64", ">f4"])
def test_features_of_other_types_are_the_same_rows_or_refused(kind: str, tmp_path: Path, own_home: Path) -> None:
    """Numbers that float16 holds exactly: one account for all types of floats, and no other type is read."""
    rows = np.random.default_rng(0).integers(1, 200, (40, WIDTH)) / 8
    parts = {"train_features": rows.astype(kind), "test_features": rows[:4].astype(kind)}
    source = write_features(tmp_path / "other.npz", count=40, **parts, test_labels=np.arange(4))
    if np.dtype(kind).kind != "f":
        with pytest.raises(DataError, match="Fix: save features as float32"):
            load_rows(str(source))
        return
    usual = write_features(tmp_path / "usual.npz", count=40, train_features=rows.astype(np.float32))
    ours, known = load_rows(str(source)).train, load_rows(str(usual)).train
    assert ours.images.dtype == np.float32 and identify(ours) == identify(known)


def test_the_verb_from_features_to_predictions(tmp_path: Path, own_home: Path, capsys: Any) -> None:
    data, out = write_features(tmp_path / "f.npz"), tmp_path / "run"
    call("train", data, "--epsilon", 8, "--classes", CLASSES, "--out", out)
    assert {"card.json", "card.md", "report.html", "ledger.jsonl", "weights.safetensors"} <= {
        p.name for p in out.iterdir()
    }
    card = json.loads((out / "card.json").read_text())
    rows = load_rows(data).train
    (charge,) = ledger_of(account_of(rows_of(rows))).account().charges
    assert card["status"] == "private" and card["run"] == charge.run and card["config"]["head"] == "descent"
    assert card["guarantee"]["epsilon"] == accountant.epsilon(charge.event, 1e-5) <= 8
    assert card["chosen_by_hand"] == [] and any("computed from a single image" in line for line in card["not_covered"])
    assert not list((own_home / "keys").glob("*.key")), "the key of a finished run is destroyed"
    capsys.readouterr()

    call("eval", out, data, "--json")
    measured = json.loads(capsys.readouterr().out)
    assert measured["accuracy"] == card["accuracy"]["released_test_accuracy"] > 0.9
    np.savez(tmp_path / "new.npz", features=np.load(data)["test_features"])
    call("predict", out, tmp_path / "new.npz", "--out", tmp_path / "guesses.csv")
    guesses = [int(line.split(",")[1]) for line in (tmp_path / "guesses.csv").read_text().splitlines()[1:]]
    assert np.mean(np.load(data)["test_labels"] == guesses) == measured["accuracy"]
    capsys.readouterr()
    call("ledger", data, "--json")
    assert json.loads(capsys.readouterr().out)["charges"]
    call("resume", out)
    assert len(ledger_of(account_of(rows_of(rows))).account().charges) == 1


@pytest.mark.parametrize("head", HEADS)
def test_a_run_is_what_fit_head_makes(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, under a fixed key. (The noise of a run is also named by software; here by none.)"""
    monkeypatch.setattr(head_run, "computing", lambda: "")
    prepared = prepared_head(tmp_path, head=head)
    outcome = run(prepared, tmp_path / "run", test_key="word")
    train, x = prepared.data.train, rows_of(prepared.data.test)
    settings = {k: v for k, v in prepared.setup.settings.items() if k not in ("bound", "whitening", "intercept")}
    if prepared.public.images is not None:
        settings["public"] = rows_of(prepared.public.images)
    ledger = new_ledger(tmp_path / "own")
    alone = fit_head(
        rows_of(train),
        train.labels,
        Budget(8.0, 1e-5),
        classes=CLASSES,
        n=600,
        ledger=ledger,
        test_key="word",
        **settings,
    )
    assert alone.event == outcome.event == prepared.event()
    scores = load_model(tmp_path / "run").model(torch.from_numpy(x))
    assert np.array_equal(scores.numpy(), alone.scores(x))
    assert outcome.accuracy == (alone.classes_of(x) == prepared.data.test.labels).mean() > 0.8


def test_auto_follows_from_public_numbers(tmp_path: Path) -> None:
    assert prepared_head(tmp_path).config.head == "descent"
    assert prepared_head(tmp_path, epsilon=0.5).config.head == "lda"
    public = str(write_features(tmp_path / "other.npz", seed=5))
    assert prepared_head(tmp_path, synthetic=public).config.head == "newton"
    one = prepared_head(tmp_path)
    again = prepare(one.source, one.config)
    assert again.config == one.config, "complete settings stay as they are"


def test_a_spent_budget_and_copies_of_the_rows_are_refused(tmp_path: Path) -> None:
    run(prepared_head(tmp_path), tmp_path / "first")
    with pytest.raises(BudgetSpent):
        run(prepared_head(tmp_path), tmp_path / "second")
    assert not (tmp_path / "second").exists()
    rows = load_rows(tmp_path / "features.npz").train
    copy = {"train_features": np.array(rows_of(rows)[::-1]), "train_labels": np.array(rows.labels[::-1])}
    copy["train_features"][0] += 1
    copy["train_features"] = copy["train_features"].astype(np.float64)
    other = write_features(tmp_path / "copy.npz", **copy)
    with pytest.raises(BudgetSpent, match="so it must be charged too"):
        run(prepare(str(other), Config(epsilon=8.0, n=600)), tmp_path / "third")
    (charge,) = ledger_of(identify(rows)[0]).account().charges
    assert charge.private


def test_a_row_that_is_not_finite_contributes_nothing(tmp_path: Path) -> None:
    """The fit is that of the data in which the row is all zeros."""
    rows = np.load(write_features(tmp_path / "a.npz"))["train_features"]
    rows = rows.astype(np.float64)
    rows[5, 3], rows[77, 0], rows[78] = np.nan, -np.inf, 1e300  # which float32 does not have
    broken = prepare(str(write_features(tmp_path / "a.npz", train_features=rows)), Config(epsilon=8.0, n=600))
    sums: list[np.ndarray] = []

    def keep(bounded: Any) -> np.ndarray:
        sums.append(bounded.total)
        return bounded.total

    x, _ = private_rows(broken)
    assert not x.x[[5, 77, 78]].any() and (x.labels[[5, 77, 78]] == -1).all()
    broken.setup.fit(x, n=600, sigma=1.0, add_noise=keep, public=None)
    assert all(np.isfinite(total).all() for total in sums)
    run(broken, tmp_path / "run")
    scores = load_model(tmp_path / "run").model(torch.from_numpy(rows[5:6].astype(np.float32)))
    assert np.isfinite(scores.numpy()).all()


KILLED = """
import os, signal, sys
import dpvision.core.noise as noise
from dpvision.private.statistics.head_run import prepare, run
from dpvision.settings.training import Config
from pathlib import Path

add, left = noise.add_noise, [int(sys.argv[3])]

def kill(*given, **named):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(*given, **named)

noise.add_noise = kill
run(prepare(sys.argv[1], Config(epsilon=8.0, n=600, classes=4)), Path(sys.argv[2]), test_key="word")
"""


@pytest.mark.parametrize("after", [0, 3])
def test_a_killed_fit_is_resumed_and_charged_once(after: int, tmp_path: Path, own_home: Path) -> None:
    data = write_features(tmp_path / "f.npz")
    config = Config(epsilon=8.0, n=600, classes=CLASSES)
    run(prepare(str(data), config), tmp_path / "whole", test_key="word")
    environment = os.environ | {"DPVISION_HOME": str(tmp_path / "other"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", KILLED, str(data), str(tmp_path / "killed"), str(after)]
    ended = subprocess.run(words, env=environment, capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPVISION_HOME", str(tmp_path / "other"))
        account = choose(identify(load_rows(data).train)[0], prepare(str(data), config).sketch).first
        assert len(account.account().charges) == 1, "the charge came before the noise"
        with pytest.raises(DPVisionError, match="not finished"):
            call("report", tmp_path / "killed")
        call("resume", tmp_path / "killed")
        assert len(account.account().charges) == 1
    weights = [load_model(tmp_path / name).model.state_dict() for name in ("whole", "killed")]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_stopped_fit_is_resumed_with_the_threads_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other numbers of threads round sums differently: under the same noise, that would show."""
    add, seen, torch_before = noise.add_noise, list[dict[str, int]](), torch.get_num_threads()

    def stopped(*_: Any, **__: Any) -> None:
        seen.append(count_threads())
        raise KeyboardInterrupt

    def watched(*given: Any, **named: Any) -> Any:
        seen.append(count_threads())
        return add(*given, **named)

    with threadpool_limits(3, user_api="blas"), monkeypatch.context() as patch:
        patch.setattr(noise, "add_noise", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(prepared_head(tmp_path), tmp_path / "run")
    monkeypatch.setattr(noise, "add_noise", watched)
    with threadpool_limits(1, user_api="blas"):
        call("resume", tmp_path / "run")
        assert count_threads() == {"torch": torch_before, "blas": 1}, "as before, afterwards"
    assert len(seen) > 2 and all(threads == {"torch": torch_before, "blas": 3} for threads in seen)


def test_threads_that_cannot_be_restored_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(noise, "add_noise", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(prepared_head(tmp_path), tmp_path / "run")
    monkeypatch.setattr(noise, "add_noise", lambda *_, **__: pytest.fail("noise with other threads"))
    stopped_run = run_folder.Run(tmp_path / "run")
    facts = stopped_run.facts()
    for threads in (
        None,
        1,
        {"torch": 1},
        {"torch": 1, "blas": 0},
        {"torch": 1, "blas": True},
        {"torch": 0, "blas": 1},
    ):
        stopped_run.write_facts({**facts, "head_threads": threads})
        with pytest.raises(PrivacyError, match=r"not recorded, .* Fix: start again"):
            call("resume", tmp_path / "run")
    stopped_run.write_facts({**facts, "head_threads": {"torch": 1, "blas": 4096}})  # more than a build of BLAS has
    with pytest.raises(PrivacyError, match=r"BLAS used 4096 threads before .* Fix: resume in the original environment"):
        call("resume", tmp_path / "run")


def test_copies_in_other_types_and_multiples_are_charged_too(tmp_path: Path) -> None:
    run(prepared_head(tmp_path), tmp_path / "first")
    rows = rows_of(load_rows(tmp_path / "features.npz").train)
    for change in (rows.astype(np.float16), rows * 2, rows * np.float32(3), (rows / 4).astype(np.float16)):
        other = write_features(tmp_path / "copy.npz", train_features=change)
        with pytest.raises(BudgetSpent, match="so it must be charged too"):
            run(prepare(str(other), Config(epsilon=8.0, n=600)), tmp_path / "second")
    others = prepare(str(write_features(tmp_path / "others.npz", seed=7)), Config(epsilon=8.0, n=600))
    assert not choose(others.fingerprint, others.sketch).others


def test_a_killed_fit_refuses_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepared_head(tmp_path)

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpvision.core.noise.add_noise", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(prepared, tmp_path / "run")
    write_features(tmp_path / "features.npz", seed=1)
    with pytest.raises(LedgerMismatch, match="changed since the run began"):
        call("resume", tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot change"):
        call("resume", tmp_path / "run", "--steps", 7)
    assert run_folder.Run(tmp_path / "run").facts()["complete"] is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_features": np.zeros((600, 2, 6), np.float32)}, r"of shape \(600, 2, 6\)"),
        ({"train_features": np.zeros((600, 0), np.float32)}, r"of shape \(600, 0\)"),
        ({"train_persons": np.arange(599)}, r"has train_persons of shape \(599,\)"),
        ({"test_persons": np.zeros(80)}, r"has test_persons"),
        ({"train_features": np.zeros((600, WIDTH), np.uint8)}, "save features as float32"),
        ({"train_features": np.array([{}] * 600)}, "pickled Python objects"),
        ({"train_features": np.zeros((600, WIDTH), complex)}, "not a plain number"),
        ({"test_features": np.zeros((80, WIDTH + 1), np.float32)}, "Make them the same|make them the same"),
        ({"train_labels": np.zeros(599, int)}, "train_labels of shape"),
        ({"train_labels": np.zeros(600)}, "save labels as integers"),
        ({"train_labels": np.full(600, -1)}, "number the classes from 0|Number the classes from 0"),
        ({"train_labels": np.full(600, CLASSES)}, "declare more classes"),
        ({"train_labels": np.zeros(600, int)}, "has no image of class"),
    ],
)
def test_hostile_arrays_are_refused_before_anything_exists(
    changes: dict[str, np.ndarray], message: str, tmp_path: Path, own_home: Path
) -> None:
    data = write_features(tmp_path / "f.npz", **changes)
    with pytest.raises(DataError, match=message):
        prepare(str(data), Config(epsilon=1.0, classes=CLASSES))
    assert not (own_home / "ledgers").exists()


def test_a_false_header_or_a_bomb_allocates_nothing(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (600000000, 12), }".ljust(117) + b"\n"
    lying = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4800)
    labels = io.BytesIO()
    np.save(labels, np.arange(100) % 4)
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as file:
        file.writestr("train_features.npy", lying)
        file.writestr("train_labels.npy", labels.getvalue())
    with pytest.raises(DataError, match="truncated or was manipulated"):
        load_rows(tmp_path / "f.npz")
    zeros = np.zeros((1 << 21, 12), np.float32)
    np.savez_compressed(tmp_path / "g.npz", train_features=zeros, train_labels=np.arange(1 << 21) % 4)
    with pytest.raises(DataError, match="decompression bomb"):
        load_rows(tmp_path / "g.npz")
    assert limits.COLUMNS >= 1 << 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "small-cnn"}, "model: does not apply"),
        ({"k_base": 4, "augment": ("crop",)}, "augment: does not apply"),
        ({"lr": 1.0}, "lr: does not apply"),
        ({"unit": "person"}, "--unit person needs the person on each image"),
        ({"objective": "balanced", "head": "moments"}, "the head moments has no balanced form"),
        ({"objective": "balanced", "steps": 2}, "steps is 2"),
        ({"head": "newton"}, "needs features of public images"),
        ({"head": "lda", "steps": 5}, "steps is 5"),
        ({"steps": 1}, "steps is 1"),
        ({"head": "moments", "synthetic": "f.npz"}, "moments does not use any"),
        ({"delta": 0.01}, "delta is 0.01"),
    ],
)
def test_settings_that_do_not_apply_are_refused_by_name(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = write_features(tmp_path / "f.npz")
    with pytest.raises(ConfigError, match=message):
        prepare(str(data), Config(**{"epsilon": 1.0, **settings}))


def test_public_rows_are_not_private_ones(tmp_path: Path) -> None:
    data = write_features(tmp_path / "f.npz")
    mixed = np.load(write_features(tmp_path / "p.npz", seed=3))["train_features"]
    private = np.load(data)["train_features"]
    for rows in (slice(7, 8), slice(0, 20)):
        copied = mixed.copy()
        # a single row is recognised exactly, and several ones as half-precision copies too
        copied[rows] = private[rows] if rows.stop == 8 else private[rows].astype(np.float16)
        public = write_features(tmp_path / "p.npz", seed=3, train_features=copied)
        with pytest.raises(ConfigError, match="some of its rows are private here"):
            prepare(str(data), Config(epsilon=1.0, synthetic=str(public)))


@pytest.mark.parametrize("how", ["one row", "rounded", "scaled"])
def test_public_rows_are_on_no_account(how: str, tmp_path: Path) -> None:
    """Not one row of another account either, and no share of its rows in another form."""
    other = write_features(tmp_path / "other.npz", seed=4)
    run(prepare(str(other), Config(epsilon=8.0)), tmp_path / "run")
    private, public = np.load(other)["train_features"], write_features(tmp_path / "p.npz", seed=3)
    data = str(write_features(tmp_path / "f.npz"))
    prepare(data, Config(epsilon=1.0, synthetic=str(public)))
    mixed = np.load(public)["train_features"].copy()
    if how == "one row":
        mixed[7] = private[9]
    else:
        mixed[:20] = private[:20].astype(np.float16) if how == "rounded" else private[:20] * 4
    public = write_features(tmp_path / "p.npz", seed=3, train_features=mixed)
    with pytest.raises(PrivacyError, match=r"p\.npz: some of its rows are on account .* Fix: use features of images"):
        prepare(data, Config(epsilon=1.0, synthetic=str(public)))


def test_the_device_is_the_one_that_computes(tmp_path: Path) -> None:
    data = str(write_features(tmp_path / "f.npz"))
    assert prepare(data, Config(epsilon=1.0)).config.device == "cpu"
    with pytest.raises(ConfigError, match=r"'cuda:7': cannot be used here"):
        prepare(data, Config(epsilon=1.0, device="cuda:7"))


def test_images_and_features_are_not_confused(tmp_path: Path) -> None:
    data = write_features(tmp_path / "f.npz")
    images = {"train_images": np.zeros((4, 8, 8), np.uint8), "train_labels": np.arange(4) % 2}
    np.savez(tmp_path / "both.npz", **images, train_features=np.array([{}] * 4))
    assert not holds_features(tmp_path / "both.npz") and len(load(tmp_path / "both.npz").train) == 4
    with pytest.raises(DataError, match="use `dpvision train` for features"):
        load(data)
    with pytest.raises(ConfigError, match="--head applies to features"):
        call("train", "digits", "--epsilon", 1, "--head", "lda", "--out", tmp_path / "r")
    run(prepare(str(data), Config(epsilon=8.0)), tmp_path / "run")
    np.savez(tmp_path / "narrow.npz", features=np.zeros((3, 5), np.float32))
    with pytest.raises(DataError, match="with 5 columns; the model takes 12"):
        call("predict", tmp_path / "run", tmp_path / "narrow.npz")
    with pytest.raises(ConfigError, match="is a head on features, and this file is all of it"):
        call("export", tmp_path / "run", "--to", "safetensors", "--out", tmp_path / "x.safetensors")
