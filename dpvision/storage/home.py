"""The home folder for ledgers and run keys, to which nobody else may write; and the software on this machine.

The folder is $DPVISION_HOME, or else ~/.dpvision. The software is described by a digest of this package's code and by
the versions of its libraries; the description is part of the name of a run's noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from dpvision import __version__
from dpvision.core.account import Account
from dpvision.core.ledger import Ledger
from dpvision.errors import ConfigError, LedgerMismatch, PrivacyError

# A new data set is also charged to an account if they share at least this fraction of the images of either.
CHARGED_SHARE = 0.02
# A home for the current thread only, used by shadow models, whose ledgers are deleted afterwards.
_temporary_home: ContextVar[Path | None] = ContextVar("home", default=None)


def home() -> Path:
    """Return the folder of ledgers and run keys; raise a PrivacyError if other users may write to it."""
    place = _temporary_home.get() or Path(os.environ.get("DPVISION_HOME") or Path.home() / ".dpvision")
    if not place.is_absolute():
        raise ConfigError(
            f"DPVISION_HOME is {str(place)!r}, a relative path: each working directory would have a separate ledger "
            f'with an unspent budget. Fix: use an absolute path, such as DPVISION_HOME="$PWD/{place}".'
        )
    for folder in (place, place / "ledgers", place / "keys"):
        _require_owned(folder)
    return place


def ledger_of(fingerprint: str) -> Ledger:
    """Return the ledger of the data set with this fingerprint, in the home folder."""
    return Ledger(home() / "ledgers", fingerprint)


def account_of_charge(run: str) -> Account | None:
    """Return the account that this run or release was charged to, if its ledger is in the home folder."""
    for path in sorted((home() / "ledgers").glob("*.jsonl")):
        with suppress(OSError, ValueError, KeyError, TypeError, LedgerMismatch):  # a damaged ledger shows no charge
            with open(path, encoding="utf-8") as file:
                fingerprint = json.loads(file.readline())["fingerprint"]
            account = ledger_of(fingerprint).account()
            if any(charge.run == run for charge in account.charges):
                return account
    return None


@contextmanager
def use_home(place: Path) -> Iterator[None]:
    """Use another home folder within this block and this thread."""
    token = _temporary_home.set(place)
    try:
        yield
    finally:
        _temporary_home.reset(token)


def _require_owned(folder: Path) -> None:
    """Refuse a folder that another user may write to, since that user could replace ledgers and keys."""
    try:
        status = os.stat(folder)
    except OSError:
        return  # either created later for the owner only, or an error where it is used
    if status.st_uid not in (os.getuid(), 0):
        raise PrivacyError(
            f"{folder}: belongs to another user, who could replace ledgers or keys. Fix: use your own DPVISION_HOME."
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PrivacyError(
            f"{folder}: other users may write to this folder, so they could replace ledgers or keys. Fix: check that "
            f"nobody did, then `chmod go-w {folder}`."
        )


def computing() -> str:
    """Describe this package, its libraries and the machine in one line, which is part of the name of a run's noise."""
    return f"dpvision {__version__} ({_own_source()}), {machine()}"


@cache
def _own_source() -> str:
    """Return the digest of the code as it was when it was first needed: what runs is what was loaded."""
    return source()


def machine() -> str:
    """Describe the versions of libraries, the processor, and the environment variables that select kernels."""
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
    """Return the thread counts of torch and of the BLAS of numpy and scipy, which affect the last bits of sums.

    The number is 0 for a BLAS that does not report it.
    """
    import torch

    return {"torch": torch.get_num_threads(), "blas": max(_blas_threads(), default=0)}


@contextmanager
def use_threads(wanted: Any, *, resumed: bool) -> Iterator[None]:
    """Use the numbers of threads that `count_threads` returned; raise a PrivacyError if that is not possible.

    A `resumed` computation reuses the noise of an earlier process. If the same noise were added to sums that differ in
    their last bits, the results would reveal where they differ.
    """
    import torch
    from threadpoolctl import threadpool_limits

    valid = isinstance(wanted, dict) and wanted.keys() == {"torch", "blas"}
    valid = valid and all(type(n) is int and 0 <= n <= 4096 for n in wanted.values())
    if not valid or not wanted["torch"] or (resumed and not wanted["blas"]):
        raise PrivacyError(
            "the number of threads of the earlier computation is not recorded, and another number would round sums "
            "differently under the same noise. Fix: start again in a new folder, which is charged separately."
        )
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(wanted["torch"])
        _blas_threads()  # loads every BLAS, so that all of them are limited
        if wanted["blas"]:
            stack.enter_context(threadpool_limits(wanted["blas"], user_api="blas"))
        if (actual := {wanted["blas"], *_blas_threads()}) != {wanted["blas"]}:
            raise PrivacyError(
                f"BLAS used {wanted['blas']} threads before but has at most {max(actual)} here, which would round "
                "sums differently under the same noise. Fix: resume in the original environment (the BLAS of numpy and "
                "scipy, OMP_NUM_THREADS), or start again in a new folder, which is charged separately."
            )
        yield


def _blas_threads() -> list[int]:
    import numpy as np  # noqa: F401  # numpy and scipy each have a BLAS
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def source(*parts: str, package: Path = Path(__file__).parents[1]) -> str:
    """Return a digest of the code of this package, or of some of its files and folders.

    A version number does not identify the code during development.
    """
    digest = hashlib.blake2b(digest_size=8)
    places = [package / part for part in parts] or [package]
    for path in sorted(p for place in places for p in (place.rglob("*.py") if place.is_dir() else [place])):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()
