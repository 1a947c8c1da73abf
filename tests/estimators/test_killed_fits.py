"""A killed fit cannot continue, so the next one destroys its key; running fits keep theirs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpvision.core.keys import Key
from dpvision.private.training import train
from dpvision.storage import run_folder
from dpvision.storage.run_folder import clear_fits, key_of_fit
from tests.estimators.cases import classifier, digits, release
from tests.one_thread import one_thread  # noqa: F401
from tests.system.runs.commands import QUIET, write_data

KILLED = """
import os, signal, sys
import dpvision.core.noise as noise
from tests.estimators.cases import classifier, digits, release

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

noise.add_noise = kill
x, y = digits()
(classifier(steps=2) if sys.argv[1] == "classifier" else release()).fit(x, y)
"""


def keys(home: Path) -> list[Path]:
    """What is in keys/, but for locks without a secret."""
    return [path for path in sorted((home / "keys").glob("*")) if path.suffix != ".lock"]


@pytest.mark.parametrize("kind", ["classifier", "release"])
def test_the_key_of_a_killed_fit_is_destroyed_by_the_next_one(kind: str, own_home: Path) -> None:
    environment = os.environ | QUIET | {"DPVISION_HOME": str(own_home)}
    ended = subprocess.run([sys.executable, "-c", KILLED, kind], env=environment, capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.suffix for path in keys(own_home)] == [".fit", ".key", *([".threads"] if kind == "release" else [])]
    others = np.random.default_rng(0).integers(0, 256, (100, 8, 8), np.uint8)
    classifier(steps=2).fit(others, digits()[1][:100])
    assert keys(own_home) == []


def test_a_fit_leaves_no_key_however_it_ends(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits()
    classifier(steps=2).fit(x[:100], y[:100])
    release().fit(x[200:300], y[200:300])
    assert keys(own_home) == []

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpvision.core.noise.add_noise", fail)
    for estimator, rows in ((classifier(steps=2), slice(400, 500)), (release(), slice(600, 700))):
        with pytest.raises(KeyboardInterrupt):
            estimator.fit(x[rows], y[rows])
        assert keys(own_home) == []


def test_the_key_of_a_living_fit_stays(own_home: Path) -> None:
    waiting = (
        "import time; from dpvision.storage import run_folder; from dpvision.storage.run_folder import key_of_fit\n"
        "from dpvision.core.keys import Key\n"
        "with key_of_fit() as name:\n    Key.fresh().write(run_folder.key_path(name)); print(name, flush=True); time.sleep(120)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", waiting], env=os.environ | {"DPVISION_HOME": str(own_home)}, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        with key_of_fit() as own:
            Key.fresh().write(run_folder.key_path(own))
            clear_fits()
            assert Key.read(run_folder.key_path(own)) is not None and Key.read(run_folder.key_path(name)) is not None
        assert [path.name for path in keys(own_home)] == [f"{name}.fit", f"{name}.key"]
    finally:
        process.kill()
        process.communicate()
    clear_fits()
    assert keys(own_home) == []


def test_keys_of_fits_of_earlier_versions_go_and_those_of_runs_stay(own_home: Path, tmp_path: Path) -> None:
    """They had no lock; their run folder is in the home, and names no data that could be read again."""
    from dpvision.settings.training import Config

    prepared = train.prepare(str(write_data(tmp_path / "data.npz")), Config(epsilon=3.0, steps=3, model="linear"))
    for folder, source in (("fit", tmp_path / "arrays"), ("run", tmp_path / "data.npz")):
        run = train.begin(prepared, own_home / "runs" / folder)
        run.write_facts({**run.facts(), "data": str(source)})
    assert len(keys(own_home)) == 2
    clear_fits()
    (left,) = keys(own_home)
    train.proceed(run_folder.Run(own_home / "runs" / "run"), prepared)
    assert not left.exists()
