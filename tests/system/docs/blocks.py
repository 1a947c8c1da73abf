"""The code of the documentation, as it stands on the pages: blocks, and the commands in them and in the text.

    how it is fenced or indented     what it is
    python                           Python; the blocks of a page run in order, in one namespace
    sh, console                      commands; in the latter they follow "$ ", and the rest is what was printed
    text and others                  no code: what was printed, formulas, files
    indented, from import on         Python
    indented otherwise               commands among other text, which are not run, but must be commands
    after <!-- not run: why -->      a block that cannot run here

A block is named by its page and line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", "SECURITY.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
FENCE = re.compile(r"^( *)(`{3,})(\w*)\s*$")
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(?:torchrun .*? -m |python -m )?dpvision (?:-- )?(.+)$")
INLINE = re.compile(r"`(?:torchrun .*? -m |python -m )?dpvision (?:-- )?([^`]+)`")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str  # python, sh, console, indented or text
    text: str
    not_run: str | None  # the reason

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def lines(self) -> list[str]:
        """The lines to type; a line that ends in a backslash continues in the next."""
        typed = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [x.removeprefix("$ ") for x in typed if x.startswith("$ ")] if self.kind == "console" else typed


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    lines, reason, at = (ROOT / page).read_text(encoding="utf-8").splitlines(), None, 0
    while at < len(lines):
        line, first = lines[at], at
        if fence := FENCE.match(line):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[2])
            text = "\n".join(x.removeprefix(fence[1]) for x in lines[at + 1 : end])
            kind = fence[3] if fence[3] in ("python", "sh", "console") else "text"
            yield Block(page, first + 1, kind, text, reason)
            reason, at = None, end
        elif line.startswith("    ") and (not at or not lines[at - 1].strip()):
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or _goes_on(lines, at + 1)):
                at += 1
            text = "\n".join(x.removeprefix("    ") for x in lines[first : at + 1])
            yield Block(page, first + 1, "python" if _is_python(text) else "indented", text, reason)
            reason = None
        elif match := NOT_RUN.match(line):
            reason = match[1]
        elif line.strip():
            reason = None
        at += 1


def commands(page: str) -> Iterator[tuple[str, list[str], bool]]:
    """Yield (place, words after `dpvision`, whether it is complete) for every command on a page.

    Commands in blocks other than Python are complete; in the text a verb may appear alone, as in `dpvision train`.
    """
    for block in blocks(page):
        for line in block.lines if block.kind != "python" else ():
            if match := COMMAND.match(line):
                yield str(block), words(match[1]), "..." not in line
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        for match in INLINE.finditer(line):
            yield f"{page}:{number}", words(match[1]), False


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def _is_python(text: str) -> bool:
    return text.lstrip().startswith(("import ", "from "))


def _goes_on(lines: list[str], at: int) -> bool:
    """Return whether an empty line is inside an indented block."""
    behind = next((x for x in lines[at:] if x.strip()), "")
    return not lines[at].strip() and behind.startswith("    ")
