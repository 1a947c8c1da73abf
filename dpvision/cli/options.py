"""The options of a verb, made from declared settings, and read back as values of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter

from dpvision.errors import ConfigError
from dpvision.settings.setting import GROUPS, REQUIRED, Setting, declared, read_toml
from dpvision.settings.training import Config, merged

PANELS = {name: Group(name, sort_key=place) for place, name in enumerate(GROUPS)}

Verb = TypeVar("Verb", bound=Callable[..., None])


def takes(
    kind: type, which: Callable[[Setting], bool] = lambda _: True, *, default: str | None = None
) -> Callable[[Verb], Verb]:
    """Give a verb an option for each setting of `kind` that is `which`, in place of its `**flags`.

    Help shows `default` for all of them, or of each the effective default that is declared.
    """
    settings = [of for of in declared(kind).values() if of.option and which(of)]

    def with_options(verb: Verb) -> Verb:
        own = [p for p in inspect.signature(verb).parameters.values() if p.kind is not p.VAR_KEYWORD]
        hints = {of.name: _option(of, default or of.default_text) for of in settings}
        made = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in hints]
        named = [p for p in own if p.kind is p.KEYWORD_ONLY]
        rest = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        verb.__signature__ = inspect.Signature([*rest, *made, *named])  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: p.annotation for p in own} | hints
        return verb

    return with_options


def _option(of: Setting, default: str) -> Any:
    """The type of an option with its help, default and panel."""
    plain = [kind for kind in of.kinds if kind in (int, float, bool, str)]
    if of.choices:
        hint: Any = Literal.__getitem__(tuple(of.choices))
    elif of.path:
        hint = Path
    elif of.from_text is not None:
        hint = str
    else:
        hint = int if of.pair else plain[0]
    if default == REQUIRED:
        return Annotated[hint | None, like(of, help=f"{of.help} Required, here or in --config.", show_default=False)]
    return Annotated[hint | None, like(of, show_default=default)]


def like(of: Setting, **changes: Any) -> Parameter:
    """The parameter of an option that means what a setting means."""
    names = [f"--{of.name.replace('_', '-')}", *of.aliases]
    usual: dict[str, Any] = {"name": names, "negative": "", "group": PANELS[of.group], "help": of.help}
    return Parameter(**{**usual, **changes})


def read(kind: type, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, as values of settings; paths are absolute, so that they are found from anywhere."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        of = declared(kind)[name]
        if value is None:
            continue
        if of.path:
            value = _absolute(str(value))
        elif of.from_text is not None:
            try:
                value = of.from_text(value)
            except ValueError as exc:
                raise ConfigError(f"--{name.replace('_', '-')} is {value[:100]!r}: {exc}.") from None
        values[name] = value
    return values


def from_file(kind: type, path: Path | None) -> dict[str, Any]:
    """The settings of a TOML file; its paths are meant relative to its folder."""
    if path is None:
        return {}
    values = read_toml(path)
    for name in (name for name, of in declared(kind).items() if of.path and name in values):
        values[name] = _absolute(str(values[name]), folder=path.parent)
    return values


def training_settings(recipe: str, file: Path | None, flags: Mapping[str, Any]) -> Config:
    """The settings of a training: those of the recipe, then those of the file, then the options that were given."""
    from dpvision.settings.recipes import recipe as named

    given, stated = read(Config, flags), from_file(Config, file)
    asked = {k: v for k, v in {**stated, **given}.items() if k == "epsilon"}  # recipes of some papers depend on it
    epsilon = merged(Config(), asked, source="epsilon").epsilon if asked else None
    settings = merged(named(recipe, epsilon=epsilon), stated, source=str(file))
    require_epsilon(asked, whom="any one image or person")
    return merged(settings, given, source="command line")


def require_epsilon(*places: Iterable[str], whom: str) -> None:
    """Epsilon has no default."""
    if not any("epsilon" in place for place in places):
        raise ConfigError(
            f"--epsilon is missing: how much may be revealed about {whom} is a decision, so it has no default. "
            "Usual: 1 for a strong guarantee, 3 for a moderate one, 8 for a weak one."
        )


def _absolute(source: str, *, folder: Path | None = None) -> str:
    return source if source == "digits" else os.path.abspath(os.path.join(folder or "", source))
