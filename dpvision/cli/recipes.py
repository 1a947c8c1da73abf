"""recipes: list, show, copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.errors import ConfigError


@app.command
def recipes(
    action: Annotated[Literal["list", "show", "copy"], Parameter(help="what to do")] = "list",
    name: str | None = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="with copy: the TOML file to write")] = None,
) -> None:
    """List recipes, show one, or copy one to a TOML file to change.

    Example: `dpvision recipes show small-cnn`
    """
    import inspect

    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.settings.recipes import RECIPES, RELEASES
    from dpvision.settings.recipes import recipe as named
    from dpvision.settings.release import Release, useless
    from dpvision.settings.setting import write_toml

    if action == "list":
        for verb, known in (("train", RECIPES), ("release", RELEASES)):
            screen.grid(
                [f"recipe of {verb}", "what"], [[k, (f.__doc__ or "").split("\n")[0]] for k, f in known.items()]
            )
        return
    if name is None:
        raise ConfigError(f"recipes {action} needs the name of a recipe. `dpvision recipes` lists them.")
    verb = "release" if name in RELEASES else "train"
    settings = RELEASES[name]() if name in RELEASES else named(name)
    left_out = {"epsilon"} | (useless(settings) if isinstance(settings, Release) else set())
    lines = write_toml(settings).splitlines(keepends=True)
    # Epsilon is a decision, which no recipe makes.
    text = "".join(line for line in lines if line.split(" = ")[0] not in left_out)
    if action == "show":
        screen.say(inspect.getdoc({**RECIPES, **RELEASES}[name]) or "")
        screen.say()
        screen.say(text.rstrip())
    else:
        target = out or Path(f"{name}.toml")
        if target.exists():
            raise ConfigError(f"{target}: exists already. Fix: another --out.")
        files.write(target, text, mode=0o644)
        screen.say(f"wrote {target}; use it with `dpvision {verb} DATA --epsilon EPSILON --config {target}`")
