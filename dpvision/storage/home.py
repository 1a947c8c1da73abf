"""This machine: the folder of its ledgers and run keys, to which nobody else may write, and the software that computes.

The folder is $DPVISION_HOME, or ~/.dpvision. The software is this package, by a digest of its code, and its libraries:
it is part of the name of a run's noise.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dpvision import __version__
from dpvision.core.ledger import Ledger
from dpvision.errors import ConfigError, PrivacyError

# An account is charged for new images if at least this share of them is on it, or of its images is among them.
CHARGED_SHARE = 0.02
# A home for the current thread only: that of shadow models, whose ledgers are deleted afterwards.
_temporary_home: ContextVar[Path | None] = ContextVar("home", default=None)


def home() -> Path:
    """Return the folder of ledgers and run keys. A folder that other users may write to is a PrivacyError."""
    place = _temporary_home.get() or Path(os.environ.get("DPVISION_HOME") or Path.home() / ".dpvision")
    if not place.is_absolute():
        raise ConfigError(
            f"DPVISION_HOME is {str(place)!r}, a relative path: the same command would have another ledger, with a "
            f'whole budget, in every working directory. Fix: an absolute path, such as DPVISION_HOME="$PWD/{place}".'
        )
    for folder in (place, place / "ledgers", place / "keys"):
        _require_owned(folder)
    return place


def ledger_of(fingerprint: str) -> Ledger:
    """Return the ledger of the data set with this fingerprint, in the home folder."""
    return Ledger(home() / "ledgers", fingerprint)


@contextmanager
def use_home(place: Path) -> Iterator[None]:
    """Use another home folder within this block, in this thread."""
    token = _temporary_home.set(place)
    try:
        yield
    finally:
        _temporary_home.reset(token)


def _require_owned(folder: Path) -> None:
    """Refuse a folder that another user may write to: they could replace ledgers and keys."""
    try:
        status = os.stat(folder)
    except OSError:
        return  # created later, for the owner only; or a clear error where it is used
    if status.st_uid not in (os.getuid(), 0):
        raise PrivacyError(
            f"{folder}: belongs to another user, who could replace ledgers or keys. Fix: a DPVISION_HOME of your own."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivacyError(
            f"{folder}: its group or all other users may write to it, so anybody could replace ledgers or keys. Fix: "
            f"`chmod go-w {folder}`, after checking who wrote there."
        )


@cache
def computing() -> str:
    """Return this package, its libraries and the machine in one line, which is part of the name of a run's noise."""
    return f"dpvision {__version__} ({source()}), {machine()}"


def machine() -> str:
    """Return the versions of libraries, the processor, and the settings that decide which kernels compute."""
    import numpy as np
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    processor = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    steering = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "GLIBC_TUNABLES", "NPY_", "OPENBLAS_", "BLIS_")
    chosen = [
        " ".join(platform.libc_ver()),
        *(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(steering)),
    ]
    others = [f"{name} {version}" for name in ("scipy", "timm") if (version := _version(name))]
    libraries = f"torch {torch.__version__}, numpy {np.__version__}"
    return ", ".join([libraries, torch.backends.cpu.get_cpu_capability(), processor, *others, *chosen])


def count_threads() -> dict[str, int]:
    """Return the numbers of threads of torch and of numpy's and scipy's BLAS, on which the last bits of sums depend.

    0 where BLAS is one that cannot be asked.
    """
    import torch

    return {"torch": torch.get_num_threads(), "blas": max(_blas_threads(), default=0)}


@contextmanager
def use_threads(wanted: Any, *, resumed: bool) -> Iterator[None]:
    """Compute with the numbers of threads that `count_threads` gave; where that is not possible, it is a PrivacyError.

    What is `resumed` has the noise of an earlier process: added to sums with other last bits, it would reveal where
    they differ.
    """
    import torch
    from threadpoolctl import threadpool_limits

    valid = isinstance(wanted, dict) and wanted.keys() == {"torch", "blas"}
    valid = valid and all(type(n) is int and 0 <= n <= 4096 for n in wanted.values())
    if not valid or not wanted["torch"] or (resumed and not wanted["blas"]):
        raise PrivacyError(
            "the number of threads that this was computed with before is not on record, and other numbers round sums "
            "differently, under the same noise. Fix: begin again in a new folder, with a charge of its own."
        )
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(wanted["torch"])
        _blas_threads()  # loads every BLAS, so that all of them are limited
        if wanted["blas"]:
            stack.enter_context(threadpool_limits(wanted["blas"], user_api="blas"))
        if (actual := {wanted["blas"], *_blas_threads()}) != {wanted["blas"]}:
            raise PrivacyError(
                f"BLAS computed with {wanted['blas']} threads before and has {max(actual)} or fewer here, which rounds "
                "sums differently, under the same noise. Fix: the environment in which it began (the BLAS of numpy and "
                "scipy, OMP_NUM_THREADS); or begin again in a new folder, with a charge of its own."
            )
        yield


def _blas_threads() -> list[int]:
    import numpy as np  # noqa: F401  # its BLAS and that of scipy are two
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def source(*parts: str, package: Path = Path(__file__).parents[1]) -> str:
    """Return a digest of this package's code, or of some of its files and folders.

    A version number does not identify the code while it is being developed.
    """
    digest = hashlib.blake2b(digest_size=8)
    places = [package / part for part in parts] or [package]
    for path in sorted(p for place in places for p in (place.rglob("*.py") if place.is_dir() else [place])):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()
