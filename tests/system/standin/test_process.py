"""How the stand-in comes into a process: compiled once, kept where only the user can write, and run by python -m."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="g++ is not installed")


def _python(code: str, **environment: str | Path) -> subprocess.Popen[str]:
    variables = os.environ | {name: str(value) for name, value in environment.items()}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=variables, text=True, stdout=pipe, stderr=pipe)


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def counting_compiler(tmp_path: Path) -> Path:
    """A folder for PATH whose g++ notes that it was called, and compiles."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "g++"
    script.write_text(f'#!/bin/sh\necho called >> {tmp_path}/calls\nsleep 0.5\nexec {COMPILER} "$@"\n')
    script.chmod(0o755)
    return folder


# Loads build.py by its path: importing tests.standin would build the stand-in itself.
BUILD = f"""
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("build", {str(Path(__file__).parents[2] / "standin" / "build.py")!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
"""


@needs_compiler
def test_several_processes_at_once_compile_once(tmp_path: Path, counting_compiler: Path) -> None:
    """On a small source: the lock and the cache do not depend on what is compiled."""
    source = tmp_path / "small.cpp"
    code = BUILD + f"source = pathlib.Path({str(source)!r})\nprint(build.compile_library(source, [source], ['1'], []))"
    environment = {"PATH": f"{counting_compiler}:{os.environ['PATH']}", "STANDIN_CACHE": tmp_path / "cache"}
    made = []
    for text in ('extern "C" int number() { return 1; }', 'extern "C" int number() { return 2; }'):
        source.write_text(text)
        results = [_finish(process) for process in [_python(code, **environment) for _ in range(3)]]
        assert all(status == 0 for status, _, _ in results), results
        assert len({out for _, out, _ in results}) == 1
        made.append(results[0][1].strip())
    assert made[0] != made[1], "another source is another library"
    assert (tmp_path / "calls").read_text().split() == ["called", "called"]
    assert {str(path) for path in (tmp_path / "cache").glob("*.so")} == set(made)


@needs_compiler
def test_a_source_that_does_not_compile_is_a_reason(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cpp"
    source.write_text("int number() { return missing; }")
    code = BUILD + f"source = pathlib.Path({str(source)!r})\nbuild.compile_library(source, [source], ['1'], [])"
    status, _, err = _finish(_python(code, STANDIN_CACHE=tmp_path / "cache"))
    assert status == 1 and "CannotBuild: g++ could not compile" in err and "missing" in err.splitlines()[-1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"], "nothing half-made is kept"


def test_without_a_compiler_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    code = "import pytest; pytest.importorskip('tests.standin')"
    status, _, err = _finish(_python(code, PATH=tmp_path, STANDIN_CACHE=tmp_path / "cache"))
    assert status == 1 and "Skipped: could not import 'tests.standin'" in err and "g++, which is not installed" in err


def test_a_cache_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    status, _, err = _finish(_python("import tests.standin", STANDIN_CACHE=folder))
    assert status == 1 and "others can write it" in err and not list(folder.iterdir())


def test_after_a_backward_pass_it_is_too_late() -> None:
    pytest.importorskip("tests.standin")
    code = """
import pytest, torch
torch.ones(1, requires_grad=True).sum().backward()
for _ in range(2):
    try:
        pytest.importorskip("tests.standin")
    except pytest.skip.Exception as exc:
        print(exc)
"""
    status, out, err = _finish(_python(code))
    assert status == 0, err
    assert out.count("before the first backward pass") == 2


WORKER = """
import json, sys, torch
from dpvision.models.device import find_device, name_computation
device = find_device("auto")
torch.ones(1, device=device, requires_grad=True).sum().backward()
print(json.dumps([sys.argv[1:], __name__, str(device), name_computation(device)]))
"""


def test_a_module_is_run_where_it_is_the_accelerator(tmp_path: Path) -> None:
    pytest.importorskip("tests.standin")
    (tmp_path / "worker.py").write_text(WORKER)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "tests.standin", "-m", "worker", "one", "--two"]
    environment = os.environ | {"PYTHONPATH": path, "STANDIN": "bits=10,late=1", "LOCAL_RANK": "1"}
    environment.pop("CUBLAS_WORKSPACE_CONFIG", None)  # set by computations on a device in this process
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        '[["one", "--two"], "__main__", "standin:1", "standin, kernels of the host, bits=10"]'
    )


def test_an_option_that_is_not_there_stops_the_process() -> None:
    pytest.importorskip("tests.standin")
    from tests.standin import options

    assert options.parse_options("bits=10,late=1,") == {"bits": 10.0, "late": 1.0} and options.parse_options("") == {}
    with pytest.raises(ValueError, match="'bits' has no number"):
        options.parse_options("bits")
    command = [sys.executable, "-m", "tests.standin", "-m", "json"]
    done = subprocess.run(command, env=os.environ | {"STANDIN": "speed=9"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "STANDIN: there is no option 'speed'" in done.stderr and not done.stdout
