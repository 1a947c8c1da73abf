"""The software and the machine that compute: this package by a digest of its code, and its libraries. Names noise."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from dpvision import __version__


@cache
def computing() -> str:
    """This package, its libraries and the machine, in one line that is part of the name of a run's noise."""
    return f"dpvision {__version__} ({source()}), {machine()}"


def machine() -> str:
    """Versions of libraries, the processor, and settings that decide which kernels compute."""
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


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def source(*parts: str, package: Path = Path(__file__).parents[1]) -> str:
    """Digest of this package's code, or of some files and folders of it: while it is being developed, a version number
    does not identify it."""
    digest = hashlib.blake2b(digest_size=8)
    places = [package / part for part in parts] or [package]
    for path in sorted(p for place in places for p in (place.rglob("*.py") if place.is_dir() else [place])):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()
