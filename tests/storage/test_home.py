"""The home of ledgers and keys is a single folder, which nobody else may write to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dpvision.core.events import Budget
from dpvision.core.keys import Key
from dpvision.errors import ConfigError, PrivacyError
from dpvision.storage import run_folder
from dpvision.storage.home import home, ledger_of
from tests.system.runs.commands import run as command
from tests.system.runs.commands import write_data


def test_a_relative_home_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (".demo/home", "home", "~/home", "."):
        monkeypatch.setenv("DPVISION_HOME", place)
        with pytest.raises(
            ConfigError,
            match=r"a relative path.*each working directory would have a separate ledger .*Fix: use an absolute path",
        ):
            home()
        with pytest.raises(ConfigError):
            ledger_of("ab" * 32).open(Budget(1.0, 1e-5))
    assert list(tmp_path.iterdir()) == []


def test_a_relative_home_is_one_clear_line(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data.npz", images=40)
    code, _, err = command("train", data, "--epsilon", 3, "--out", tmp_path / "run", home=Path("home"), cwd=tmp_path)
    assert code == 2 and "DPVISION_HOME is 'home', a relative path" in err and "Traceback" not in err
    assert not (tmp_path / "home").exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["", "ledgers", "keys"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
def test_a_home_that_others_may_write_to_is_refused(folder: str, mode: int, own_home: Path) -> None:
    ledger_of("ab" * 32).open(Budget(1.0, 1e-5))
    Key.fresh().write(run_folder.key_path("ab" * 8))
    place = own_home / folder
    place.chmod(mode)
    for use in (lambda: ledger_of("ab" * 32), lambda: run_folder.key_path("ab" * 8)):
        with pytest.raises(PrivacyError) as error:
            use()
        assert f"`chmod go-w {place}`" in str(error.value)
    place.chmod(mode & ~0o022)
    assert ledger_of("ab" * 32).account().charges == ()


def test_a_home_that_others_may_read_is_not_refused(own_home: Path) -> None:
    own_home.mkdir(mode=0o755)
    own_home.chmod(0o755)
    assert home() == own_home


@pytest.fixture
def no_umask() -> object:
    before = os.umask(0)
    yield
    os.umask(before)


def test_run_folders_are_never_writable_by_others(tmp_path: Path, no_umask: object) -> None:
    data = write_data(tmp_path / "data.npz", images=40)
    words = ["--epsilon", 3, "--model", "linear", "--steps", 3]
    code, _, err = command("train", data, *words, "--out", tmp_path / "runs" / "deep" / "first", home=tmp_path / "home")
    assert code == 0, err
    code, _, err = command(
        *("release", write_data(tmp_path / "other.npz", images=40, seed=5), "--epsilon", 3, "--encoder", "pixels"),
        *("--rank", 0, "--rows", 20, "--out", tmp_path / "releases" / "first"),
        home=tmp_path / "home",
    )
    assert code == 0, err
    for top in ("runs", "releases", "home"):
        results = [tmp_path / top, *(tmp_path / top).rglob("*")]
        assert len(results) > 5
        for path in results:
            assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH), path
    operator = tmp_path / "runs" / "deep" / "first" / "operator"
    assert operator.stat().st_mode & 0o077 == 0
