"""What the package may import, and what it must never call."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import dpvision.data

FOLDER = Path(dpvision.data.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
ALLOWED = {"numpy", "PIL", "pyarrow", "pydicom", "sklearn"}
LAZY = {"PIL", "pyarrow", "pydicom", "sklearn"}


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_imports(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for name in imported(tree):
        first = name.split(".")[0]
        ours = name in ("dpvision.errors", "dpvision.core", "dpvision.core.files") or name.startswith("dpvision.data")
        assert ours or first in ALLOWED or first in sys.stdlib_module_names, name
        assert first not in ("pickle", "marshal", "shelve", "zipfile", "tarfile"), name
    at_once = {
        name.split(".")[0] for node in tree.body for name in imported(ast.Module([node], [])) if not guarded(node)
    }
    assert not at_once & LAZY


def guarded(node: ast.stmt) -> bool:
    return isinstance(node, (ast.If, ast.FunctionDef, ast.ClassDef))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_forbidden_calls(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "compile", "open", "np.load", "numpy.load", "torch.load"), called
            assert not called.endswith((".extractall", ".extract")), called
            assert "allow_pickle" not in {keyword.arg for keyword in node.keywords}


def test_the_public_names() -> None:
    names = {
        "RULE",
        "Broken",
        "Dataset",
        "Findings",
        "Split",
        "Unlabelled",
        "check",
        "fingerprint",
        "holds_features",
        "identify",
        "image_batches",
        "load",
        "load_rows",
        "pack",
        "row_batches",
    }
    assert set(dpvision.data.__all__) == names
    assert all(getattr(dpvision.data, name).__doc__ for name in names)
