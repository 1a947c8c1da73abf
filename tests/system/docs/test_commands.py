"""Every command and option that the documentation names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cyclopts import App, CycloptsError, MissingArgumentError
from torch.distributed.run import get_args_parser

from dpvision.cli.app import app
from tests.system.docs import blocks
from tests.system.docs.blocks import PAGES, ROOT, commands

# Options of other programs that the text speaks of.
OF_OTHERS = {
    "--against",
    "--nproc-per-node",
    "--help",
    "--debug",
    "--version",
    "--upgrade",
    "--no-deps",
    "--quick",
    "--data",
}


@pytest.mark.parametrize("page", PAGES)
def test_every_command_can_be_given(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed, not run: verb, options, and the kinds of their values."""
    monkeypatch.setattr("os.path.lexists", lambda path: True)  # of the files that the pages name, few are here
    for place, words, whole in commands(page):
        words = [w for w in words if w not in ("...", "--help", "--debug")]
        if words[:1] == ["VERB"]:
            continue
        try:
            app.parse_args(words, exit_on_error=False, print_error=False)
        except MissingArgumentError as error:
            assert not whole, f"{place}: dpvision {' '.join(words)}: {error}"
        except CycloptsError as error:
            raise AssertionError(f"{place}: dpvision {' '.join(words)}: {error}") from error


def test_torchrun_understands_every_command_and_leaves_every_option_of_ours() -> None:
    """Without `--`, torchrun takes `--n` for one of its own options, and refuses it."""
    result = 0
    for page in PAGES:
        for line in (line for block in blocks.blocks(page) for line in block.lines if "torchrun " in line):
            launch, _, ours = line.partition(" -- ")
            parsed = get_args_parser().parse_args([*blocks.words(launch)[1:], "--", *blocks.words(ours), "--n", "60"])
            assert parsed.module and parsed.training_script == "dpvision", f"{page}: {line}"
            assert parsed.training_script_args == [*blocks.words(ours), "--n", "60"], f"{page}: {line}"
            result += 1
    assert result >= 2


def test_every_option_that_is_named_exists() -> None:
    known = set(_options(app)) | OF_OTHERS
    for page in PAGES:
        for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
            for code in re.findall(r"`([^`]+)`", line):
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code):
                    assert option in known, f"{page}:{number}: {option}"


def _options(verbs: App) -> Iterator[str]:
    if verbs.default_command is not None:
        for argument in verbs.assemble_argument_collection():
            yield from argument.names
    for name in verbs:
        if not name.startswith("-"):
            yield from _options(verbs[name])
