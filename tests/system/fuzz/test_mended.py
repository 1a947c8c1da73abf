"""What the fuzzer found, one by one: each was a traceback, a wait without end, or memory without bound."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from dpvision.core import files
from dpvision.core.events import Budget, Gaussian
from dpvision.core.keys import Key
from dpvision.core.ledger import Ledger, _hash
from dpvision.data import Split
from dpvision.errors import ConfigError, DataError, LedgerMismatch, PrivacyError
from dpvision.models import digest_file
from dpvision.models.device import find_device
from dpvision.private.training import gradient_study
from dpvision.private.training.loop import _drop_lines_after
from dpvision.private.training.private_sum import count_units
from dpvision.public.contrastive import PretrainSettings
from dpvision.public.random import write_gallery
from dpvision.released import evaluation, model
from dpvision.settings.setting import class_list, read_toml
from dpvision.settings.training import Config, merge
from dpvision.storage import run_folder, safetensors
from tests.fork_server import ForkServer
from tests.system.fuzz.campaign import Campaign


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    """Who waits for a pipe or reads a device without end is stopped."""
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.fixture(params=["device", "pipe", "folder", "loop", "sparse"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    match request.param:
        case "device":
            path.symlink_to("/dev/zero")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case _:
            with path.open("wb") as file:
                file.truncate(1 << 40)
    return path


def test_what_is_no_regular_file_is_refused_at_once(no_file: Path) -> None:
    for read in (safetensors.read, run_folder.read_json):
        with pytest.raises(DataError, match="file"):
            read(no_file)
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        read_toml(no_file)
    assert safetensors.read_header(no_file) == {}
    with pytest.raises((OSError, ValueError)):
        files.read(no_file, most=1000)


def test_lines_and_keys_are_of_regular_files_too(no_file: Path) -> None:
    if no_file.exists():
        with pytest.raises(DataError, match="cannot be read"):
            run_folder.read_lines(no_file)
        with pytest.raises((PrivacyError, OSError)):
            Key.read(no_file)


def test_a_ledger_under_other_kinds_of_files(no_file: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledgers", "ab" * 16)
    ledger.open(Budget(1.0, 1e-5))
    for suffix, kind in ((".lock", PrivacyError), (".seal", LedgerMismatch), (".jsonl", LedgerMismatch)):
        path = ledger.path.with_suffix(suffix)
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to(no_file)
        if suffix != ".lock" or no_file.is_dir() or not no_file.exists():
            with pytest.raises(kind):
                ledger.account()
        path.unlink()
        path.write_bytes(kept)
    assert ledger.account().budget == Budget(1.0, 1e-5)


@pytest.mark.parametrize("value", [10**400, -(10**400), "x", None, [], {}, 1e999])
@pytest.mark.parametrize("field", ["epsilon", "delta", "event", "sigma"])
def test_forged_lines_of_a_ledger_are_refused_by_name(field: str, value: object, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "ab" * 16)
    ledger.open(Budget(1.0, 1e-5))
    ledger.spend(Gaussian(100.0), id="a", run="b")
    lines, previous = [json.loads(line) for line in ledger.path.read_text().splitlines()], ""
    target = lines[0] if field in ("epsilon", "delta") else lines[1] if field == "event" else lines[1]["event"]
    target[field] = value if value != 1e999 else "Infinity"
    for line in lines:
        del line["hash"]
        line["previous"] = previous
        line["hash"] = previous = _hash(previous, line)
    ledger.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ledger.path.with_suffix(".seal").write_text(f"2 {previous}\n")
    with pytest.raises(LedgerMismatch):
        ledger.account()


@pytest.mark.parametrize("text", ["epsilon = " + "9" * 400, "n = " + "9" * 5000, "steps = " + "9" * 30])
def test_numbers_without_end_in_settings(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        merge(Config(), read_toml(tmp_path / "x.toml"), source="x.toml")
    assert len(str(error.value)) < 400


def test_a_lock_that_is_a_link_makes_no_file_elsewhere(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="cannot be locked"), files.locked(lock):
        pass
    (tmp_path / f".x.{os.getpid()}.new").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        files.write(tmp_path / "x", b"data")
    assert not (tmp_path / "elsewhere").exists()


def test_weights_without_end_are_not_hashed(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="weights may have at most"):
        digest_file(path)


def test_digits_that_are_no_numbers_are_names() -> None:
    assert class_list("²") == ["²"] and class_list("12") == 12


def test_devices_that_are_not_there() -> None:
    assert find_device("cpu") == torch.device("cpu")
    for name in ("", "x", "cpu:x", "meta", "/dev/zero", "cuda:99"):
        with pytest.raises(ConfigError, match="cannot be used here"):
            find_device(name)


@pytest.mark.parametrize("values", [{"hidden": 8}, {"lr": float("-inf")}, {"lr": float("nan")}, {"lr": 0.0}])
def test_settings_of_pretraining_that_can_not_be(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        PretrainSettings(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{"workers": 10**30}, {"count": 10**30}, {"seed": -1}])
def test_random_images_that_can_not_be(values: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        write_gallery("dead-leaves", tmp_path / "out", **{"count": 1, "side": 8, **values})  # type: ignore[arg-type]


def test_a_run_that_does_not_say_what_it_was_trained_on(campaign: Campaign, tmp_path: Path) -> None:
    server: ForkServer = campaign.server
    strange = [("fingerprint", value) for value in (None, 7, ["ab"], "../../x")]
    strange += [("accounts", value) for value in (7, ["ab"], {}, {"charged": []}, {"charged": ["../../x"]})]
    for number, (key, value) in enumerate(strange):
        run = tmp_path / f"run-{number}"
        (run / "operator").mkdir(parents=True)
        for name in ("config.toml", "weights.safetensors", "operator/run.json"):
            (run / name).write_bytes((campaign.corpus / "run" / name).read_bytes())
        facts = json.loads((run / "operator" / "run.json").read_text())
        (run / "operator" / "run.json").write_text(json.dumps(facts | {key: value}))
        code, _, err = server.run("report", run, home=tmp_path / "home")
        assert code in (2, 3) and err.startswith("dpvision: "), err


def test_names_that_are_no_text_are_told_all_the_same(campaign: Campaign, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.toml"))
    code, output, err = campaign.server.run("recipes", "copy", "default", "--out", out, home=tmp_path / "home")
    assert code == 0 and out.exists() and "\\udcff" in output, err


def test_more_memory_than_there_is(campaign: Campaign, tmp_path: Path) -> None:
    words = ("pretrain", "--model", "wrn-10-1", "--hidden", 1 << 24, "--size", 8, "--out", tmp_path / "out")
    code, _, err = campaign.server.run(*words, home=tmp_path / "home", memory=1 << 30)
    assert code == 3 and "out of memory" in err


def test_a_sound_file_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.dump({"w": torch.ones(3)}, {"format": "x"}))
    assert safetensors.read(path).header["format"] == safetensors.read_header(path)["format"] == "x"


def test_a_folder_where_a_file_is_to_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is written, also next to it."""
    (tmp_path / "report.html").mkdir()
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a file was opened"))
    with pytest.raises(DataError, match=r"report\.html: cannot be written, because a folder has this name"):
        files.write(tmp_path / "report.html", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    "change",
    [
        {"counts": "x"},
        {"counts": [1]},
        {"counts": [0] * 80},
        {"counts": [-1] + [1] * 79},
        {"counts": [10**400] * 80},
        {"share": "x"},
        {"share": {}},
        {"deviation": None},
        {"deviation": float("nan")},
    ],
)
def test_gradients_that_no_study_wrote(change: dict[str, object], tmp_path: Path) -> None:
    run = run_folder.Run(tmp_path)
    run.operator.mkdir()
    run.write_config(Config())
    run_folder.append_json(gradient_study.file(run), {"share": 0.2, "deviation": 0.5, "counts": [1] * 80})
    gradient_study.plot([run], tmp_path / "sound.svg")
    run_folder.append_json(gradient_study.file(run), {"share": 0.2, "deviation": 0.5, "counts": [1] * 80} | change)
    with pytest.raises(DataError, match="is not a valid gradient study"):
        gradient_study.plot([run], tmp_path / "hostile.svg")


