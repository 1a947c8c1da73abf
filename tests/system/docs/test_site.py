"""The documentation is built as a site, strictly, and is whole: links, anchors, public names, files that it names."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.system.docs.blocks import PAGES, ROOT

REFERENCE = (
    "dpvision",
    "dpvision.private.engine",
    "dpvision.private.statistics",
    "dpvision.released.learners",
    "dpvision.private.statistics.baselines",
    "dpvision.data",
    "dpvision.views",
    "dpvision.audit",
)


def test_it_is_built_strictly_and_reads_without_a_network(tmp_path: Path) -> None:
    """By what `make docs` calls. Any warning ends it: of links and anchors, of pages and names that are not found."""
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    fetched = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//""")
    pages = sorted(tmp_path.rglob("*.html"))
    assert {"index.html", "api.html", "pitfalls.html"} <= {p.name for p in pages}
    for page in pages:
        assert not fetched.search(page.read_text(encoding="utf-8")), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for module in REFERENCE:
        for name in importlib.import_module(module).__all__:
            assert f"`{name}`" in text, f"{module}.{name} is not in docs/api.md"
    for name in re.findall(r"^::: (\S+)", text, re.MULTILINE):
        place, _, own = name.rpartition(".")
        assert callable(getattr(importlib.import_module(place), own)), name
        file = ROOT / f"{name.replace('.', '/')}.py"
        assert not file.exists(), f"{name}: {file} would be shown in its place"


@pytest.mark.parametrize("page", [p for p in PAGES if p != "README.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    """`dpvision/private/training/train.py` and the like, as code in the text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:dpvision|tests|benchmarks|examples|docs)/[\w/.-]*)`", text):
        assert (ROOT / name).exists(), f"{page}: {name}"
