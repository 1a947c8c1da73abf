"""`dpvision audit` of a release: canaries in its mechanism, a card bound to its rows, attacks that are not for release."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpvision.audit import inversion, release_canaries
from dpvision.audit.bounds import judge
from dpvision.audit.canaries import CanaryRandom, Trials
from dpvision.audit.release_canaries import mixture_scores
from dpvision.cli.app import app
from dpvision.core.events import from_json
from dpvision.errors import ConfigError, DataError
from dpvision.released.folder import read_release
from dpvision.released.report import wording
from dpvision.settings.release import round_robin
from tests.audit.fixed_randomness import fixed_randomness
from tests.private.statistics.releases.small import files, made, small
from tests.system.runs.commands import write_data

pytestmark = pytest.mark.usefixtures("fixed")
PUBLISHED = ("dp-merf", "dp-hp", "p3gm")
RECIPES = ("moments", "class-schedule", "neuromix", "neuromix-hs", "dpmix", *PUBLISHED)


def _run(*words: str | Path) -> None:
    app([str(w) for w in words], exit_on_error=False, print_error=False, result_action="return_value")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data.npz and a release of it by each recipe, and one by a fixed key."""
    folder = tmp_path_factory.mktemp("released")
    source = str(write_data(folder / "data.npz"))
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("released"):
        patch.setenv("DPVISION_HOME", str(folder / "home"))
        for recipe in RECIPES:
            made(folder / recipe, small(recipe, rank=0, budget=1e3), source=source)
        made(folder / "fixed", small("dpmix", budget=1e3), source=source, test_key="known to all")
    return folder


