"""Numbers and names as people read them: a bound is rounded up, never down, and a name cannot break the page."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from dpvision.settings.figures import ARITHMETIC

# A page shows this much of a list or a name; card.json has all of it.
MOST_NAMES = 40
MOST_LETTERS = 60


def upper_percent(share: float) -> str:
    """A share as a percentage of three digits, rounded up: 0.14251 is 14.3%."""
    percent = 100 * share
    if percent <= 0 or percent >= 100:
        return "0%" if percent <= 0 else "100%"
    digits = 2 - math.floor(math.log10(percent))
    return f"{min(math.ceil(percent * 10.0**digits - ARITHMETIC) / 10.0**digits, 100.0):.6g}%"


def percent(share: float) -> str:
    """A share as a percentage with one digit, rounded to the nearest."""
    return f"{100 * share:.1f}%"


def plain(text: object) -> str:
    """A name that others chose, on one line: what steers a terminal, a page or the writing direction is taken out."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in str(text))
    shown = " ".join(shown.split())
    return shown if len(shown) <= MOST_LETTERS else shown[: MOST_LETTERS - 1] + "…"


def names(values: Sequence[object]) -> tuple[list[str], int]:
    """The first names of a list, and how many more there are."""
    return [plain(v) for v in values[:MOST_NAMES]], max(0, len(values) - MOST_NAMES)


def setting(value: Any) -> str:
    """One value of the settings."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        shown, more = names(value)
        return ", ".join(shown) + (f" and {more:,} more" if more else "")
    return plain(value)
