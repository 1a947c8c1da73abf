"""Runs on an accelerator, which a stand-in plays: the CPU's results, other noise, and what happens before a charge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpvision.cli.plan import note_other_arithmetic
from dpvision.core.gate import Gate
from dpvision.core.rows import BoundedSum
from dpvision.errors import ConfigError, DataError
from dpvision.models import device as machine
from dpvision.models.device import find_device, fix_arithmetic, name_computation, send
from dpvision.private.training import prepare, state, train
from dpvision.private.training.state import State
from dpvision.settings.training import Config
from dpvision.storage import run_folder, safetensors
from dpvision.storage.home import ledger_of
from tests.standin import module
from tests.system.ranks import ranks
from tests.system.runs.commands import QUIET
from tests.system.runs.stopping import until

standin = pytest.importorskip("tests.standin")

CLASSES = 3
SETTINGS = Config(epsilon=3.0, n=60, batch=20, steps=2, budget=50.0, model="linear", checkpoint_every=1)
PUBLIC = {"synthetic": "public", "public_batch": 4}
VIEWS = {"k_base": 2, "augment": ("crop", "flip")}
KINDS: dict[str, dict[str, Any]] = {
    "views": {"model": "small-cnn", **VIEWS, "augment": ("crop", "flip", "cutout")},
    "mixtures with public images": {**VIEWS, "k_self": 2, "k_diff": 1, "synthetic": "public"},
    "cutmix": {**VIEWS, "k_self": 1, "mix": "cutmix", "augment": ("autoaugment", "jitter", "resized-crop")},
    "per-layer, from a frozen part": {"model": "tanh-cnn", "part": "head", **VIEWS, "clip_style": "per-layer"},
    "persons": {"unit": "person", "n": 20, "batch": 8},
    "canaries": {"canaries": 10},
    "study": {"study": True},
    "weights": {"assist": "weights", **PUBLIC, **VIEWS},
    "dope": {"assist": "dope", **PUBLIC},
    "mirror": {"assist": "mirror", **PUBLIC},
    "adadps": {"assist": "adadps", **PUBLIC},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random colour images of 8x8 pixels, private and public."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    paths = {}
    for name, count in (("data", 60), ("public", 12)):
        arrays = {}
        for split, images in (("train", count), ("test", 12)):
            arrays[f"{split}_images"] = rng.integers(0, 256, (images, 8, 8, 3), dtype=np.uint8)
            arrays[f"{split}_labels"] = np.arange(images) % CLASSES
            if name == "data":
                arrays[f"{split}_persons"] = np.arange(images) % 20 + (100 if split == "test" else 0)
        paths[name] = str(folder / f"{name}.npz")
        np.savez(paths[name], **arrays)
    return paths


def _prepared(files: dict[str, str], device: str, **settings: Any) -> train.Prepared:
    if "synthetic" in settings:
        settings["synthetic"] = files["public"]
    return train.prepare(files["data"], replace(SETTINGS, device=device, **settings))


def _run(files: dict[str, str], folder: Path, device: str, **settings: Any) -> run_folder.Run:
    return train.run(_prepared(files, device, **settings), folder, test_key="devices").run


def _weights(run: run_folder.Run) -> torch.Tensor:
    return torch.cat([t.flatten() for _, t in sorted(load_file(run.weights).items())])


def _header(run: run_folder.Run) -> dict[str, str]:
    return safetensors.read(run.state).header


def _charges(prepared: train.Prepared) -> int:
    ledger = ledger_of(prepared.fingerprint)
    return len(ledger.account().charges) if ledger.exists() else 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_a_device_is_that_of_the_cpu(
    kind: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under one name, hence the same noise; on the second device, with nothing on the current one."""
    monkeypatch.setattr(prepare, "software", lambda *_, **__: "any device")
    here = _weights(_run(files, tmp_path / "cpu", "cpu", **KINDS[kind]))
    standin.reset()
    in_use = torch.standin.memory_allocated(0)
    there = _run(files, tmp_path / "standin", "standin:1", **KINDS[kind])
    assert torch.allclose(_weights(there), here, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(here, torch.zeros(1))
    assert torch.standin.max_memory_allocated(1) > 0 and torch.standin.max_memory_allocated(0) == in_use
    figures = [run_folder.read_lines(tmp_path / place / "operator" / "log.jsonl") for place in ("cpu", "standin")]
    assert [line["images"] for line in figures[0]] == [line["images"] for line in figures[1]]


def test_runs_that_round_differently_share_neither_branch_nor_noise(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noises: list[list[np.ndarray]] = []
    honest = Gate.noisy

    def watched(self: Gate, bounded: BoundedSum, number: int) -> Any:
        noisy = honest(self, bounded, number)
        noises[-1].append(noisy - bounded.total)
        return noisy

    monkeypatch.setattr(Gate, "noisy", watched)
    branches, prepared = [], None
    for device, precision, options in (
        ("cpu", "float32", {}),
        ("standin", "float32", {}),
        ("standin", "tf32", {"tf32": 1}),
        ("standin", "float32", {"bits": 9}),  # as a device that rounds differently by itself
    ):
        noises.append([])
        with standin.asked(**options):
            run = _run(files, tmp_path / str(len(noises)), device, precision=precision, batch=20)
        branches.append(_header(run)["branch"])
    prepared = _prepared(files, "standin")
    assert len(set(branches)) == 4 and _charges(prepared) == 4
    drawn = np.stack([np.concatenate(steps) for steps in noises])
    assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.2  # of 1,158 numbers each
    again = _run(files, tmp_path / "again", "standin")
    assert _header(again)["branch"] == branches[1] and _charges(prepared) == 4  # the same bits: charged once


def test_the_size_of_a_pass_names_the_branch_on_a_device_only(files: dict[str, str]) -> None:
    large, small = (_prepared(files, "standin", batch=batch).software() for batch in (20, 2))
    assert large != small
    assert _prepared(files, "cpu", batch=20).software() == _prepared(files, "cpu", batch=2).software()
    assert _prepared(files, "cpu").software() == state.software()
    assert state.software() == f"{state.computing()}, {torch.get_num_threads()} threads"


def test_a_resume_continues_on_its_device_and_branches_on_another(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = _weights(_run(files, tmp_path / "whole", "standin", steps=3))
    prepared = _prepared(files, "standin", steps=3)
    before = _charges(prepared)
    stopped = [train.begin(prepared, tmp_path / name, test_key="devices") for name in ("same", "other")]
    for run in stopped:
        assert not train.proceed(run, prepared, stop=until(1)).complete
    first = _header(stopped[0])["branch"]
    assert first == _header(stopped[1])["branch"] and _charges(prepared) == before  # that of the whole run
    note_other_arithmetic(stopped[0], train.reopen(stopped[0]))
    assert not capsys.readouterr().out
    elsewhere = train.reopen(stopped[1], {"device": "cpu"})
    note_other_arithmetic(stopped[1], elsewhere)
    assert "the remaining steps are charged to the ledger again" in " ".join(capsys.readouterr().out.split())
    train.proceed(stopped[1], elsewhere)
    assert _header(stopped[1])["branch"] != first and _charges(prepared) == before + 1
    train.proceed(stopped[0], train.reopen(stopped[0]))
    assert torch.equal(_weights(stopped[0]), whole) and _charges(prepared) == before + 1


def test_a_card_whose_bits_changed_unseen_gets_a_branch_of_its_own(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is described alike; only what it computes for random images shows it."""
    card = standin.describe()
    monkeypatch.setattr(module, "options", SimpleNamespace(describe=lambda _: card))
    prepared = _prepared(files, "standin", model="small-cnn", steps=3)
    runs = [train.begin(prepared, tmp_path / name, test_key="devices") for name in ("same", "changed")]
    for run in runs:
        assert not train.proceed(run, prepared, stop=until(1)).complete
    branch, before = _header(runs[0])["branch"], _charges(prepared)
    train.proceed(runs[0], train.reopen(runs[0]))
    assert _header(runs[0])["branch"] == branch and _charges(prepared) == before
    with standin.asked(by_size=1e-3):
        train.proceed(runs[1], train.reopen(runs[1]))
    assert _header(runs[1])["branch"] != branch and _charges(prepared) == before + 1


def test_the_sizes_of_persons_are_tried_up_to_one_above_a_pass(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[int]] = []
    monkeypatch.setattr(prepare, "certify", lambda *_, views, **__: tried.append(views))
    for device in ("cpu", "standin"):
        _prepared(files, device, unit="person", n=20, physical=16).require_certificate()
    assert tried == [[1, 2, 3], [1, 2, 3, 4, 8, 16, 17]]


def test_a_device_that_nothing_describes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module.StandIn, "describe")
    with pytest.raises(ConfigError, match="its rounding is not described, so noise on it cannot be named"):
        find_device("standin")


def test_a_name_has_the_driver_and_all_variables_that_choose_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"name": "card", "driver_version": "1.6", "max_compute_units": 512, "total_memory": 1}
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: SimpleNamespace(**facts))
    usual = name_computation(torch.device("xpu"))
    assert usual.startswith("xpu, name card, driver_version 1.6, max_compute_units 512")
    for name in ("CUBLASLT_LOG", "DISABLE_ADDMM_CUDA_LT", "MIOPEN_FIND_MODE", "ZE_AFFINITY", "SYCL_DEVICE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert name_computation(torch.device("xpu")) != usual


def test_a_precision_of_the_whole_process_does_not_reach_float32() -> None:
    """The CPU's own settings stay as they are."""
    backends, product = torch.backends, torch.randn(8, 8)
    far, before = product.to("standin"), torch.backends.fp32_precision
    places = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
    kept = [place.fp32_precision for place in places]
    try:
        backends.fp32_precision = "tf32"
        for precision, expected in (("float32", "ieee"), ("tf32", "tf32"), ("float32", "ieee")):
            fix_arithmetic(torch.device("standin"), precision)
            assert {place.fp32_precision for place in places} == {expected}
            assert backends.cuda.matmul.allow_tf32 is backends.cudnn.allow_tf32 is (precision == "tf32")
            with standin.asked(tf32=1):
                assert torch.equal((far @ far).cpu(), product @ product) is (precision == "float32")
        assert backends.fp32_precision == "tf32"
    finally:
        backends.fp32_precision = before
        for place, value in zip(places, kept, strict=True):
            place.fp32_precision = value


def test_pinned_memory_stays_until_the_copy_is_done() -> None:
    torch.standin.synchronize()
    first = send(torch.arange(1000.0), torch.device("standin:1"))
    pinned = machine._sent[-1][1]
    assert pinned.is_pinned()
    send(torch.arange(10.0), torch.device("standin:1"))
    assert any(kept is pinned for _, kept in machine._sent)  # the copy may still be running
    waits = sum(standin.counts()["waits"].values())
    torch.standin.synchronize()
    send(torch.arange(10.0), torch.device("standin:1"))
    assert len(machine._sent) == 1 and sum(standin.counts()["waits"].values()) <= waits + 1
    assert torch.equal(first.cpu(), torch.arange(1000.0))


def test_memory_that_runs_out_before_the_charge_costs_nothing(files: dict[str, str], tmp_path: Path) -> None:
    prepared = _prepared(files, "standin", model="small-cnn", physical=4096)
    limit = torch.standin.memory_allocated(0) + (8 << 20)
    with standin.asked(limit=limit), pytest.raises(ConfigError, match=r"Nothing was charged. Fix: use --physical"):
        train.run(prepared, tmp_path / "run", test_key="devices")
    assert not _charges(prepared) and not (tmp_path / "run").exists()


def test_memory_that_runs_out_later_loses_nothing(files: dict[str, str], tmp_path: Path) -> None:
    whole = _weights(_run(files, tmp_path / "whole", "standin", steps=3))
    prepared = _prepared(files, "standin", steps=3)
    run, charges = train.begin(prepared, tmp_path / "run", test_key="devices"), _charges(prepared)
    options = standin.asked(limit=1)

    def watch(at: train.Progress) -> None:
        if at.step == 1:
            options.__enter__()

    try:
        with pytest.raises(DataError, match=r"remains in the ledger.*dpvision resume"):
            train.proceed(run, prepared, watch=watch)
    finally:
        options.__exit__(None, None, None)
    train.proceed(run, train.reopen(run))
    assert torch.equal(_weights(run), whole) and _charges(prepared) == charges


def test_a_device_that_cannot_be_used_is_refused_before_a_charge(files: dict[str, str]) -> None:
    with standin.asked(no_float64=1):
        with pytest.raises(ConfigError, match="cannot be used here"):
            _prepared(files, "standin")
        with standin.available():
            prepared = _prepared(files, "auto")
    assert (prepared.device.type, prepared.config.device) == ("cpu", "cpu")
    assert "Using the CPU instead" in prepared.notes[0]
    with standin.available():
        assert _prepared(files, "auto").config.device == "standin"
    with pytest.raises(ConfigError, match="tf32, which the CPU does not support"):
        _prepared(files, "cpu", precision="tf32").require_certificate()
    assert _prepared(files, "cpu", precision="bf16").software().endswith("threads, bf16")


def test_a_run_without_a_device_in_its_state_was_on_the_cpu() -> None:
    assert State.config_of({"config": "{}"}, Path("state")).device == "cpu"


def test_the_device_is_no_part_of_the_name_of_settings_and_precision_is() -> None:
    usual = Config()
    assert usual.hash() == HASH_OF_DEFAULTS == replace(usual, device="cuda:1").hash()
    assert replace(usual, precision="tf32").hash() != usual.hash()


HASH_OF_DEFAULTS = "73689d343c510f8be771d795539cf4d7"  # before there were devices


def _words(files: dict[str, str], verb: str, out: Path, *more: str) -> list[str]:
    words = ["-m", "dpvision", verb, files["data"] if verb == "train" else str(out)]
    if verb == "train":
        words += ["--out", str(out), "--epsilon", "3", "--model", "linear", "--batch", "20"]
        words += ["--steps", "30", "--checkpoint-every", "1", "--budget", "50", "--classes", "0,1,2"]
    return [*words, *more]


def _start(home: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | QUIET | {"DPVISION_HOME": str(home), "DPVISION_TEST_KEY": "devices"}
    return subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_a_killed_run_on_a_device_is_resumed_to_the_same_bits(files: dict[str, str], tmp_path: Path) -> None:
    broken, whole = run_folder.Run(tmp_path / "broken"), run_folder.Run(tmp_path / "whole")
    train_it = ("--device", "standin")
    process = _start(tmp_path / "1", "tests.standin", *_words(files, "train", broken.folder, *train_it))
    while not broken.state.exists() or int(_header(broken)["step"]) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    others = (("1", _words(files, "resume", broken.folder)), ("2", _words(files, "train", whole.folder, *train_it)))
    for home, words in others:
        process = _start(tmp_path / home, "tests.standin", *words)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
    assert torch.equal(_weights(broken), _weights(whole)) and _header(broken)["branch"] == _header(whole)["branch"]


@pytest.mark.slow
def test_each_rank_has_a_device_of_its_own_and_no_other_kind(files: dict[str, str], tmp_path: Path) -> None:
    run = run_folder.Run(tmp_path / "two")
    torchrun = ("torch.distributed.run", "--nproc-per-node", "2", "-m", "tests.standin")
    process = _start(tmp_path / "home", *torchrun, *_words(files, "train", run.folder, "--device", "standin"))
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    assert ", 2 ranks, standin, " in _header(run)["software"]
    words = _words(files, "train", tmp_path / "different", "--device", "standin")
    last = [*words[:-1], "cpu"]
    results = ranks.finish(
        ranks.start(*words, ranks=2, home=tmp_path / "home", module="tests.standin", last=last), seconds=200
    )
    assert all(code != 0 for code, _, _ in results)
    assert any("device or precision: not the same on all 2 ranks" in err for _, _, err in results), results


@pytest.mark.slow
def test_a_rank_whose_own_card_is_refused_stops_all_before_a_charge(files: dict[str, str], tmp_path: Path) -> None:
    words = [*_words(files, "train", tmp_path / "run", "--device", "standin"), "--model", "small-cnn"]
    words.remove("linear"), words.remove("--model")
    last = ["-m", "tests.system.runs.faulty_device", "by_place=1e-6", *words[2:]]
    home = tmp_path / "home"
    results = ranks.finish(ranks.start(*words, ranks=2, home=home, module="tests.standin", last=last), seconds=120)
    assert all(code != 0 for code, _, _ in results)
    assert "(rank 1): device standin:0: a unit's gradient has different bits at another position" in results[1][2], (
        results
    )
    assert not list(home.glob("ledgers/*")) and not (tmp_path / "run").exists()
