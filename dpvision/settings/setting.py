"""Settings are declared once, as fields of frozen dataclasses, for checks, files, command line, card and docs.

    epsilon: float = setting(3.0, group="Privacy", help="Privacy budget.", above=0)

`declared(kind)` returns the declarations of a settings class by name. Nothing here depends on a particular setting.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dpvision.core import files
from dpvision.errors import ConfigError, did_you_mean

Group = Literal["Privacy", "Data", "Model", "Optimisation", "Views", "Released rows", "Public data", "Output"]
GROUPS: tuple[Group, ...] = get_args(Group)
# Whether a setting is part of a run's name, which determines its noise: always; only if it differs from its default, as
# for every setting added after the first runs; or never, if it does not change the result.
Names = Literal["always", "changed", "never"]
REQUIRED = "required"
# What a classifier is for: its accuracy on images like the private ones, or the mean of its accuracies on each class.
OBJECTIVES = ("accuracy", "balanced")

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting; its name, default and type are those of the field.

    shown         the effective default in words, if it is computed
    path          whether it is a file or folder; in a settings file, a path is relative to that file
    from_text     a function that converts the text of a command-line option to a value
    option        whether verbs have an option for it; `aliases` are other names of that option
    resumable     whether a resumed run may change it, which starts a branch with fresh noise
    tunable       whether `dpvision tune` may choose it
    on_card       whether the card names it if it differs from the recipe: it may have been chosen by looking at data
    names_branch  whether another value is another branch; new settings use "changed", so that earlier runs keep names
    """

    group: Group
    help: str
    shown: str | None = None
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    choices: Collection[str] = ()
    path: bool = False
    from_text: Callable[[str], Any] | None = None
    option: bool = True
    aliases: tuple[str, ...] = ()
    resumable: bool = False
    tunable: bool = False
    on_card: bool = True
    names_branch: Names = "always"
    name: str = ""
    default: Any = None
    hint: Any = None

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have."""
        return get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)

    @property
    def pair(self) -> bool:
        """Whether a value is a pair of numbers, which may be given as a single number."""
        return any(get_origin(kind) is tuple and ... not in get_args(kind) for kind in self.kinds)

    @property
    def default_text(self) -> str:
        """The effective default in words."""
        if self.shown is not None:
            return self.shown
        if isinstance(self.default, float):
            return f"{self.default:g}".replace("e-0", "e-")
        return "off" if self.default is False else "none" if self.default in (None, ()) else str(self.default)

    @property
    def range_text(self) -> str:
        """The allowed range or choices in words."""
        if self.choices:
            return " or ".join(map(repr, self.choices))
        if self.at_least is not None and self.at_most is not None:
            return f"from {_number(self.at_least)} to {_number(self.at_most)}"
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        return " and ".join(f"{word} {_number(bound)}" for word, bound in bounds.items() if bound is not None)

    def check(self, value: Any) -> None:
        """Refuse a value outside of the declared range; None is always allowed."""
        if value is None:
            return
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name} is {value!r}: it must be {self.range_text}.")
        within = (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )
        if self.range_text and not self.choices and not (within and value < math.inf):
            finite = " and finite" if value == math.inf else ""
            raise ConfigError(f"{self.name} is {value}: it must be {self.range_text}{finite}.")


def setting(default: Any, **about: Any) -> Any:
    """Declare a field of a settings class; the keywords are those of `Setting`. A default of None is computed later."""
    about.setdefault("on_card", about.get("names_branch") != "never")
    return field(default=default, metadata={"setting": Setting(**about)})


def declared(kind: type) -> dict[str, Setting]:
    """Return the declarations of a settings class by name, in their order."""
    return _declarations(kind)


@cache
def _declarations(kind: type) -> dict[str, Setting]:
    hints = get_type_hints(kind)
    return {
        f.name: replace(f.metadata["setting"], name=f.name, default=f.default, hint=hints[f.name]) for f in fields(kind)
    }


def check(config: Any) -> None:
    """Refuse values outside of their declared ranges."""
    for name, of in declared(type(config)).items():
        of.check(getattr(config, name))


def check_values(kind: type, changes: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values, converted to the types of their settings; an unknown key is an error with a suggestion."""
    known = declared(kind)
    values = {}
    for raw, value in changes.items():
        key = raw.replace("-", "_")
        if key not in known:
            raise ConfigError(f"{source}: there is no setting {raw!r}. {did_you_mean(key, known, '')}".rstrip())
        values[key] = _convert(known[key], value, source)
    return values


def to_dict(config: Any) -> dict[str, Any]:
    """Return the settings as plain values, without those that are None."""
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items() if v is not None}


