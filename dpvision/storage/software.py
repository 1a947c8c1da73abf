"""What computes: this package, by a digest of its code, the libraries below it and the machine. It names noise."""

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
    """This package, and what it computes with."""
    return f"dpvision {__version__} ({source()}), {machine()}"


def machine() -> str:
    """Versions, processor, and what else decides which kernels compute."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    named = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    steering = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_", "GLIBC_TUNABLES", "NPY_", "OPENBLAS_", "BLIS_")
    chosen = [
        " ".join(platform.libc_ver()),
        *(f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(steering)),
    ]
    others = [f"{name} {version}" for name in ("scipy", "timm") if (version := _version(name))]
    libraries = f"torch {torch.__version__}, numpy {np.__version__}"
    return ", ".join([libraries, torch.backends.cpu.get_cpu_capability(), named, *others, *chosen])


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def source(*parts: str, package: Path = Path(__file__).parents[1]) -> str:
    """Digest of this package's own code, or of some files and folders of it: two versions of it may share a number
    while it is being changed."""
    digest = hashlib.blake2b(digest_size=8)
    places = [package / part for part in parts] or [package]
    for path in sorted(p for place in places for p in (place.rglob("*.py") if place.is_dir() else [place])):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()
