"""What a newcomer sees: the first words, the verbs in groups, options in panels, and completion."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dpvision.cli.app import COMMON, PANELS, VERBS, WELCOME, app
from dpvision.cli.data import _sizes
from tests.system.docs.examples import call
from tests.system.surface import verbs

ALL = sorted(verbs(app))


def _help(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert call([*words, "--help"], monkeypatch) == 0
    return capsys.readouterr().out


def _options(verb: str) -> list[Any]:
    below = app
    for word in verb.split():
        below = below[word]
    return list(below.assemble_argument_collection())


def test_the_first_words_are_three_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([], monkeypatch) == 0
    assert capsys.readouterr().out == WELCOME and max(map(len, WELCOME.splitlines())) <= 81
    commands = [re.split(r" {3,}", line.strip())[0] for line in WELCOME.splitlines() if line.startswith("  dpvision")]
    assert [shlex.split(line)[1] for line in commands] == ["check", "train", "report"]
    monkeypatch.setattr("os.path.lexists", lambda path: True)  # runs/first is not here
    for line in commands:
        app.parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)


def test_verbs_are_in_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = _help([], monkeypatch, capsys)
    assert re.findall(r"^╭─ ([\w ]+) ─", text, re.M) == list(VERBS)
    shown = re.findall(r"^│ ([a-z]+) ", text, re.M)
    assert shown == [name for names in VERBS.values() for name in names] and "Exit codes" in text
    assert {verb.split()[0] for verb in ALL} == set(shown)


@pytest.mark.parametrize("verb", ["train", "data pack", "synth fit", "plan", "audit"])
def test_verbs_do_not_repeat_the_root(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _help(verb.split(), monkeypatch, capsys)
    assert "Exit codes" not in text and text.count("Example:") == 1 and f"Example: dpvision {verb}" in text


@pytest.mark.parametrize("verb", ALL)
def test_every_option_has_a_panel_a_help_and_a_default(verb: str) -> None:
    for argument in _options(verb):
        text, name = argument.parameter.help, argument.names[0]
        assert (text and text[0].isupper()) or text.startswith("`digits`"), (verb, name, text)
        assert text.endswith((".", "...")), (verb, name, text)
        if name.startswith("--"):
            assert set(argument.parameter.group) <= set(PANELS.values()), (verb, name)
            default, shown = argument.field_info.default, argument.parameter.show_default
            assert argument.required or default is not None or shown is not None, (verb, name)


def test_common_options_come_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(["train"], monkeypatch, capsys)
    panels = re.findall(r"^╭─ ([\w ]+) ─", text, re.M)
    assert panels == ["Arguments", *(name for name in PANELS if name != "Released rows")]
    common = re.findall(r"^│ --([\w-]+)", text.split("╭─ Common")[1].split("╰")[0], re.M)
    assert len(common) == 12 and common[0] == "epsilon"
    assert [name.replace("-", "_") for name in common] == [n for n in COMMON if n.replace("_", "-") in common]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["completion", shell], monkeypatch) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("dpvision", "train", "epsilon", "synth", "guide"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_many_sizes_are_summarised() -> None:
    assert _sizes({"8x8": 1437}) == "8x8 (1,437)"
    sizes = {f"{side}x{side + 1}": 1 for side in range(100, 2355)}
    sizes["300x400"] = 9000
    text = _sizes(sizes)
    assert text.startswith(
        "2,256 different; smallest 100x101, largest 2354x2355 (height x width); most frequent: 300x400 "
    )
    assert len(text) < 200


def test_a_refusal_proposes_the_command_with_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPVISION_HOME", str(tmp_path))
    assert call(["ledger", "digits", "--set-budget", "1"], monkeypatch) == 0
    assert call(["train", "digits", "--epsilon", "3", "--dry-run"], monkeypatch) == 4
    assert "`dpvision ledger digits --set-budget 3`" in capsys.readouterr().err
