"""Ranges of a method's public settings, declared with its fields and checked before anything is charged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from dpvision.errors import ConfigError


def whole(default: int, *, minimum: int = 1) -> Any:
    """Declare a field for whole numbers of at least `minimum`."""
    words = f"a whole number of at least {minimum}"
    return _field(default, lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= minimum, words)


def positive(default: float | None, *, maximum: float = math.inf) -> Any:
    """Declare a field for finite numbers above 0, up to `maximum`, or None if that is the default."""
    words = "a finite number above 0" + ("" if maximum == math.inf else f", at most {maximum:g}")

    def fits(value: Any) -> bool:
        return (_is_number(value) and 0 < value < math.inf and value <= maximum) or value is default is None

    return _field(default, fits, words)


def fraction(default: float) -> Any:
    """Declare a field for numbers between 0 and 1, exclusive."""
    return _field(default, lambda v: _is_number(v) and 0 < v < 1, "between 0 and 1")


def below_1(default: float) -> Any:
    """Declare a field for numbers from 0 to below 1."""
    return _field(default, lambda v: _is_number(v) and 0 <= v < 1, "from 0 to below 1")


def one_of(*words: str) -> Any:
    """Declare a field for one of these words; the first is the default."""
    return _field(words[0], lambda v: v in words, f"one of {', '.join(words)}")


def check_ranges(method: Any) -> None:
    """Raise an error if a setting of the method is outside its declared range."""
    for setting in fields(method):
        fits, words = setting.metadata.get("range", (lambda _: True, ""))
        if not fits(value := getattr(method, setting.name)):
            raise ConfigError(f"{setting.name} is {value!r}: it must be {words}.")


def _field(default: Any, fits: Callable[[Any], bool], words: str) -> Any:
    return field(default=default, metadata={"range": (fits, words)})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
