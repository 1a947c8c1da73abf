"""Headless chromium, one instance for all tests, and for the pictures in docs.

python tests/released/report/browser.py PAGE OUT.png WIDTH HEIGHT TOP [dark]      a picture of a page, from TOP down
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
DESKTOP, PHONE = (1280, 900), (390, 844)


def missing() -> str | None:
    """Return the reason why no page can be opened here, if there is one."""
    if not (CHROMIUM and DRIVER):
        return "chromium is missing; on Debian, as root: apt-get install -y chromium chromium-driver"
    if find_spec("selenium") is None or find_spec("axe_core_python") is None:
        return "selenium or axe-core-python is missing: pip install -c constraints.txt -e '.[dev]'"
    return None


@contextmanager
def opened() -> Iterator[Any]:
    """Open a browser that can read local files only."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for word in (
        "--headless=new",
        "--no-sandbox",  # for root, in a container; the only pages are our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, page: Path, size: tuple[int, int], *, dark: bool) -> None:
    """Open a page on a screen of this size, in the light or in the dark."""
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.resolve().as_uri())


def picture(driver: Any, size: tuple[int, int], *, top: int = 0) -> bytes:
    """A PNG of the page from `top` down."""
    clip = {"x": 0, "y": top, "width": size[0], "height": size[1], "scale": 1}
    asked = {"format": "png", "clip": clip, "captureBeyondViewport": True}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


if __name__ == "__main__":
    name, out, width, height, begin, *dark = sys.argv[1:]
    with opened() as browser:
        show(browser, Path(name), (int(width), int(height)), dark=bool(dark))
        Path(out).write_bytes(picture(browser, (int(width), int(height)), top=int(begin)))
