"""The documentation is built as a site, strictly, and is whole: links, anchors, public names, files that it names."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

REFERENCE = (
    "dpvision",
    "dpvision.mechanism.clip",
    "dpvision.heads",
    "dpvision.learners",
    "dpvision.baselines",
    "dpvision.data",
    "dpvision.views",
    "dpvision.audit",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Built by what `make docs` calls. Any warning ends it: of links and anchors, of pages and names not found."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    place = tmp_path_factory.mktemp("site")
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(place))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    yield place


def test_it_is_built_strictly_and_reads_without_a_network(site: Path) -> None:
    fetched = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//""")
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "api.html", "pitfalls.html"} <= {p.name for p in pages}
    for page in pages:
        assert not fetched.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for module in REFERENCE:
        for name in importlib.import_module(module).__all__:
            assert f"`{name}`" in text, f"{module}.{name} is not in docs/api.md"
    for name in re.findall(r"^::: (\S+)", text, re.MULTILINE):
        assert f'id="{name}"' in (site / "api.html").read_text(encoding="utf-8"), name


@pytest.mark.parametrize("page", [p for p in PAGES if p != "README.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    """`dpvision/train.py` and the like, as code in the text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:dpvision|tests|benchmarks|examples|docs)/[\w/.-]*)`", text):
        assert (ROOT / name).exists(), f"{page}: {name}"
