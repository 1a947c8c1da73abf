"""Features of a frozen part of a network, computed once for all records and cached next to the ledgers.

A frozen part with public weights is a public function of each image alone, so training on features is equivalent to
training on images. The file is as private as the images: it is readable by its owner only and never part of a run. The
computation may take hours, so it resumes after a kill (resumable_file.py) and worker processes share it. The result has
the same bits in every case.
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
from dpvision.models.device import name_computation
from dpvision.models.featured import PIECE, device_of, piece_on
from dpvision.models.inputs import Inputs
from dpvision.private.features.resumable_file import ResumableFile, read_complete
from dpvision.private.training import ranks
from dpvision.private.training.ranks import Team
from dpvision.storage import home

AT_A_TIME = 256  # records of a rank in a round
POLL = 0.2  # seconds between attempts to get the lock
SHIFTS = (1, 2, 3)
# Code on which rows depend, in addition to records, weights and machine.
CODE = ("private/features", "models", "views/eight_bit.py")
Progress = Callable[[int, int], None]


def load_or_compute(
    parts: Featured, split: Split, *, key: tuple[str, ...], progress: Progress = lambda *_: None
) -> NDArray[Any]:
    """Return (N, ...) float32 features, from the disk if they were computed before; computing may take hours.

    `key` names the records and the network. All ranks call it and share the work. A computation that was killed is
    resumed, by any number of ranks.
    """
    path, team = path_of(key), ranks.team()
    if team.any(team.first and not path.exists()):
        with _alone(path.with_suffix(".lock"), team):
            if team.any(team.first and not path.exists()):  # another run may have computed them meanwhile
                _compute(parts, split, path, progress, team)
    try:
        files.open_regular(path).close()  # opening a pipe would block
        features = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TypeError, TokenError) as exc:
        raise DataError(f"{path}: cannot be read as features ({exc}). Fix: remove the file.") from exc
    shape = _shape(parts, split)
    if not isinstance(features, np.memmap) or features.dtype != np.float32 or features.shape != shape:
        raise DataError(
            f"{path}: does not hold float32 features of shape {shape}, as this data has. Fix: remove the file."
        )
    return features


def path_of(key: tuple[str, ...]) -> Path:
    return home.home() / "features" / f"{hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()}.npy"


def digest(parts: Featured) -> str:
    """Return a digest of the frozen part's weights and tables, and of their device unless that is the CPU."""
    device = device_of(parts)
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in (*parts.prefix.named_parameters(), *parts.prefix.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    if device.type != "cpu":
        precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "float32"
        digest.update(name_computation(device, precision).encode())
    return digest.hexdigest()


@cache
def code_version() -> str:
    """Return the code that computes features and its environment; the rest of the package may change.

    Code that computes different bits should have a different name, but nothing depends on that: a run is bound to the
    exact bytes of its features (`Inputs.digest_features`).
    """
    return f"{home.source(*CODE)}, {home.machine()}"


@contextmanager
def _alone(lock: Path, team: Team) -> Iterator[None]:
    """Hold the lock on rank 0 for all. It polls and reports each attempt, so no rank waits silently for hours."""
    with ExitStack() as held:
        if team.first:
            files.make_folder(lock.parent)
        while team.any(team.first and not _try_lock(lock, held)):
            time.sleep(POLL)
        yield


def _try_lock(lock: Path, held: ExitStack) -> bool:
    try:
        held.enter_context(files.locked(lock, wait=False))
    except BlockingIOError:
        return False
    return True


def _compute(parts: Featured, split: Split, path: Path, progress: Progress, team: Team) -> None:
    """Compute in rounds: each rank has the next records, and a round is recorded when all of it is on disk.

    `Featured.features` gives an image the same bits whatever other images are in the batch, so rounds may be of any
    size, and another number of ranks may resume.
    """
    inputs, count, device = Inputs(split), len(split), device_of(parts)
    with ResumableFile(path, _shape(parts, split)) as rows:
        done = int(team.from_first(torch.tensor([rows.begin() if team.first else 0])))
        if not team.first:
            rows.join()
        team.require_same({"DPVISION_HOME": rows.token})
        while done < count:
            start = done + team.rank * AT_A_TIME
            part = slice(min(start, count), min(start + AT_A_TIME, count))
            if part.start < part.stop:
                with torch.no_grad():
                    rows.write(part.start, parts.features(inputs(part).to(device)).float().cpu().numpy())
            team.wait()
            done = min(done + team.ranks * AT_A_TIME, count)
            if team.first:
                rows.record(done)
                progress(done, count)
        if team.first:
            rows.finish()
        team.wait()


def count_missing(key: tuple[str, ...], count: int) -> int:
    """Return the number of records whose features are still to be computed."""
    path = path_of(key)
    return 0 if path.exists() else max(0, count - read_complete(path))


def _shape(parts: Featured, split: Split) -> tuple[int, ...]:
    return (len(split), *shape_of(parts, tuple(Inputs(split)(slice(0, 1)).shape[1:])))


def shape_of(parts: Featured, shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.no_grad():
        return tuple(parts.features(torch.zeros(1, *shape, device=device_of(parts))).shape[1:])


def require_separate(parts: Featured, shape: tuple[int, ...], *, name: str = "the frozen part of the model") -> None:
    """Test, on random images, that no image's features change with another image, or with its own position.

    For the position, the first few images are left out, so that the others move up through all positions of a piece. A
    few shifts are tried, because a difference in the last bits does not show with every image. Of the large pieces of
    an accelerator, some positions are tried.
    """
    generator, device = torch.Generator().manual_seed(0), device_of(parts)
    count = piece_on(device, parts.piece or PIECE) + 1
    images, before = (torch.rand(count, *shape, generator=generator) * 2 - 1).to(device), digest(parts)
    with torch.no_grad():
        together = parts.features(images)
        for place in np.linspace(0, count - 1, min(count, PIECE + 1)).astype(int).tolist():
            changed = images.clone()
            changed[place] *= 1e3
            moved = (parts.features(changed) != together).flatten(1).any(1)
            moved[place] = False
            if bool(moved.any()):
                raise UnsafeLayer(
                    f"{name} mixes the images of a batch, so clipping one image does not bound its influence."
                )
        for shift in SHIFTS:
            if not torch.equal(parts.features(images[shift:]), together[shift:]):
                raise UnsafeLayer(
                    f"{name} gives an image different features at a different position in the batch, so adding one "
                    "record would change the features of others."
                )
    if digest(parts) != before:
        raise UnsafeLayer(f"{name} changes with the images that it sees, so it would reveal them.")
