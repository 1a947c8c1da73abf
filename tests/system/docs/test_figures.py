"""Every measured figure in README.md and docs/ is the one in benchmarks/RESULTS.md.

A measured number is followed by a comment that names its figure, as `benchmark: figure`:

    70.3%<!-- priors: cifar10, patches, epsilon 1: mean of 5 -->

Braces stand for several numbers in a row: `97.9 / 98.5%<!-- train: mnist, scatter-linear, epsilon {1|2}: mean of 3 -->`.
A percentage with decimals that is not ours names its paper: `72.3%<!-- published: Tang et al. 2023 -->`. Results of a
single run that no benchmark repeats are marked `<!-- once: COMMAND -->`.
"""

from __future__ import annotations

import re

import pytest

from benchmarks.page import PAGE, figures, page
from tests.system.docs.blocks import PAGES, ROOT

NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
CLAIM = re.compile(rf"((?:{NUMBER}%? ?/ ?)*{NUMBER}%?)(?: \w+)?\*{{0,2}}<!-- ([^>]*?) -->")
WRITTEN_BY_HAND = [name for name in PAGES if name not in ("docs/results.md", "benchmarks/RESULTS.md", "LOG.md")]
VALUES = figures()


def prose(name: str) -> str:
    """A page without its code: fenced and indented blocks show what commands print, which other tests run."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def keys(comment: str) -> list[str]:
    """The figures that a comment names: one for each alternative in its braces."""
    braces = re.search(r"\{(.*?)\}", comment)
    return [comment.replace(braces[0], part) for part in re.split(r"\\?\|", braces[1])] if braces else [comment]


def is_rounded(shown: str, value: float, *, percent: bool) -> bool:
    """Whether a number as it is printed is this value, rounded to the digits that are printed."""
    digits = len(shown.partition(".")[2])
    exact = value * 100 if percent else value
    return abs(float(shown.replace(",", "")) - exact) <= 0.5 * 10.0**-digits + 1e-9


def wrong_claims(text: str, values: dict[str, float]) -> list[str]:
    """Each number of a text that differs from the figure that its comment names, or names none that exists."""
    wrong = []
    for numbers, comment in CLAIM.findall(text):
        if comment.startswith(("published: ", "once: ")):
            continue
        shown, percent = re.findall(NUMBER, numbers), "%" in numbers
        names = keys(comment)
        if len(names) != len(shown):
            wrong.append(f"{numbers}: {len(shown)} numbers for {len(names)} figures ({comment})")
            continue
        for number, name in zip(shown, names, strict=True):
            if name not in values:
                wrong.append(f"{number}: no figure '{name}' in benchmarks/RESULTS.md")
            elif not is_rounded(number, values[name], percent=percent):
                wrong.append(f"{number}: '{name}' is {values[name]:.5g}")
    return wrong


def unnamed(text: str) -> list[str]:
    """Percentages with decimals that no comment names."""
    return re.findall(r"\d+\.\d+%", CLAIM.sub("", text))


@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_every_figure_is_the_one_that_was_measured(name: str) -> None:
    assert wrong_claims(prose(name), VALUES) == []


@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_every_percentage_names_its_source(name: str) -> None:
    assert unnamed(prose(name)) == []


def test_the_results_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks.page`"


def test_a_wrong_an_unknown_and_an_unnamed_figure_are_noticed() -> None:
    values = {"a: b": 0.7032, "a: c": 2.5}
    assert wrong_claims("70.3%<!-- a: b --> 2.5 minutes<!-- a: c -->", values) == []
    assert wrong_claims("70.3 / 250%<!-- a: {b|c} -->", values) == []
    assert wrong_claims("**70.4%**<!-- a: b -->", values) == ["70.4: 'a: b' is 0.7032"]
    assert len(wrong_claims("70.3%<!-- a: d --> 1 / 2 / 3<!-- a: {b|c} -->", values)) == 2
    assert unnamed("70.3%<!-- a: b --> and 12.5%") == ["12.5%"]
