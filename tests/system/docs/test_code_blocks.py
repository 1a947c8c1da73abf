"""Every code block of the documentation runs, page by page, in a separate folder and with a separate ledger."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dpvision.cli import main
from dpvision.public.assist import FORMULAS
from dpvision.settings.training import WAYS
from dpvision.views import OPERATIONS
from tests.one_thread import one_thread
from tests.system.docs.blocks import PAGES, Block, blocks, words

assert one_thread
# The number of blocks that may be marked as not run; each states why.
ALLOWANCE = 12
RUN = [page for page in PAGES if any(b.kind in ("python", "sh", "console") for b in blocks(page))]


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page}
    with patch.dict(WAYS), patch.dict(FORMULAS), patch.dict(OPERATIONS):  # pages register methods
        for block in blocks(page):
            if block.not_run is None and block.kind == "python":
                exec(compile(block.text, str(block), "exec"), names)
            elif block.not_run is None and block.kind in ("sh", "console"):
                for line in block.lines:
                    run(line, block, monkeypatch)


def run(line: str, block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command in this process, and require the exit code in the comment after it, or 0."""
    typed = words(line)
    if not typed:
        return
    if made := re.fullmatch(r"export (\w+)=\$\(mktemp -d\)", line):
        monkeypatch.setenv(made[1], tempfile.mkdtemp())
        return
    assert typed[0] == "dpvision", f"{block}: {line!r} is not a dpvision command. Fix: mark the block as not run."
    if typed[1] == "audit":
        typed += ["--confidence", "0.999999"]  # by default a true claim is refuted once in twenty audits
    match = re.search(r"#.*exit code (\d+)", line)
    monkeypatch.setattr(sys, "argv", typed)
    try:
        main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    assert code == (int(match[1]) if match else 0), f"{block}: {line}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [b for page in PAGES for b in blocks(page) if b.not_run is not None]
    assert all(len(b.not_run or "") > 10 for b in left_out)
    assert len(left_out) <= ALLOWANCE, [str(b) for b in left_out]


def test_no_code_hides_in_a_block_of_text() -> None:
    """Text blocks show output; commands and code are in other blocks."""
    hidden = [
        f"{block}: {line}"
        for page in PAGES
        for block in blocks(page)
        if block.kind == "text" and block.not_run is None
        for line in block.text.splitlines()
        if re.match(r"(\$ |dpvision \w|import \w|from \w+(\.\w+)* import )", line)
    ]
    assert hidden == []
