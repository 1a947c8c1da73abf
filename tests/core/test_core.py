"""The trusted part stays closed and small: what it imports, and that its README lists its files as they are.

`python -m tests.core.test_core` writes the README's numbers of lines again.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "dpvision" / "core"
README = CORE / "README.md"
FILES = {path.name: path for path in CORE.rglob("*.py")}
LIBRARIES = {"cryptography", "dp_accounting", "numpy", "scipy", "torch"}
ROW = re.compile(r"^\| `(\S+)` \| (\d+) \|", re.MULTILINE)
TOTAL = re.compile(r"^Together ([\d,]+) lines\.", re.MULTILINE)


def _lines(name: str) -> int:
    return len(FILES[name].read_text().splitlines())


def _imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it."""
    results = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            results |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path.name}: a relative import"
            results |= {f"{node.module}.{name.name}" for name in node.names}
    return results


@pytest.mark.parametrize("name", sorted(FILES))
def test_core_imports_core_errors_and_few_libraries(name: str) -> None:
    of_others = {
        module
        for module in _imported(FILES[name])
        if not module.startswith(("dpvision.core.", "dpvision.errors."))
        and module.split(".")[0] not in LIBRARIES | sys.stdlib_module_names
    }
    assert not of_others


def test_its_readme_lists_every_file_and_its_lines() -> None:
    text = README.read_text()
    listed, total = ROW.findall(text), TOTAL.findall(text)
    assert {name: int(lines) for name, lines in listed} == {name: _lines(name) for name in FILES}
    assert len(listed) == len(FILES) and total == [f"{sum(map(_lines, FILES)):,}"]


if __name__ == "__main__":
    text = ROW.sub(lambda row: f"| `{row[1]}` | {_lines(row[1])} |", README.read_text())
    README.write_text(TOTAL.sub(f"Together {sum(map(_lines, FILES)):,} lines.", text))
