"""release, features, plan release and recipes as a user meets them; in this process, which is quicker."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.resources import files as resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from dpvision.cli import main
from dpvision.core.events import Gaussian
from dpvision.released.folder import read_release, read_rows
from dpvision.released.learners import DiscriminantLearner
from dpvision.settings.recipes import RELEASES
from tests.private.statistics.releases.small import RANK

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--encoder", "pixels", "--rank", RANK)


@pytest.fixture
def run(small_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def once(*words: object) -> tuple[int, str, str]:
        """(exit code, output, errors)"""
        monkeypatch.setattr(sys, "argv", ["dpvision", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as exc:
            code = int(exc.code or 0)
        return code, *capsys.readouterr()

    return once


def test_release_then_features_then_a_classifier_of_ones_own(run: Run, tmp_path: Path) -> None:
    code, out, err = run("release", "digits", "--epsilon", 8, "--rows", 500, *SMALL, "--licence", "CC0")
    assert code == 0, err
    assert "test accuracy" in out and "releases/1" in out
    code, out, err = run("features", "releases/1", "digits", "--out", "test.safetensors")
    assert code == 0 and "as private as the images" in out, err
    assert (tmp_path / "test.safetensors").stat().st_mode & 0o077 == 0
    features, labels = read_rows("releases/1")
    loaded = load_file("test.safetensors")
    assert loaded["features"].shape == (360, RANK) and loaded["labels"].shape == (360,)
    means = np.stack([features[labels == k].mean(axis=0) for k in range(10)])
    nearest = (loaded["features"] @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)
    assert (nearest == loaded["labels"]).mean() > 0.6
    code, _, err = run("features", "releases/1", "digits", "--out", "test.safetensors")
    assert code == 2 and "must be a new file" in err
    code, _, err = run("features", "nowhere", "digits", "--out", "b.safetensors")
    assert code == 3 and "nowhere: there is no such file or folder." in err
    Path("empty").mkdir()
    code, _, err = run("features", "empty", "digits", "--out", "b.safetensors")
    assert code == 3 and "not a released data set (schema.json: there is no such file)." in err
    code, _, err = run("features", "releases/1", "digits", "--out", "nowhere/b.safetensors")
    assert code == 2 and "there is no folder nowhere" in err
    card = json.loads(Path("releases/1/card.json").read_text())
    assert card["licence"] == "CC0" and card["rows"] == 500
    code, _, err = run("release", "digits", "--epsilon", 1, *SMALL)
    assert code == 4 and "budget" in err and not Path("releases/2").exists()
    code, out, err = run("ledger", "digits", "--json")
    assert code == 0 and 7.9 < json.loads(out)["spent"] <= 8, err
    code, _, err = run("train", "digits", "--epsilon", 1, "--steps", 3, "--out", "run")
    assert code == 4 and "budget" in err, "a training run on the same images has the same account"
    assert not Path("run").exists()


@pytest.mark.parametrize(("recipe", "releases"), [("dp-merf", 1), ("dp-hp", 1), ("p3gm", 2)])
def test_a_published_method_from_the_release_to_a_classifier(
    recipe: str, releases: int, run: Run, small_home: Path
) -> None:
    words = ("release", "digits", "--epsilon", 8, "--recipe", recipe, "--rows", 300)
    before = sorted(small_home.rglob("*"))
    code, out, err = run(*words, "--dry-run")
    assert code == 0 and "nothing was charged" in out and f"{recipe}: 300 rows" in out, err
    assert sorted(small_home.rglob("*")) == before
    code, out, err = run(*words, "--out", "a")
    assert code == 0 and "test accuracy, linear discriminant of the rows" in out, err
    card = json.loads(Path("a/card.json").read_text())
    jsonschema.validate(card, json.loads((resources("dpvision.released.report") / "card.schema.json").read_text()))
    release = read_release(Path("a"))
    assert release.private and isinstance(release.event, Gaussian) and release.event.count == releases
    assert ("the one release" in card["account_of_a_record"]) == (releases == 1)
    assert "noise_x" not in card["mechanism"] and "moments" not in Path("a/README.md").read_text()
    _, out, _ = run("ledger", "digits", "--json")
    account = json.loads(out)
    assert len(account["charges"]) == 1 and 7.9 < account["spent"] <= 8
    features, labels = read_rows("a")
    assert features.shape == (300, 64) and labels.dtype == np.int64 and set(labels) <= set(range(10))
    code, _, err = run("features", "a", "digits", "--out", "test.safetensors")
    loaded = load_file("test.safetensors")
    assert code == 0, err
    assert DiscriminantLearner(classes=10).fit(features, labels).score(loaded["features"], loaded["labels"]) > 0.6
    code, _, err = run(*words, "--out", "b")
    assert code == 4 and "budget" in err and not Path("b").exists()
    code, out, err = run("audit", "a", "--runs", 200, "--confidence", 0.999999)  # never refuted by chance
    assert code == 0 and "not refuted" in out and read_release(Path("a")).card["audit"], err
    code, _, err = run(*words, "--accounting", "paper")
    assert code == 2 and "no published account to compare with" in err


def test_one_plan_for_all_published_methods(run: Run) -> None:
    """Planned together they are composed exactly, and the first of them charges for all."""
    recipes = ("dp-merf", "p3gm")
    for recipe in recipes:
        code, out, err = run("release", "digits", "--epsilon", 3, "--budget", 20, "--recipe", recipe, "--plan")
        assert code == 0 and "Nothing is charged yet" in out, err
    for recipe in recipes:
        words = ("--epsilon", 3, "--budget", 20, "--recipe", recipe, "--out", recipe)
        code, _, err = run("release", "digits", *words)
        assert code == 0, err
    _, out, _ = run("ledger", "digits", "--json")
    assert json.loads(out)["spent"] < 5, "less than the sum, which is 6"


def test_a_training_first_then_a_release(run: Run) -> None:
    code, _, err = run(
        "train", "digits", "--epsilon", 1, "--recipe", "linear", "--steps", 3, "--out", "run", "--budget", 3
    )
    assert code == 0, err
    code, _, err = run("release", "digits", "--epsilon", 3, *SMALL, "--out", "a")
    assert code == 4 and not Path("a").exists()
    code, _, err = run("release", "digits", "--epsilon", 1, *SMALL, "--rows", 100, "--out", "a")
    assert code == 0, err
    _, out, _ = run("ledger", "digits", "--json")
    assert len(json.loads(out)["charges"]) == 2


def test_a_dry_run_and_a_comparison_leave_no_trace(run: Run, small_home: Path) -> None:
    before = sorted(small_home.rglob("*"))
    for recipe in ("moments", "neuromix-hs"):
        code, out, err = run("release", "digits", "--epsilon", 1, "--recipe", recipe, *SMALL, "--dry-run")
        assert (
            code == 0 and "nothing was released, nothing was charged. The release would be written to releases/1" in out
        ), err
        assert re.search(r"epsilon (0\.9[5-9]\d*|1(\.0+)?) at delta 1e-05, by", out), out
    code, out, err = run(
        "release", "digits", "--epsilon", 1, "--recipe", "neuromix-hs", "--accounting", "paper", "--out", "a"
    )
    assert code == 0 and "nothing was written or charged" in out, err
    truly = next(line for line in out.splitlines() if "true privacy" in line)
    assert float(truly.split()[-1]) > 2, "where 1 was asked for"
    code, _, err = run("release", "digits", "--epsilon", 1, "--accounting", "paper")
    assert code == 2 and "no published account to compare with" in err
    assert sorted(small_home.rglob("*")) == before, "no ledger, no key"
    assert not Path("a").exists() and not Path("releases").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--encoder", "resnet"), 2, "no model named 'resnet'"),
        (("--encoder", "patches-3"), 2, "no model named 'patches-3'"),
        (("--encoder", "small-cnn"), 2, "needs weights trained on public images"),
        (("--encoder", "small-cnn", "--weights", "no.safetensors"), 3, "no.safetensors: there is no such file"),
        (("--encoder", "small-cnn", "--weights", "full/x"), 3, "full/x: is not a valid safetensors file"),
        (("--weights", "full/x"), 2, "has no weights"),
        ((*map(str, SMALL), "--out", "full"), 2, "full: already exists"),
        ((*map(str, SMALL), "--out", "full/x/y"), 2, "full/x is not a folder"),
        ((*map(str, SMALL), "--share", "2"), 2, "share is 2"),
        ((*map(str, SMALL), "--budget", "1"), 4, "budget"),
    ],
)
def test_a_dry_run_refuses_what_a_release_would(words: tuple[str, ...], code: int, says: str, run: Run) -> None:
    Path("full").mkdir()
    Path("full/x").write_text("mine")
    for dry in (("--dry-run",), ()):
        got, _, err = run("release", "digits", "--epsilon", 3, *words, *dry)
        assert got == code and says in err, err


@pytest.mark.parametrize("encoder", ["patches", "patches-256"])
def test_a_dry_run_makes_no_dictionary(encoder: str, run: Run, small_home: Path, maps: Path) -> None:
    before = sorted(maps.rglob("*"))
    code, _, err = run("release", "digits", "--epsilon", 3, "--encoder", encoder, "--dry-run")
    assert code == 2 and "patches need 10 to 1,024 pixels" in err
    np.savez("a.npz", train_images=np.zeros((90, 12, 12), np.uint8), train_labels=np.arange(90) % 3)
    code, out, err = run("release", "a.npz", "--epsilon", 3, "--encoder", encoder, "--dry-run")
    assert code == 0 and "nothing was charged" in out, err
    assert sorted(maps.rglob("*")) == before


def test_a_fixed_key_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPVISION_TEST_KEY", "known")
    code, _, err = run("release", "digits", "--epsilon", 8, "--recipe", "class-schedule", *SMALL, "--out", "a")
    assert code == 0, err
    assert json.loads(Path("a/card.json").read_text())["status"].startswith("NOT PRIVATE")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("release", "digits"), 2, "--epsilon is missing"),
        (("release", "digits", "--epsilom", "3"), 2, "Did you mean --epsilon"),
        (("release", "digits", "--epsilon", "3", "--recipe", "neuromx"), 2, "Did you mean 'neuromix'"),
        (("release", "digits", "--epsilon", "3", "--recipe", "linear"), 2, "is for `dpvision train`"),
        (("train", "digits", "--epsilon", "3", "--recipe", "neuromix"), 2, "is for `dpvision release`"),
        (
            ("release", "digits", "--epsilon", "3", "--degree", "4"),
            2,
            "degree: recipe moments does not use this setting",
        ),
        (("release", "digits", "--epsilon", "3", "--delta", "0.01"), 2, "delta is 0.01 and n is 1437"),
        (("release", "digits", "--epsilon", "0"), 2, "epsilon"),
        (("release", "digits", "--epsilon", "3", "--bound", "2", "--rank", "5"), 2, "bound"),
        (("release", "digits", "--epsilon", "3", "--class-counts", "3,x"), 2, "class-counts is '3,x'"),
        (("release", "digits", "--epsilon", "3", "--class-counts", "3,4"), 2, "there are 10 classes"),
        (("release", "digits", "--epsilon", "3", "--class-counts", "3,4", "--n", "9"), 2, "add up to 7, but n is 9"),
        (("release", "digits", "--epsilon", "3", "--encoder", "resnet"), 2, "no model named"),
        (("release", "digits", "--epsilon", "3", "--size", "16"), 3, "size"),
        (("release", "nowhere.npz", "--epsilon", "3"), 3, "nowhere.npz"),
        (("release", "digits", "--epsilon", "3", "--budget", "1", *map(str, SMALL)), 4, "budget"),
        (("release", "digits", "--epsilon", "3", "--config", "nowhere.toml"), 2, "nowhere.toml"),
        (("plan", "release", "--n", "100", "--epsilon", "1", "--recipe", "nix"), 2, "no recipe named"),
        (
            ("plan", "release", "--n", "100", "--epsilon", "1", "--recipe", "moments", "--degree", "3"),
            2,
            "does not use this setting",
        ),
    ],
)
def test_mistakes_get_one_clear_message(words: tuple[str, ...], code: int, says: str, run: Run) -> None:
    got, _, err = run(*words)
    assert got == code, err
    assert says in err and len(err.strip().splitlines()) <= 3
    assert not Path("releases").exists()


def test_flags_win_over_the_file_and_the_file_over_the_recipe(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('epsilon = 2\nrows = 17\nrank = 5\nencoder = "pixels"\nshare = 0.3\n')
    code, _, err = run("release", "digits", "--config", "a.toml", "--epsilon", 4, "--rows", 30, "--out", "a")
    assert code == 0, err
    config = json.loads(Path("a/card.json").read_text())["config"]
    assert (config["epsilon"], config["rows"], config["rank"], config["share"]) == (4.0, 30, 5, 0.3)
    (tmp_path / "b.toml").write_text("epsilon = 2\nbalence = 1.0\n")
    code, _, err = run("release", "digits", "--config", "b.toml")
    assert code == 2 and "Did you mean 'balance'" in err


@pytest.mark.parametrize("recipe", RELEASES)
def test_recipes_can_be_shown_and_copied_and_used(recipe: str, run: Run) -> None:
    code, out, err = run("recipes", "show", recipe)
    assert code == 0 and f'recipe = "{recipe}"' in out and "Paper:" in out, err
    code, out, err = run("recipes", "copy", recipe)
    assert code == 0 and f"`dpvision release DATA --epsilon EPSILON --config {recipe}.toml`" in out, err
    code, _, err = run("release", "digits", "--config", f"{recipe}.toml", "--dry-run")
    assert code == 2 and "--epsilon is missing" in err, "no recipe decides about epsilon"
    code, out, err = run("release", "digits", "--config", f"{recipe}.toml", "--epsilon", 8, "--dry-run")
    needs_weights = recipe == "neuromix-cifar100"
    assert code == (2 if needs_weights else 0) and (needs_weights or f"{recipe}: " in out), err
    assert not needs_weights or "Fix: run `dpvision weights get dinov2-vits14`" in err


def test_recipes_lists_both_kinds(run: Run) -> None:
    code, out, _ = run("recipes")
    assert code == 0 and "recipe of train" in out and "recipe of release" in out
    assert all(name in out for name in RELEASES)


def test_plan_release_prints_one_object(run: Run, small_home: Path) -> None:
    words = ("plan", "release", "--n", 1500, "--epsilon", 8, "--classes", 10)
    code, out, _ = run(*words, "--recipe", "neuromix", "--json")
    answer = json.loads(out)
    assert code == 0 and 7.8 < answer["epsilon"] <= 8 and answer["recipe"] == "neuromix"
    assert {"degree", "sigma", "rows", "charged"} <= answer.keys()
    code, out, _ = run(*words)
    assert code == 0 and "moments" in out and "sigma" in out and "degree" not in out, "what `release` does"
    assert not (small_home / "ledgers").exists()
