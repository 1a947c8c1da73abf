"""For mkdocs: files outside of docs/ that the pages speak of become pages too, and links that lead out or in are bent.

A link is written for the place where its file is, as code hosts read it: `../README.md` on a page of docs/,
`docs/gallery.md` in the README. On the site the files from outside are below project/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "README.md",
    "LOG.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    "benchmarks/board.png",
    "benchmarks/engine.png",
    "benchmarks/priors.png",
    "dpvision/core/README.md",
)
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_files(files: Files, config: Any) -> Files:
    for path in OUTSIDE:
        files.append(File.generated(config, f"project/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    here = page.file.src_uri
    written = here.removeprefix("project/") if here.startswith("project/") else f"docs/{here}"

    def bent(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(written), link[1]))
        if target in OUTSIDE:
            target = f"project/{target}"
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return link[1]  # mkdocs tells what it does not find
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(bent, markdown)
