"""The recipe auto: a rule of public numbers, its table, and recipes that fit themselves to n."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpvision.data import Dataset, Split
from dpvision.errors import ConfigError
from dpvision.private.training.choice import choose_encoder, choose_recipe, width_of
from dpvision.private.training.prepare import prepare_read
from dpvision.settings import auto
from dpvision.settings.auto import Numbers, choose
from dpvision.settings.plan import complete, plan_training
from dpvision.settings.recipes import RECIPES, recipe
from dpvision.settings.setting import to_dict
from dpvision.settings.training import FROM_WEIGHTS, Config, merge
from dpvision.storage.run_folder import read_json

PAGE = Path(__file__).parents[2] / "docs" / "which-recipe.md"
GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def of(n: int, shape: tuple[int, int, int], epsilon: float = 3.0, **more: object) -> auto.Choice:
    numbers = Numbers(n=n, shape=shape, epsilon=epsilon, **more)  # type: ignore[arg-type]
    return choose(numbers, width=lambda model: width_of(model, shape))


def images(n: int, shape: tuple[int, int, int], *, seed: int = 0, classes: int = 2) -> Dataset:
    channels, height, width = shape
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    return Dataset("arrays", tuple("ab"[:classes]), Split(pixels, np.arange(n) % classes, None), None, None, ())


@pytest.mark.parametrize(
    ("n", "shape", "epsilon", "more", "chosen"),
    [
        (1_437, (1, 8, 8), 3.0, {}, ("linear-centred", {})),
        (3_882, GREY, 3.0, {}, ("scatter-centred", {})),
        (2_000, GREY, 0.1, {}, ("scatter-centred", {"part": "head"})),
        (60_000, GREY, 1.0, {}, ("scatter-linear", {})),
        (50_000, COLOUR, 0.1, {}, ("patches", {})),
        (7_007, (3, 28, 28), 1.0, {}, ("patches", {})),
        (2_000, COLOUR, 1.0, {}, ("patches", {"model": "patches-256", "part": "head"})),
        (3_000, COLOUR, 3.0, {}, ("patches", {})),
        (27_000, (3, 224, 224), 1.0, {}, ("patches", {"model": "patches-1024@64"})),
        (5_000, (1, 300, 400), 8.0, {}, ("scatter-centred", {"model": "scatter-linear-centred@64"})),
        (9_144, COLOUR, 3.0, {"encoder": "dinov2-vits14"}, ("finetune-centred", {"model": "dinov2-vits14-centred"})),
    ],
)
def test_the_rule(
    n: int, shape: tuple[int, int, int], epsilon: float, more: dict[str, object], chosen: tuple[str, dict[str, object]]
) -> None:
    choice = of(n, shape, epsilon, **more)
    assert (choice.recipe, choice.changes) == chosen
    assert f"{n:,} units" in choice.reason and choice.recipe in choice.reason


def test_the_table_of_the_page_is_the_rule() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## What `auto` chooses")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \|", text, re.MULTILINE)
    assert rows == [(rule.when, rule.recipe) for rule in auto.RULES]
    for number in (auto.MANY_UNITS, auto.FEATURE_SIDE, auto.MOST_NOISE_OF_MEAN, auto.ONE_SUM):
        assert f"{number:,}" in text


def test_minutes_take_the_first_model_that_is_fast_enough() -> None:
    numbers = Numbers(n=20_000, shape=(3, 96, 96), epsilon=3.0, minutes=10)
    seconds = {"patches-1024@64": 4000.0, "patches-256@64": 900.0, "patches-256@32": 200.0}
    chosen = choose(numbers, width=lambda _: 1, seconds=seconds.__getitem__)
    assert chosen.changes["model"] == "patches-256@32" and "about 10 minutes" in chosen.reason
    chosen = choose(replace(numbers, minutes=1), width=lambda _: 1, seconds=seconds.__getitem__)
    assert chosen.changes["model"] == "patches-256@32", "the fastest, if none is fast enough"
    chosen = choose(replace(numbers, minutes=100), width=lambda _: 1, seconds=seconds.__getitem__)
    assert chosen.changes["model"] == "patches-1024@64"


def test_a_setting_of_the_method_by_hand_makes_it_the_default() -> None:
    changed = merge(recipe("auto"), {"lr": 2.0, "epsilon": 1.0}, source="test")
    assert changed.recipe == "default" and changed.lr == 2.0 and "by hand (lr)" in str(changed.chosen_by)
    data_only = merge(recipe("auto"), {"epsilon": 1.0, "n": 500, "unit": "person", "device": "cpu"}, source="test")
    assert data_only.recipe == "auto"
    assert merge(recipe("patches"), {"lr": 2.0}, source="test").recipe == "patches"


def test_every_recipe_fits_itself_to_small_n() -> None:
    for name in RECIPES:
        if name.startswith(tuple(FROM_WEIGHTS)) or "diff" in name:
            continue
        for n in (60, 500, 3_882):
            whole = complete(recipe(name, epsilon=3.0), n)
            assert whole.batch is not None and whole.batch <= n, (name, n)


def test_large_data_sets_keep_the_settings_of_the_recipe() -> None:
    large, small = recipe("scatter-linear").complete(60_000), recipe("scatter-linear").complete(3_882)
    assert (large.batch, large.lr, large.steps) == (8192, 5.0, 300)
    assert (small.batch, small.lr, small.steps) == (3_882, pytest.approx(5.0 * 3_882 / 8192), 300)
    by_hand = replace(recipe("scatter-linear"), batch=5_000)
    with pytest.raises(ConfigError, match="batch is 5000 and n is 3882"):
        by_hand.complete(3_882)
    assert replace(recipe("scatter-linear"), lr=3.0).complete(3_882).lr == 3.0


def test_the_choice_sees_no_image_and_no_label(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    one, other = images(300, GREY, seed=1), images(300, GREY, seed=2)
    other = replace(other, train=replace(other.train, labels=(np.asarray(other.train.labels) + 1) % 2))
    chosen = [choose_recipe(recipe("auto"), data, 300, torch.device("cpu")) for data in (one, other)]
    assert chosen[0] == chosen[1]
    assert choose_encoder(one, n=300, epsilon=1.0) == choose_encoder(other, n=300, epsilon=1.0)


def test_a_prepared_run_names_the_resolved_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    settings = merge(recipe("auto"), {"epsilon": 3.0, "n": 400}, source="test")
    prepared = prepare_read(images(300, (1, 12, 12)), settings, source="arrays")
    assert prepared.config.recipe == "linear-centred" and "400 units" in str(prepared.config.chosen_by)
    assert "auto" not in to_dict(prepared.config)["recipe"]
    by_name = replace(recipe("linear-centred"), epsilon=3.0, n=400)
    assert prepare_read(images(300, (1, 12, 12)), by_name, source="arrays").config.hash() == prepared.config.hash()


def test_widths_are_those_of_the_models() -> None:
    for shape in ((1, 8, 8), GREY, COLOUR, (1, 90, 70)):
        small = ["linear", "linear-centred"] if min(shape[1:]) >= auto.SMALL_SIDE else ["linear-centred"]
        larger = ["scatter-linear", "scatter-linear-centred", "patches-256", "patches-1024"]
        names = [*small, *(larger if min(shape[1:]) >= auto.SMALL_SIDE else ())]
        names += ["patches-256@64", "scatter-linear-centred@32"] if min(shape[1:]) > auto.FEATURE_SIDE else []
        assert {name: auto.width_of(name, shape) for name in names} == {name: width_of(name, shape) for name in names}
    assert auto.width_of("dinov2-vits14", COLOUR) is None


@pytest.mark.parametrize(("n", "shape"), [(60, (1, 8, 8)), (70, GREY)])
def test_a_plan_without_data_is_that_of_the_run(
    n: int, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    run = prepare_read(images(n, shape), Config(epsilon=3.0, recipe="auto"), source="arrays").config
    planned = plan_training(Numbers(n=n, shape=shape, epsilon=3.0), width=lambda m: auto.width_of(m, shape) or 0)
    same = ("recipe", "model", "chosen_by", "n", "batch", "steps")
    assert {name: planned[name] for name in same} == {name: getattr(run, name) for name in same}
    assert run.sigma == pytest.approx(planned["sigma"], rel=1e-3)


def test_minutes_are_refused_where_they_would_do_nothing() -> None:
    for base in (recipe("patches"), merge(recipe("auto"), {"lr": 1.0}, source="test")):
        with pytest.raises(ConfigError, match="minutes is 5"):
            prepare_read(images(300, GREY), replace(base, minutes=5.0, epsilon=3.0), source="arrays")


def test_release_encoders() -> None:
    assert auto.choose_encoder(Numbers(n=1437, shape=(1, 8, 8), epsilon=1))[0] == "scatter-linear"
    assert auto.choose_encoder(Numbers(n=1437, shape=(3, 32, 32), epsilon=1))[0] == "patches-256"
    assert auto.choose_encoder(Numbers(n=1437, shape=(3, 300, 224), epsilon=1))[0] == "patches-256@64"
    assert auto.choose_encoder(Numbers(n=1437, shape=(3, 8, 8), epsilon=1))[0] == "pixels"
    assert auto.choose_encoder(Numbers(n=9, shape=COLOUR, epsilon=1, encoder="clip-vit-b32"))[0] == "clip-vit-b32"


def test_heads() -> None:
    assert auto.choose_head(n=50_000, epsilon=1.0, public=False)[0] == "descent"
    assert auto.choose_head(n=1_437, epsilon=0.1, public=False)[0] == "lda"
    assert auto.choose_head(n=100, epsilon=0.1, public=True)[0] == "newton"
    assert Config(head="auto", epsilon=3.0).complete(50_000).head == "descent"


def test_a_run_from_the_command_line_states_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpvision.cli import main  # noqa: F401 - registers the verbs
    from dpvision.cli.app import app

    monkeypatch.setenv("DPVISION_HOME", str(tmp_path / "home"))
    app(["train", "digits", "--epsilon", "3", "--out", str(tmp_path / "run")], result_action="return_value")
    card = read_json(tmp_path / "run" / "card.json")
    assert card["config"]["recipe"] == "linear-centred"
    assert card["config"]["chosen_by"].startswith("auto: grey images of 8x8, 1,437 units, no public network at hand")
    assert card["chosen_by_hand"] == [] and card["accuracy"]["released_test_accuracy"] > 0.9
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What would help next" in page
