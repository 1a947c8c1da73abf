"""Features of a frozen part of a network, computed once for all records and kept beside the ledgers.

A frozen part with public weights is a public function of each image alone, so training on features is training on
images. The file is as private as the images themselves: it is readable by its owner only and never part of a run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision import atomic, distributed
from dpvision.data import Split
from dpvision.errors import DataError, UnsafeLayer
from dpvision.inputs import Inputs
from dpvision.models import Featured
from dpvision.models.featured import PIECE
from dpvision.privacy.ledger import home

AT_A_TIME = 256
Progress = Callable[[int, int], None]


def kept(parts: Featured, split: Split, *, of: tuple[str, ...], progress: Progress = lambda *_: None) -> NDArray[Any]:
    """(N, ...) float32, read from the disk where they were computed before; `of` names the records and the network."""
    path, team = file(of), distributed.team()
    if team.first and not path.exists():
        atomic.make_folder(path.parent)
        with atomic.alone(path.with_suffix(".lock")):
            if not path.exists():  # another run may have made them meanwhile
                _compute(parts, split, path, progress)
    team.wait()
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError) as exc:
        raise DataError(f"{path}: can not be read as features ({exc}). Fix: remove the file.") from exc
    shape = (len(split), *shape_of(parts, tuple(Inputs(split)(slice(0, 1)).shape[1:])))
    if not isinstance(found, np.memmap) or found.dtype != np.float32 or found.shape != shape:
        raise DataError(
            f"{path}: holds something else than float32 features {shape} of this data. Fix: remove the file."
        )
    return found


def file(of: tuple[str, ...]) -> Path:
    return home() / "features" / f"{hashlib.blake2b(json.dumps(of).encode(), digest_size=16).hexdigest()}.npy"


def digest(parts: Featured) -> str:
    """Names the frozen part's weights and tables."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in (*parts.prefix.named_parameters(), *parts.prefix.named_buffers()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _compute(parts: Featured, split: Split, path: Path, progress: Progress) -> None:
    """Into a file beside it, which gets its name when it is whole.

    `Featured.features` gives an image the same bits whatever other images are there.
    """
    inputs, count = Inputs(split), len(split)
    shape = shape_of(parts, tuple(inputs(slice(0, 1)).shape[1:]))
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)  # one that was killed may have left it
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.close(descriptor)
    try:
        out = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=(count, *shape))
        for start in range(0, count, AT_A_TIME):
            part = slice(start, min(start + AT_A_TIME, count))
            with torch.no_grad():
                out[part] = parts.features(inputs(part)).float().numpy()
            progress(part.stop, count)
        out.flush()
        del out
        os.rename(partial, path)
        atomic.sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def shape_of(parts: Featured, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(parts.features(torch.zeros(1, *shape)).shape[1:])


def require_separate(parts: Featured, shape: tuple[int, ...]) -> None:
    """By trial, on random images: no image's features change with another, wherever in the batch it is."""
    generator = torch.Generator().manual_seed(0)
    images, before = torch.rand((parts.piece or PIECE) + 1, *shape, generator=generator) * 2 - 1, digest(parts)
    with torch.no_grad():
        together = parts.features(images)
        for place in range(len(images)):
            changed = images.clone()
            changed[place] *= 1e3
            moved = (parts.features(changed) != together).flatten(1).any(1)
            moved[place] = False
            if bool(moved.any()):
                raise UnsafeLayer("the frozen part of the model mixes the images of a batch, so nobody is told apart.")
    if digest(parts) != before:
        raise UnsafeLayer("the frozen part of the model changes with the images that it sees, so it would tell them.")
