"""Compile native/ with one g++ call, once for each state of the source and version of torch."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NATIVE = Path(__file__).with_name("native")


class CannotBuild(ModuleNotFoundError):
    """The stand-in cannot be built on this machine, so tests that need it are skipped with this reason.

    `pytest.importorskip` skips on a ModuleNotFoundError only.
    """


def build() -> Path:
    """Return the library, compiled if it is not in the cache."""
    if sys.platform != "linux":
        raise CannotBuild(f"the stand-in accelerator is built for Linux only, and this is {sys.platform}")
    import torch

    root = Path(torch.__file__).parent
    flags = ("-O1", "-std=c++20", "-w", "-DAT_PER_OPERATOR_HEADERS")
    flags += (f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",)
    paths = (f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", f"-L{root}/lib", "-ltorch_cpu", "-lc10")
    sources = sorted(NATIVE.iterdir())
    identity = (torch.__version__, str(torch.version.git_version), platform.machine(), *flags)
    return compile_library(NATIVE / "standin.cpp", sources, identity, (*flags, *paths), trial=_TRIAL)


def compile_library(
    main: Path, sources: Sequence[Path], identity: Sequence[str], arguments: Sequence[str], *, trial: str = "import sys"
) -> Path:
    """Return the library made of `main`, which includes the other sources, from the cache if it is there.

    Its name is a digest of the sources and of `identity`. Where several processes ask at once, one of them compiles and
    the others wait. `trial` is Python code that must succeed with the path of a new library as its argument.
    """
    digest = hashlib.blake2b("\0".join(identity).encode(), digest_size=12)
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    folder = cache_folder()
    library = folder / f"{main.stem}-{digest.hexdigest()}.so"
    if library.exists():
        return library
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(main, library, arguments, trial)
    return library


def cache_folder() -> Path:
    """Return $STANDIN_CACHE or a folder in the user's cache. Only the user can write it: what lies there is executed."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("STANDIN_CACHE") or Path(home) / "dpvision-standin")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        result = os.lstat(folder)
    except OSError as exc:
        raise CannotBuild(f"{folder}: cannot keep the stand-in accelerator there ({exc.strerror})") from exc
    if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.getuid() or result.st_mode & 0o022:
        raise CannotBuild(
            f"{folder}: others can write it. Fix: chmod 700, or set STANDIN_CACHE to a folder of your own."
        )
    return folder


def _compile(main: Path, library: Path, arguments: Sequence[str], trial: str) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        raise CannotBuild("the stand-in accelerator is compiled by g++, which is not installed")
    unfinished = library.with_suffix(f".{os.getpid()}.so")
    command = [compiler, "-shared", "-fPIC", str(main), "-o", str(unfinished), *arguments]
    try:
        _run(command, "g++ could not compile the stand-in accelerator")
        _run([sys.executable, "-c", trial, str(unfinished)], "torch could not load the stand-in accelerator")
        unfinished.rename(library)
    finally:
        unfinished.unlink(missing_ok=True)


# A library that does not fit this torch may abort the process that loads it, so another process does it first.
_TRIAL = "import sys, torch; torch.ops.load_library(sys.argv[1])"


def _run(command: Sequence[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it gave no reason"]
        raise CannotBuild(f"{failure}: {errors[0].strip()}")
