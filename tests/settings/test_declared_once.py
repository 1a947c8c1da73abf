"""A setting is declared in one place: everything else follows from the declaration."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from cyclopts import App

from dpvision.cli.app import PANELS, app, read, takes
from dpvision.errors import ConfigError, did_you_mean
from dpvision.settings.recipes import RECIPES
from dpvision.settings.release import Release
from dpvision.settings.setting import check_values, declared, setting, to_dict, without_folders
from dpvision.settings.training import Config, merge
from tests.settings.table import PAGE, page


@dataclass(frozen=True)
class More(Config):
    """A training with two settings more, which nothing else knows of."""

    sparkle: float = setting(
        0.5, group="Optimisation", help="How much it sparkles.", above=0, below=2, resumable=True, tunable=True,
        names_branch="changed",
    )  # fmt: skip
    glitter: str | None = setting(None, group="Public data", help="A file of glitter.", path=True, names_branch="never")


def test_a_new_setting_touches_one_place() -> None:
    of = declared(More)["sparkle"]
    assert (of.name, of.hint, of.default, of.default_text, of.group) == ("sparkle", float, 0.5, "0.5", "Optimisation")
    # Checked, by range, type and name.
    with pytest.raises(ConfigError, match=r"sparkle is 2\.0: it must be above 0 and below 2"):
        More(sparkle=2.0)
    with pytest.raises(ConfigError, match=r"mine\.toml: sparkle = 'x' has the wrong type"):
        merge(More(), {"sparkle": "x"}, source="mine.toml")
    with pytest.raises(ConfigError, match="Did you mean 'sparkle'"):
        merge(More(), {"sparkel": 1}, source="mine.toml")
    assert merge(More(), {"sparkle": 1}, source="mine.toml").sparkle == 1.0  # type: ignore[attr-defined]
    # Runs that do not use it keep their names; those that do have others.
    assert More().hash() == Config().hash() == More(glitter="x").hash() != More(sparkle=1.0).hash()
    assert without_folders(More(glitter="a/b/c")).glitter == "c"


def test_a_new_setting_is_an_option_with_help() -> None:
    given: dict[str, Any] = {}
    trial = App(name="trial", result_action="return_value")

    @trial.command
    @takes(More)
    def train(source: str, /, *, out: str = "", **flags: Any) -> None:
        given.update(flags, out=out)

    @trial.command
    @takes(More, lambda of: of.resumable)
    def resume(**flags: Any) -> None:
        given.update(flags)

    trial(["train", "digits", "--sparkle", "1.5", "--lr", "2", "--glitter", "x"])
    assert given == {"sparkle": 1.5, "lr": 2.0, "glitter": given["glitter"], "out": ""}
    values = read(More, {k: v for k, v in given.items() if k != "out"})
    assert values["glitter"].endswith("/x") and values["glitter"].startswith("/")
    trial(["resume", "--sparkle", "1.25"])
    assert given["sparkle"] == 1.25
    arguments = {a.name: a for a in trial["train"].assemble_argument_collection()}
    option = arguments["--sparkle"].parameter
    assert option.help == "How much it sparkles." and option.show_default == "0.5"
    assert option.group == (PANELS["Optimisation"],)


def _options(verb: str) -> dict[str, Any]:
    return {a.field_info.name: a for a in app[verb].assemble_argument_collection()}


@pytest.mark.parametrize(
    ("verb", "kind", "which"),
    [
        ("train", Config, lambda of: True),
        ("resume", Config, lambda of: of.resumable),
        ("tune", Config, lambda of: of.tunable),
        ("release", Release, lambda of: True),
    ],
)
def test_verbs_take_what_is_declared(verb: str, kind: type, which: Any) -> None:
    options = _options(verb)
    for name, of in declared(kind).items():
        if of.option and which(of):
            argument = options[name]
            assert argument.parameter.help.startswith(of.help) and not argument.required
            assert of.choices == () or set(of.choices) == set(argument.get_choices())


def test_every_option_of_these_verbs_is_in_a_panel_and_has_a_help() -> None:
    for verb in ("train", "resume", "tune", "release"):
        for name, argument in _options(verb).items():
            assert argument.parameter.help, (verb, name)
            if argument.names[0].startswith("--"):
                assert set(argument.parameter.group) <= set(PANELS.values()), (verb, name)
                assert argument.parameter.help[0].isupper() or name == "accounting", (verb, name)


@pytest.mark.parametrize("kind", [Config, Release])
def test_declarations_are_whole(kind: type) -> None:
    for name, of in declared(kind).items():
        assert of.help.endswith((".", "...")) and "can not" not in of.help, name
        assert of.default is None or of.default == check_values(kind, {name: of.default}, source="x")[name]
        of.check(of.default)
        assert not (of.resumable and of.name in ("epsilon", "delta", "unit", "n", "classes")), name
    assert list(declared(kind)) == [f.name for f in fields(kind)]


def test_names_of_runs_stay() -> None:
    """Another name is other noise and another charge at a resume: a new setting must be "changed" or "never"."""
    assert Config().hash() == "73689d343c510f8be771d795539cf4d7"
    assert RECIPES["dp-mix-self"]().hash() == "b014f11b9c5f86543d0e2ef7a15bff28"
    assert (
        replace(Config(), canaries=1000, assist="dope", synthetic="a/b.npz").hash()
        == "9274c9dbda45329d63b73dfae4e97a44"
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("momentum", 1.0, "at least 0 and below 1"),
        ("probe_share", 1.5, "from 0 to 1"),
        ("lr", float("nan"), "above 0"),
        ("lr", float("inf"), "above 0 and finite"),
        ("seed", 1 << 63, r"at least 0 and below 2\^63"),
        ("examples", 25, "from 0 to 24"),
        ("k_self", -1, "at least 0"),
        ("mix", "cutmx", "'mixup' or 'cutmix'"),
    ],
)
def test_ranges(name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*: it must be {says}"):
        Config(**{name: value})


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ({"size": 28}, (28, 28)),
        ({"size": [28, 14]}, (28, 14)),
        ({"classes": ["a", "b"]}, ("a", "b")),
        ({"classes": 3}, 3),
        ({"augment": []}, ()),
        ({"lr": 1}, 1.0),
    ],
)
def test_values_of_a_file_become_those_of_the_field(values: dict[str, Any], right: Any) -> None:
    (name,) = values
    result = check_values(Config, values, source="mine.toml")[name]
    assert result == right and type(result) is type(right)


@pytest.mark.parametrize(
    "values", [{"size": [28]}, {"size": [0, 1]}, {"size": True}, {"augment": "crop"}, {"classes": [1]}, {"lr": None}]
)
def test_values_of_the_wrong_type_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has the wrong type"):
        check_values(Config, values, source="mine.toml")


def test_values_of_a_grid_are_read_as_the_setting_is() -> None:
    from dpvision.cli.tune import _values

    assert _values("augment=crop,flip") == ("augment", [["crop"], ["flip"]])
    assert _values("clip-style=flat,automatic") == ("clip_style", ["flat", "automatic"])
    assert _values("lr=1,0.5") == ("lr", [1, 0.5])


def test_did_you_mean() -> None:
    assert did_you_mean("lineer", ["linear", "cnn"]) == "Did you mean 'linear'?"
    assert did_you_mean("zzz", ["linear", "cnn"]) == "Available: linear, cnn."
    assert did_you_mean("zzz", ["linear"], "Look it up.") == "Look it up."


def test_what_is_none_is_left_out_of_files() -> None:
    assert "model" not in to_dict(Config()) and to_dict(Config())["augment"] == []


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "Fix: python -m tests.settings.table"
