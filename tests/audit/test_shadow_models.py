"""LiRA on a run: it finds the members of a model that memorises; it charges no account and leaves only operator/ files."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dpvision.audit import shadow_models
from dpvision.audit.membership import train_shadows
from dpvision.cli.app import app
from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError, DataError
from dpvision.storage import run_folder
from dpvision.storage.home import home as current_home
from tests.audit.fixed_randomness import fixed_randomness
from tests.system.runs.commands import write_data

pytestmark = pytest.mark.usefixtures("fixed")
RECORDS = 60  # of each split; labels are random, so that only a model that memorises them predicts them


def _run(*words: str | Path) -> None:
    app([str(w) for w in words], exit_on_error=False, print_error=False, result_action="return_value")


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data.npz, a run with hardly any noise, and its home."""
    folder, rng = tmp_path_factory.mktemp("memorises"), np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 256, (RECORDS, 8, 8), dtype=np.uint8)
        arrays[f"{split}_labels"] = rng.integers(0, 2, RECORDS)
    np.savez(folder / "data.npz", **arrays)
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("memorises"):
        patch.setenv("DPVISION_HOME", str(folder / "home"))
        settings = ("--epsilon", "100", "--steps", "40", "--batch", "30", "--lr", "2")
        _run("train", folder / "data.npz", *settings, "--out", folder / "run")
    return folder