def without_folders(config: T) -> T:
    """Return the settings with paths reduced to file names: a release must not reveal the operator's folders."""
    paths = {name: getattr(config, name) for name, of in declared(type(config)).items() if of.path}
    return replace(config, **{name: value and PurePath(value).name for name, value in paths.items()})  # type: ignore[type-var]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a settings file, which is a flat TOML table."""
    try:
        return tomllib.loads(files.read(path, most=1 << 20).decode())
    except (OSError, ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: cannot be read as TOML: {exc}.") from exc


def write_toml(config: Any) -> str:
    """Return the settings as TOML text, from which `read_toml` restores exactly the same values."""
    lines = []
    for key, value in to_dict(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key} is {value}: it must be a finite number.")
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=True)}")
    return "\n".join(lines) + "\n"


def class_list(text: str | None) -> int | list[str] | None:
    """Parse a number of classes or a comma-separated list of their names."""
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() else word_list(text)


def word_list(text: str) -> list[str]:
    """Parse a comma-separated list of words."""
    return [word.strip() for word in text.split(",") if word.strip()]


def number_list(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError("it must be a comma-separated list of whole numbers") from None


def size_pair(text: str | None) -> tuple[int, int] | None:
    """Read a size: one number of pixels per side, or HEIGHTxWIDTH."""
    if text is None:
        return None
    sides = [side.strip() for side in text.lower().split("x")]
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and int(side[:9]) > 0 for side in sides):
        raise ValueError("it must be a number of pixels per side, such as 64, or HEIGHTxWIDTH, such as 96x128")
    return int(sides[0]), int(sides[-1])


def centre_and_width(text: str) -> str:
    """Read a window: its centre and width, with a comma between."""
    try:
        centre, width = (float(number) for number in text.split(","))
    except ValueError:
        centre, width = 0.0, 0.0
    if not (math.isfinite(centre) and 0 < width < math.inf):
        raise ValueError("it must be the centre and the width of a window, such as 40,400")
    return text


# The settings that decide how a data set is read, with the names of their arguments in `dpvision.data.load`.
OF_READING = ("classes", "size", "channels", "skip_broken", "test_share", "window", "columns", "task", "group")


def reading_options(config: Any) -> dict[str, Any]:
    """The settings that decide how a data set is read, as arguments of `dpvision.data.load`."""
    return {name: getattr(config, name) for name in OF_READING if hasattr(config, name)}


def with_share(config: T, share: float | None, *, source: str) -> T:
    """The settings with the share that was set aside, so that later verbs set aside the same records.

    `share` is None if the data names its splits; then settings that set a share aside are refused.
    """
    if getattr(config, "test_share", None) and share is None:
        raise ConfigError(
            f"{source}: names its splits itself, so no other test split can be set aside. Fix: leave --test-share out."
        )
    return replace(config, test_share=share) if share else config  # type: ignore[type-var]


def _convert(of: Setting, value: Any, source: str) -> Any:
    """Return the value converted to the type of its field, or raise an error that names the right type."""
    kinds = of.kinds
    bad = ConfigError(f"{source}: {of.name} = {_short(value)} has the wrong type: it must be {_words(kinds)}.")
    if value is None:
        if NoneType in kinds:
            return None
        raise bad
    if isinstance(value, list | tuple):
        if any(_is_list_of(get_args(kind), value) for kind in kinds if get_origin(kind) is tuple):
            return tuple(value)
        raise bad
    if of.pair and isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return (value, value)
    if isinstance(value, bool):
        if bool in kinds:
            return value
        raise bad
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise bad
    if isinstance(value, int) and float in kinds:
        return float(value)
    if type(value) in kinds and not (isinstance(value, float) and not math.isfinite(value)):
        return value
    raise bad


def _is_list_of(kinds: tuple[Any, ...], values: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether the values fit tuple[kind, ...], or are a pair of numbers above 0."""
    if not all(isinstance(v, kinds[0]) and not isinstance(v, bool) for v in values):
        return False
    return ... in kinds or (len(values) == len(kinds) and all(v > 0 for v in values))


def _short(value: Any) -> str:
    """Return the given value as text, shortened for a message."""
    if isinstance(value, int) and value.bit_length() > 100:
        return f"a number with {value.bit_length():,} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _words(kinds: tuple[Any, ...]) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return " or ".join(names.get(k, "a list") for k in kinds if k is not NoneType)


def _number(bound: float) -> str:
    return "2^63" if bound == 1 << 63 else f"{bound:,g}" if isinstance(bound, float) else f"{bound:,}"