def test_lines_of_a_log_without_the_number_of_a_step(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for line in ('{"step": "x"}', '{"step": null}', '{"step": [1]}'):
        path.write_text(line + "\n")
        with pytest.raises(DataError, match="no valid step number"):
            _drop_lines_after(path, 3)


def test_a_pipe_in_the_place_of_samples_or_features(campaign: Campaign, tmp_path: Path) -> None:
    """Each is asked for by name, and would be waited for."""
    for kind, pattern in (("guide", "samples.npz"), ("home", "features/*.npy")):
        place = tmp_path / kind / kind
        place.parent.mkdir()
        shutil.copytree(campaign.corpus / kind, place)
        for path in place.glob(pattern):
            path.unlink()
            os.mkfifo(path)
        words = (campaign.corpus, place, "heavy")
        code, out, err = campaign.server.run(*words, home=tmp_path, call="tests.system.fuzz.readers:read_all")
        assert code == 0 and out.startswith("1 "), (out, err)


def test_metrics_that_are_no_numbers(tmp_path: Path) -> None:
    run = run_folder.Run(tmp_path)
    for line in ('{"step": 1e400, "epsilon": 1}', '{"step": true, "epsilon": 1}', '{"step": 1, "epsilon": NaN}'):
        run.metrics.write_text(line + "\n")
        with pytest.raises(DataError, match="line 1 has no valid step or epsilon"):
            evaluation.read_metrics(run)
    run.metrics.write_text(f'{{"step": 1, "epsilon": {10**400}, "test_accuracy_ema": {10**400}}}\n')
    assert evaluation.read_metrics(run) == [evaluation.Point(1, float("inf"), None, None)]


def test_a_header_with_a_shape_beyond_all_numbers(tmp_path: Path) -> None:
    results = {"format": "dpvision-weights-1", "model": "linear", "shape": "[1e400, 8, 8]", "classes": '["a", "b"]'}
    (tmp_path / "w.safetensors").write_bytes(safetensors.dump({}, results))
    with pytest.raises(DataError, match="does not describe a model"):
        model.load_model(tmp_path / "w.safetensors")


def test_names_that_would_order_a_terminal_about() -> None:
    result = model._line("\x1b[2J\x1b]0;owned\x07", "=1+1", "-2", "caf\u00e9")
    assert "\x1b" not in result and "\x07" not in result and result.endswith("'=1+1,'-2,caf\u00e9\n")


def test_persons_of_whom_nobody_knows() -> None:
    images = Split(np.zeros((2, 4, 4, 1), np.uint8), np.zeros(2, np.int64), None)
    with pytest.raises(ConfigError, match="needs the person on each image"):
        count_units(images, "person")
