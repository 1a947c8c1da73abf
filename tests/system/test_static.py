"""What the source must never contain, and that the public names are true."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import dpvision

ROOT = Path(dpvision.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "cloudpickle"}
FORBIDDEN_CALLS = {"torch.load", "torch.save", "extractall", "eval", "exec", "os.system"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_that_could_run_a_files_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not {a.name.split(".")[0] for a in node.names} & FORBIDDEN_IMPORTS
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_IMPORTS
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS and not called.endswith(".extractall")
            for word in node.keywords:
                value = word.value
                assert not (
                    word.arg == "allow_pickle" and not (isinstance(value, ast.Constant) and value.value is False)
                )


def test_no_torch_generator_makes_noise_or_coins() -> None:
    for name in ("core/noise", "core/sampling", "core/keys", "core/gate", "private/training/private_sum"):
        text = (ROOT / f"{name}.py").read_text()
        assert "Generator" not in text and "randn" not in text and "np.random" not in text


def test_public_names_exist_and_are_listed() -> None:
    for name in dpvision.__all__:
        assert getattr(dpvision, name) is not None
    assert sorted(dpvision._PUBLIC) == [n for n in dpvision.__all__ if n != "__version__"]
    with pytest.raises(AttributeError):
        dpvision.nonsense  # noqa: B018


def test_the_errors_docstring_draws_the_tree() -> None:
    errors = importlib.import_module("dpvision.errors")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert name in (errors.__doc__ or "")
