"""recipes: list them, show one, copy one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import out_option
from dpvision.errors import ConfigError


@verb
def recipes(
    action: Annotated[Literal["list", "show", "copy"], Parameter(help="What to do.")] = "list",
    name: Annotated[str | None, Parameter(help="The recipe to show or copy.")] = None,
    /,
    *,
    out: Annotated[Path | None, out_option("With copy: TOML file to write.", default="NAME.toml")] = None,
) -> None:
    """List recipes, show one, or copy one to a TOML file for `--config`.

    Example: `dpvision recipes show small-cnn`
    """
    import inspect

    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.settings.recipes import RECIPES, RELEASES
    from dpvision.settings.recipes import recipe as named
    from dpvision.settings.release import Release, unused_settings
    from dpvision.settings.setting import write_toml

    if action == "list":
        for verb_name, known in (("train", RECIPES), ("release", RELEASES)):
            rows = [[k, (f.__doc__ or "").split("\n")[0]] for k, f in known.items()]
            screen.grid([f"recipe of {verb_name}", "what"], rows)
        return
    if name is None:
        raise ConfigError(f"recipes {action} needs the name of a recipe. `dpvision recipes` lists them.")
    verb_name = "release" if name in RELEASES else "train"
    settings = RELEASES[name]() if name in RELEASES else named(name)
    # Epsilon is a decision, which no recipe makes.
    left_out = {"epsilon"} | (unused_settings(settings) if isinstance(settings, Release) else set())
    lines = write_toml(settings).splitlines(keepends=True)
    text = "".join(line for line in lines if line.split(" = ")[0] not in left_out)
    if action == "show":
        screen.say(inspect.getdoc({**RECIPES, **RELEASES}[name]) or "")
        screen.say()
        screen.say(text.rstrip())
        return
    target = out or Path(f"{name}.toml")
    if target.exists():
        raise ConfigError(f"{target}: exists already. Fix: another --out.")
    files.write(target, text, mode=0o644)
    screen.say(f"wrote {target}; use it with `dpvision {verb_name} DATA --epsilon EPSILON --config {target}`")
