"""Ranges of a method's public settings, declared with its fields and refused by name before anything is charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from dpvision.errors import ConfigError


def whole(default: int, *, least: int = 1) -> Any:
    """A field for whole numbers of at least `least`."""
    words = f"a whole number of at least {least}"
    return _field(default, lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least, words)


def positive(default: float | None, *, most: float = math.inf) -> Any:
    """A field for finite numbers above 0, and at most `most`; None if that is the default."""
    words = "a finite number above 0" + ("" if most == math.inf else f", at most {most:g}")
    return _field(default, lambda v: (_is_number(v) and 0 < v < math.inf and v <= most) or v is default is None, words)


def fraction(default: float) -> Any:
    """A field for numbers between 0 and 1."""
    return _field(default, lambda v: _is_number(v) and 0 < v < 1, "between 0 and 1")


def below_1(default: float) -> Any:
    """A field for numbers from 0 to below 1."""
    return _field(default, lambda v: _is_number(v) and 0 <= v < 1, "from 0 to below 1")


def one_of(*words: str) -> Any:
    """A field for one of these words, the first by default."""
    return _field(words[0], lambda v: v in words, f"one of {', '.join(words)}")


def check_ranges(method: Any) -> None:
    """Refuse a method with a setting outside of its declared range."""
    for of in fields(method):
        fits, words = of.metadata.get("range", (lambda _: True, ""))
        if not fits(value := getattr(method, of.name)):
            raise ConfigError(f"{of.name} is {value!r}: it must be {words}.")


def _field(default: Any, fits: Callable[[Any], bool], words: str) -> Any:
    return field(default=default, metadata={"range": (fits, words)})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
