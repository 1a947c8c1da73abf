"""docs/settings.md, made from the declarations: `python -m tests.settings.table` writes it."""

from __future__ import annotations

from pathlib import Path

from dpvision.settings.release import Release
from dpvision.settings.setting import GROUPS, Setting, declared
from dpvision.settings.training import Config

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
OPENING = """# Settings

Every setting of a training run and of a release, as the command line, a `--config` file and the estimators take it. A later
source wins: recipe, then file, then option. In a file, names have underscores: `clip_style = "flat"`. Defaults are those of
the recipes `default` and `moments`; `dpvision recipes show NAME` shows those of another. What is computed is computed from
public numbers only, and printed before a run starts.

A resumed run may change what is marked so: the change starts a branch, with fresh noise and its own charge. `dpvision tune`
may choose what is marked so.

This page is made from the declarations in `dpvision/settings/`; `python -m tests.settings.table` writes it again.
"""


def page() -> str:
    return OPENING + _of("train", Config) + _of("release", Release)


def _of(verb: str, kind: type) -> str:
    text = f"\n## `dpvision {verb}`\n"
    for group in GROUPS:
        rows = [_row(of) for of in declared(kind).values() if of.group == group]
        if rows:
            header = "| setting | meaning | values | default | resume | tune |\n|---|---|---|---|---|---|\n"
            text += f"\n### {group}, {verb}\n\n{header}{''.join(rows)}"
    return text


def _row(of: Setting) -> str:
    names = " or ".join(f"`{name}`" for name in (f"--{of.name.replace('_', '-')}", *of.aliases))
    if not of.option and of.name != "recipe":
        names = f"`{of.name}`, in a file only"
    values = ", ".join(f"`{choice}`" for choice in of.choices) or of.range_text
    marks = ["yes" if mark else "" for mark in (of.resumable, of.tunable)]
    return f"| {' | '.join([names, of.help, values, of.default_text, *marks])} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
