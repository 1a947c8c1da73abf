"""Features of a frozen part of a network, computed once for all records and kept beside the ledgers.

A frozen part with public weights is a public function of each image alone, so training on features is training on
images. The file is as private as the images themselves: it is readable by its owner only and never part of a run.
It may take hours, so a killed computation goes on where it stopped (partial_rows.py) and ranks share the work; the
result has the same bits either way.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvision.core import files
from dpvision.data import Split
from dpvision.errors import DataError, UnsafeLayer
from dpvision.models import Featured
from dpvision.models.featured import PIECE
from dpvision.models.inputs import Inputs
from dpvision.private.features.resumable_file import PartialRows, rows_of
from dpvision.private.training import ranks
from dpvision.private.training.ranks import Team
from dpvision.storage import software
from dpvision.storage.home import home

AT_A_TIME = 256  # records of a rank in a round
ASK_AGAIN = 0.2  # seconds
SHIFTS = (1, 2, 3)
# What the rows come from, beside records, weights and machine.
CODE = ("private/features", "models")
Progress = Callable[[int, int], None]


def kept(parts: Featured, split: Split, *, of: tuple[str, ...], progress: Progress = lambda *_: None) -> NDArray[Any]:
    """(N, ...) float32, read from the disk where they were computed before; `of` names the records and the network.

    All ranks call it and share the work. What a killed computation left is gone on with, by as many ranks as there are.
    """
    path, team = file(of), ranks.team()
    if team.any(team.first and not path.exists()):
        with _alone(path.with_suffix(".lock"), team):
            if team.any(team.first and not path.exists()):  # another run may have made them meanwhile
                _compute(parts, split, path, progress, team)
    try:
        files.open_regular(path).close()  # a pipe would be waited for
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError) as exc:
        raise DataError(f"{path}: cannot be read as features ({exc}). Fix: remove the file.") from exc
    shape = _shape(parts, split)
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


@cache
def made_by() -> str:
    """The code that makes features, and what it computes with; the rest of the package may change.

    A name is narrow enough when other code cannot share it and have other bits, but nothing rests on that: a run is
    bound to the very bytes of its features (`Inputs.digest_features`).
    """
    return f"{software.source(*CODE)}, {software.machine()}"


@contextmanager
def _alone(lock: Path, team: Team) -> Iterator[None]:
    """Rank 0 holds the lock for all. It asks and tells, and asks again: nobody waits for a silent rank for hours."""
    with ExitStack() as held:
        if team.first:
            files.make_folder(lock.parent)
        while team.any(team.first and not _got(lock, held)):
            time.sleep(ASK_AGAIN)
        yield


def _got(lock: Path, held: ExitStack) -> bool:
    try:
        held.enter_context(files.locked(lock, wait=False))
    except BlockingIOError:
        return False
    return True


def _compute(parts: Featured, split: Split, path: Path, progress: Progress, team: Team) -> None:
    """In rounds: each rank has the next records, and a round is noted when all of it is on the disk.

    `Featured.features` gives an image the same bits whatever other images are there, so rounds may be of any size, and
    another number of ranks may go on.
    """
    inputs, count = Inputs(split), len(split)
    with PartialRows(path, _shape(parts, split)) as rows:
        done = int(team.from_first(torch.tensor([rows.begin() if team.first else 0])))
        if not team.first:
            rows.join()
        team.require_same({"DPVISION_HOME": rows.token})
        while done < count:
            start = done + team.rank * AT_A_TIME
            part = slice(min(start, count), min(start + AT_A_TIME, count))
            if part.start < part.stop:
                with torch.no_grad():
                    rows.write(part.start, parts.features(inputs(part)).float().numpy())
            team.wait()
            done = min(done + team.ranks * AT_A_TIME, count)
            if team.first:
                rows.note(done)
                progress(done, count)
        if team.first:
            rows.finish()
        team.wait()


def missing(of: tuple[str, ...], count: int) -> int:
    """Of how many records the features are still to be computed."""
    path = file(of)
    return 0 if path.exists() else max(0, count - rows_of(path))


def _shape(parts: Featured, split: Split) -> tuple[int, ...]:
    return (len(split), *shape_of(parts, tuple(Inputs(split)(slice(0, 1)).shape[1:])))


def shape_of(parts: Featured, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(parts.features(torch.zeros(1, *shape)).shape[1:])


def require_separate(parts: Featured, shape: tuple[int, ...], *, name: str = "the frozen part of the model") -> None:
    """By trial, on random images: no image's features change with another, wherever in the batch it is.

    Nor with its own place: when the first few are left out, the others move up, through all places of a piece. A few
    shifts, for other last bits do not show with every image.
    """
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
                raise UnsafeLayer(f"{name} mixes the images of a batch, so nobody is told apart.")
        for shift in SHIFTS:
            if not torch.equal(parts.features(images[shift:]), together[shift:]):
                raise UnsafeLayer(
                    f"{name} gives an image other features at another place in the batch, so one record more would "
                    "change those of others."
                )
    if digest(parts) != before:
        raise UnsafeLayer(f"{name} changes with the images that it sees, so it would tell them.")