@pytest.fixture
def copied(released: Path, tmp_path: Path) -> Path:
    """The release of mixed pixels, to be damaged."""
    return Path(shutil.copytree(released / "dpmix", tmp_path / "copy"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_canaries_reach_what_the_claim_of_the_release_allows(recipe: str, released: Path) -> None:
    """No more, and no less: mu is that of the claimed mechanism for the most exposed record."""
    release = read_release(released / recipe)
    scores = release_canaries.score_canaries(release, canaries=2000, rng=CanaryRandom("release"))
    assert scores.claimed == from_json(json.loads((released / recipe / "card.json").read_text())["events"][0])
    verdict = judge(scores, delta=release.settings.delta, confidence=0.999)
    assert not verdict.refuted and verdict.bound.epsilon <= verdict.epsilon <= 8
    assert verdict.estimate.low < verdict.claimed_mu < verdict.estimate.high and verdict.claimed_mu > 1


@pytest.mark.parametrize("recipe", ["moments", "neuromix-hs", *PUBLISHED])
def test_less_noise_than_on_the_card_is_refuted(recipe: str, released: Path) -> None:
    scores = release_canaries.score_canaries(
        read_release(released / recipe), canaries=2000, rng=CanaryRandom("cut", 0.7)
    )
    assert judge(scores, delta=1e-5).refuted


def test_canaries_belong_to_the_most_exposed_class() -> None:
    """One of four classes is small, so its records are sampled more often."""
    scores = mixture_scores(round_robin(80, rates=(0.01, 0.01, 0.5, 0.01)), 2.0, Trials(200, 5, CanaryRandom("worst")))
    verdict = judge(scores, delta=1e-5, confidence=0.999)
    assert verdict.estimate.low < verdict.claimed_mu < verdict.estimate.high and verdict.claimed_mu > 1


@pytest.mark.parametrize(
    ("recipe", "values", "least"),
    [("moments", {"class_counts": (50, 50, 50, 50)}, 1.5), ("neuromix", {"alpha": 0.5, "most_weight": 1.0}, 0.4)],
)
def test_declared_counts_and_random_weights_are_audited_too(
    recipe: str, values: dict[str, Any], least: float, released: Path
) -> None:
    """Random weights are mostly below the accounted maximum, so canaries reveal less."""
    release = read_release(released / recipe)
    release = replace(release, settings=replace(release.settings, **values))
    scores = release_canaries.score_canaries(release, canaries=2000, rng=CanaryRandom("others"))
    verdict = judge(scores, delta=1e-5, confidence=0.999)
    assert not verdict.refuted and least < verdict.estimate.mu < verdict.claimed_mu + 0.2


def test_an_audit_is_on_the_card_and_results_from_private_images_are_not(
    released: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, operator = Path(shutil.copytree(released / "dpmix", tmp_path / "out")), tmp_path / "for me" / "alone"
    before = files(folder)
    words = ("--operator", operator, "--runs", "2000", "--confidence", "0.999")
    _run("audit", folder, released / "data.npz", *words)
    output, after = capsys.readouterr().out, files(folder)
    assert "not refuted" in output and "not for release" in output
    assert after.keys() - before.keys() == {"audit.json", "audit.svg"}
    assert [name for name in before if after[name] != before[name]] == ["card.json", "card.md", "report.html"]
    old, new = json.loads(before["card.json"]), json.loads(after["card.json"])
    assert {k: v for k, v in new.items() if k != "audit"} == {k: v for k, v in old.items() if k != "audit"}
    assert old["audit"] is None and new["audit"]["mechanism"]["canaries"] == 2000
    assert b"2,000 canaries; not refuted" in after["card.md"] and b"allowed by the claim" in after["audit.svg"]
    assert read_release(folder).private, "it can be audited again"
    private = {p.name: p for p in operator.iterdir()}
    assert private.keys() == {"membership.json", "membership.svg", "inversion.json", "inversion.png"}
    assert os.stat(operator).st_mode & 0o077 == 0 and not any(os.stat(p).st_mode & 0o077 for p in private.values())
    membership, inverted = (json.loads(private[f"{name}.json"].read_text()) for name in ("membership", "inversion"))
    assert 0.3 < membership["auc"] < 0.7 and (membership["members"], membership["others"]) == (200, 60)
    assert inverted["alone"] > 0.9 and inverted["members"] < 0.9, (
        "the attack works without noise, but not on released rows"
    )
    for name, content in after.items():
        assert f"{membership['auc']:.6f}".encode() not in content and b"by_class" not in content, name


@pytest.mark.parametrize(
    ("recipe", "how"), [("moments", "drawn with public randomness"), ("dp-hp", "generated by a network")]
)
def test_rows_drawn_from_noisy_sums_belong_to_no_record(recipe: str, how: str, released: Path) -> None:
    reason = str(inversion.attack_rows(read_release(released / recipe), "digits"))
    assert reason.startswith(f"the rows were {how}") and "no row belongs to a record" in reason


def test_a_fixed_key_cannot_be_hidden_by_editing_the_card(released: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(released / "fixed", tmp_path / "copy"))
    card = json.loads((folder / "card.json").read_text())
    private = json.loads((released / "dpmix" / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps(card | {k: private[k] for k in ("status", "guarantee")}))
    _run("audit", folder, "--runs", "100", "--confidence", "0.999")
    rewritten = json.loads((folder / "card.json").read_text())
    assert rewritten["status"] == wording.FIXED_KEY and rewritten["guarantee"]["epsilon"] is None
    assert "gives no privacy guarantee" in (folder / "card.md").read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"files": {}},
        {"classes": ["a", "b", "c", "d"]},
        {"events": [{"type": "gaussian", "sigma": 100.0, "count": 1}]},
        {"not_covered": [1]},
        {"accuracy": {"linear": "high"}},
        {"accuracy": {"linear": float("nan")}},
        {"licence": None},
        {"config": {"rows": 10}},
        {"config": {"sigma": 100.0}},
        {"config": {"sigma": "none"}},
        {"config": {"n": None}},
        {"config": {"kind": "pixels"}},
        {"config": {"class_counts": [200]}},
        {"config": {"no_such_setting": 1}},
    ],
    ids=str,
)
def test_an_edited_card_is_refused(change: dict[str, Any], copied: Path) -> None:
    card = json.loads((copied / "card.json").read_text())
    config = card["config"] | change.get("config", {})
    (copied / "card.json").write_text(json.dumps(card | change | {"config": config}))
    with pytest.raises(DataError, match=r"card\.json"):
        _run("audit", copied, "--runs", "100")
    assert not (copied / "audit.json").exists()


def test_a_deeply_nested_card_is_refused(copied: Path) -> None:
    card = (copied / "card.json").read_text().rstrip().removesuffix("}")
    (copied / "card.json").write_text(card + ', "data_set": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(DataError, match="not a valid card of a release"):
        read_release(copied)


def test_changed_or_missing_rows_are_refused(copied: Path, released: Path) -> None:
    (path,) = copied.glob("rows-*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="the digests in card"):
        _run("audit", copied)
    path.unlink()
    with pytest.raises(DataError, match="the digests in card"):
        _run("audit", copied)


@pytest.mark.parametrize("text", ["[]", "{", '{"format": "other"}', '{"format": "dpvision-audit-2", "mechanism": 3}'])
def test_an_audit_file_of_another_origin_is_refused_and_left(text: str, copied: Path) -> None:
    (copied / "audit.json").write_text(text)
    with pytest.raises(DataError, match=r"audit\.json"):
        _run("audit", copied, "--runs", "100")
    assert (copied / "audit.json").read_text() == text


def test_options_that_do_not_fit_are_refused(copied: Path, released: Path) -> None:
    source, other_release = released / "data.npz", next(released.glob("*/schema.json")).parent
    for words, match in (
        ((source,), "--operator FOLDER"),
        (("--operator", copied.parent / "x"), "or neither"),
        ((source, "--operator", copied / "mine"), "is inside the release"),
        ((source, "--operator", other_release), "folder of a release or a run"),
        ((source, "--operator", copied.parent / "x", "--shadows", "8"), "no model to compare with"),
    ):
        with pytest.raises(ConfigError, match=match):
            _run("audit", copied, *words, "--runs", "100")
    assert sorted(p.name for p in copied.parent.iterdir()) == ["copy"] and not (copied / "audit.json").exists()


def test_canaries_that_share_rows_are_sampled_independently(released: Path) -> None:
    """With noisy labels each has its own class: scores of one release are uncorrelated."""
    release = read_release(released / "neuromix-hs")
    runs = [
        release_canaries.score_canaries(release, canaries=20, rng=CanaryRandom(f"apart {i}")).without for i in range(60)
    ]
    correlations = np.corrcoef(np.stack(runs).T)
    assert abs(correlations[np.triu_indices(10, 1)].mean()) < 0.06