def test_lira_finds_members_and_removes_its_shadow_models(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, run = finished / "home", run_folder.Run(finished / "run")
    monkeypatch.setenv("DPVISION_HOME", str(home))
    home_before, operator_before = _contents(home), _contents(run.operator)
    _run("audit", run.folder, finished / "data.npz", "--runs", "200", "--confidence", "0.999", "--shadows", "4")
    output = capsys.readouterr().out
    assert "LiRA, this model: 60 members and 60 others" in output and shadow_models.WARNING in output
    results = json.loads((run.operator / "lira.json").read_text())
    assert results["warning"] == shadow_models.WARNING and (results["shadows"], results["unit"]) == (4, "image")
    this, turns = results["this_model"], results["shadows_in_turn"]
    assert this["auc"] > 0.7 and turns["auc"] > 0.7 and turns["members"] == turns["others"] == 4 * RECORDS
    assert turns["found"].keys() == {"0.001", "0.01", "0.1"} and turns["by_class"].keys() == {"0", "1"}
    svg = (run.operator / "lira.svg").read_bytes()
    assert b"allowed by the claim" in svg and b"NOT FOR RELEASE" in svg
    assert _contents(home) == home_before and os.environ["DPVISION_HOME"] == str(home)
    new = {"lira.json", "lira.svg", "membership.json", "membership.svg"}
    assert _contents(run.operator).keys() - operator_before.keys() == new and not (run.operator / "shadows").exists()
    for path in (p for p in run.folder.iterdir() if p.is_file()):
        assert f"{turns['auc']:.6f}" not in path.read_text(errors="replace") and "lira" not in path.name


def test_an_audit_that_is_killed_or_fails_leaves_no_shadow_model(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run = finished / "home", run_folder.Run(finished / "run")
    monkeypatch.setenv("DPVISION_HOME", str(home))
    keys = run.operator / "shadows" / "keys"
    keys.mkdir(parents=True)
    (keys / "of a killed audit.key").write_bytes(b"x")
    before = _contents(home)

    def broken(*_: object, **__: object) -> None:
        assert current_home() == run.operator / "shadows" and not list(keys.glob("of a killed*"))
        assert len(list(keys.iterdir())) == 1, "a fresh key"
        raise OSError("the disk is full")

    monkeypatch.setattr("dpvision.private.training.train.proceed", broken)
    with pytest.raises(OSError, match="full"):
        shadow_models.train_shadows_and_attack(shadow_models.plan_shadows(run, str(finished / "data.npz"), count=4))
    assert not (run.operator / "shadows").exists() and _contents(home) == before
    assert os.environ["DPVISION_HOME"] == str(home)


def test_a_temporary_home_shares_public_priors(tmp_path: Path, own_home: Path) -> None:
    (own_home / "priors").mkdir(parents=True)
    (own_home / "priors" / "map").write_text("public")
    with shadow_models.temporary_home(tmp_path / "place") as place:
        assert (place / "priors" / "map").read_text() == "public" and os.stat(place).st_mode & 0o077 == 0
    assert not place.exists() and (own_home / "priors" / "map").exists()


def test_a_link_in_place_of_a_temporary_home_is_refused(tmp_path: Path, own_home: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="is a link"), shadow_models.temporary_home(tmp_path / "place"):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == [] and (tmp_path / "place").is_symlink()


def test_another_thread_keeps_the_real_home(tmp_path: Path, own_home: Path) -> None:
    """Otherwise what it trains meanwhile would be charged to a ledger that is removed."""
    with shadow_models.temporary_home(tmp_path / "place") as place, ThreadPoolExecutor(1) as other:
        assert current_home() == place and other.submit(current_home).result() == own_home
    assert current_home() == own_home


def test_a_run_that_cannot_be_attacked_is_refused_with_a_reason(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(finished / "home"))
    run, source = run_folder.Run(finished / "run"), str(finished / "data.npz")
    for count in (2, 5):
        with pytest.raises(ConfigError, match="even number of at least 4"):
            shadow_models.plan_shadows(run, source, count=count)
    with pytest.raises(DataError, match="not the images that the run was trained on"):
        shadow_models.plan_shadows(run, str(write_data(tmp_path / "other.npz")), count=4)
    before = _contents(run.folder)
    with pytest.raises(ConfigError, match="even number"):
        _run("audit", run.folder, source, "--shadows", "5")
    assert _contents(run.folder) == before, "refused before anything is written"
    with pytest.raises(ConfigError, match="needs the data of the run"):
        _run("audit", run.folder, "--shadows", "8")
    with pytest.raises(ConfigError, match="for releases"):
        _run("audit", run.folder, source, "--operator", tmp_path / "x")
    arrays = {k: v for k, v in np.load(source).items() if k.startswith("train")}
    np.savez(tmp_path / "alone.npz", **arrays)
    with pytest.raises(DataError, match="no test split"):
        shadow_models.plan_shadows(run, str(tmp_path / "alone.npz"), count=4)
    shutil.rmtree(tmp_path)


def test_images_of_one_person_are_in_or_out_together() -> None:
    persons = np.array([7, 3, 7, 3, 9, 9, 5, 5])
    _, inside = train_shadows(lambda rows: np.zeros(8), np.array([0, 0, 0, 0, 1, 1, 1, 1]), count=6, units=persons)
    assert (inside[:, 0] == inside[:, 2]).all() and (inside[:, 4] == inside[:, 5]).all()
    assert (inside[:, 0] != inside[:, 1]).all() and (inside[:, 4] != inside[:, 6]).all(), "one half of each class"


def test_a_person_of_both_splits_counts_as_seen() -> None:
    image = np.zeros((3, 2, 2, 1), np.uint8)
    train = Split(image, np.array([0, 1, 0]), np.array([4, 2, 4]))
    test = Split(image, np.array([1, 0, 0]), np.array([2, 8, 8]))
    data = Dataset("x", ("a", "b"), train, None, test, ())
    pool = shadow_models._pool(data, "person", "x")
    assert pool.seen.tolist() == [True, True, False] and pool.divide(np.arange(3.0), pool.seen)[2].tolist() == [1, 0]
    assert pool.mean_by_unit(np.arange(6.0)).tolist() == [2.0, 1.0, 4.5]
    assert shadow_models._pool(data, "image", "x").seen.tolist() == [True] * 3 + [False] * 3
    with pytest.raises(DataError, match="no non-members"):
        shadow_models._pool(Dataset("x", ("a", "b"), train, None, train, ()), "person", "x")
    without_persons = Dataset("x", ("a", "b"), train, None, Split(image, test.labels, None), ())
    with pytest.raises(DataError, match="does not state whose images"):
        shadow_models._pool(without_persons, "person", "x")
