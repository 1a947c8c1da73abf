"""Pages in a real browser: nothing overflows, nothing fails, nobody is left out; wide and narrow, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import DESKTOP, PHONE, missing, opened, picture, show
from PIL import Image

from tests.audit.fixed_randomness import fixed_randomness

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
SCREENS = [(DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)]
LOOKED_AT = [(DESKTOP, False), (PHONE, True)]  # by axe, which takes a second: both layouts and both sets of colours


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that carries canaries, audited, with pictures; twice, and a board of both; and a release."""
    from dpvision.cli.audit import audit
    from dpvision.cli.evidence import evidence
    from dpvision.cli.release import release
    from dpvision.cli.train import board, train

    place = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch, fixed_randomness("pages"):  # true claims are refuted by chance
        patch.setenv("DPVISION_HOME", str(place / "home"))
        patch.delenv("DPVISION_TEST_KEY", raising=False)
        train("digits", epsilon=3.0, steps=20, canaries=100, examples=3, out=place / "runs" / "first")
        audit(place / "runs" / "first", runs=200)
        evidence(place / "runs" / "first")
        patch.setenv("DPVISION_HOME", str(place / "home of the release"))
        release("digits", epsilon=3.0, encoder="pixels", rows=200, out=place / "released")
    shutil.copytree(place / "runs" / "first", place / "runs" / "second <b> & last?#")
    board(place / "runs", out=place / "board.html")
    return place


@pytest.fixture(params=["runs/first/report.html", "runs/first/evidence.html", "released/report.html", "board.html"])
def page(folder: Path, request: pytest.FixtureRequest) -> Path:
    return folder / str(request.param)


def test_on_every_screen(driver: Any, page: Path, tmp_path: Path) -> None:
    for size, dark in SCREENS:
        show(driver, page, size, dark=dark)
        at = (page.name, size, dark)
        wide, there = driver.execute_script("const d = document.documentElement; return [d.scrollWidth, d.clientWidth]")
        assert wide <= there == size[0], at
        silent = driver.execute_script(
            "return [...document.querySelectorAll('svg, img')].filter(e => "
            "!(e.getAttribute('alt') || e.getAttribute('aria-label') || '').trim()).length"
        )
        assert not silent, at
        result = _axe(driver) if (size, dark) in LOOKED_AT else []
        grave = [f for f in result if f["impact"] in ("serious", "critical")]
        assert not grave, (at, [(f["id"], n["html"][:200], n["failureSummary"]) for f in grave for n in f["nodes"][:3]])
        shot = tmp_path / "shot.png"
        shot.write_bytes(picture(driver, size))
        with Image.open(shot) as seen:
            assert (max(seen.convert("RGB").getpixel((2, 2))) < 60) is dark, at  # the paper
        errors = [line for line in driver.get_log("browser") if line["level"] in ("SEVERE", "WARNING")]
        assert not errors, at


def test_all_pictures_of_the_report_are_drawn(driver: Any, folder: Path) -> None:
    show(driver, folder / "runs/first/report.html", DESKTOP, dark=False)
    sizes = driver.execute_script(
        "return [...document.querySelectorAll('svg, img')].map(e => [e.tagName, e.naturalWidth || e.clientWidth])"
    )
    assert [name for name, _ in sizes].count("svg") == 6
    assert 3 < [name for name, _ in sizes].count("IMG") <= 6
    assert all(width > 0 for _, width in sizes)


def test_a_click_sorts_the_board_and_links_lead_to_reports(driver: Any, folder: Path) -> None:
    show(driver, folder / "board.html", DESKTOP, dark=False)

    def names() -> list[str]:
        return list(driver.execute_script("return [...document.querySelectorAll('tbody th a')].map(e => e.innerText)"))

    before = names()
    assert len(before) == 2
    head = driver.find_element("css selector", "table.board thead button")
    head.click()
    assert names() == sorted(before, key=str.lower)
    head.click()
    assert names() == sorted(before, key=str.lower, reverse=True)
    assert driver.execute_script("return document.querySelector('[aria-sort]').innerText").startswith("run")
    for place in range(2):
        driver.find_elements("css selector", "tbody th a")[place].click()
        assert driver.title.startswith("Privacy report")
        driver.back()


def _axe(driver: Any) -> list[dict[str, Any]]:
    """What axe-core finds wrong."""
    import axe_core_python

    script = (Path(axe_core_python.__file__).with_name("axe.min.js")).read_text("utf-8")
    driver.execute_script(script)
    options = "{resultTypes: ['violations']}"
    return list(
        driver.execute_async_script(f"const done = arguments[0]; axe.run({options}).then(r => done(r.violations))")
    )
