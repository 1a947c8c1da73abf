"""Numbers as they are shown: bounds never look better than they are."""

from __future__ import annotations

import math

import pytest

from dpvision.released.report.tables import plain, setting, upper_percent
from dpvision.settings.figures import lower, upper


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.9992, "3.00"),
        (3.0, "3.00"),
        (3.0 + 1e-13, "3.00"),
        (3.0001, "3.01"),
        (0.01234, "0.013"),
        (None, "none"),
        (math.inf, "infinite"),
    ],
)
def test_a_bound_is_rounded_up(value: float | None, shown: str) -> None:
    assert upper(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.14251, "14.3%"), (0.00102, "0.102%"), (0.05, "5%"), (0.9999, "100%"), (1.0, "100%"), (0.0, "0%")],
)
def test_a_share_is_rounded_up(share: float, shown: str) -> None:
    assert upper_percent(share) == shown


def test_what_is_left_is_rounded_down() -> None:
    assert lower(0.4799) == "0.47"
    assert lower(6.0 - 5.53) == "0.47"
    assert (lower(math.inf), lower(-math.inf)) == ("infinite", "-infinite")


def test_names_stay_on_their_line() -> None:
    assert plain("a\nb\tc") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert len(plain("x" * 500)) == 60
    assert setting(True) == "yes"
    assert setting(["a"] * 50).endswith("and 10 more")
