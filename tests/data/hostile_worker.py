"""Loads every source of a manifest in a separate process, and reports outcome, time and memory of each."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpvision import data
from dpvision.errors import DataError

SECONDS = 20
"""Wall-clock time, generous because other processes share the cores. The test limits processor time."""


class Hang(BaseException):
    """Not an Exception, so that no handler can take it for a broken file."""


def on_alarm(number: int, frame: object) -> None:
    raise Hang


def peak_memory() -> int:
    """Highest resident size of this process in bytes. getrusage would count the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def validate(split: data.Split, classes: int) -> None:
    """Assert every documented condition of `Split`."""
    count, _, _, channels = split.images.shape
    assert count > 0 and channels in (1, 3) and split.images.dtype in (np.uint8, np.float32)
    if split.images.dtype == np.float32:
        assert split.images.min() >= 0 and split.images.max() <= 1
    assert split.labels.shape == (count,) and split.labels.dtype == np.int64
    assert split.labels.min() >= 0 and split.labels.max() < classes
    if split.persons is not None:
        assert split.persons.shape == (count,) and split.persons.dtype == np.int64 and split.persons.min() >= 0


def attempt(job: dict) -> tuple[str, str]:
    if job["verb"] == "image_batches":
        for batch in data.image_batches(job["source"], size=(6, 6), channels=1):
            assert len(batch.names) == len(batch.problems) == len(batch.images) + sum(map(bool, batch.problems))
            if any(batch.problems):
                raise DataError(f"{job['source']}: {batch.problems}")
        return "loaded", ""
    dataset = data.load(job["source"], **job["options"])
    parts = [part for part in (dataset.train, dataset.val, dataset.test) if part is not None]
    for part in parts:
        validate(part, len(dataset.classes))
    return "loaded", " ".join(data.fingerprint(part) for part in parts)


def check(job: dict) -> str:
    data.check(job["source"], **job["options"])
    return "found"


def pack(job: dict) -> str:
    """Pack into the working folder and remove the store; a failed attempt must leave nothing."""
    shutil.rmtree(data.pack(job["source"], "store", **job["options"]))
    return "loaded"


def outcome_of(verb: Callable[[dict], str], job: dict) -> str:
    try:
        return verb(job)
    except DataError:
        return "refused"
    except BaseException as exc:
        return f"{type(exc).__name__}: {exc}"


def main(manifest: str, report: str) -> None:
    signal.signal(signal.SIGALRM, on_alarm)
    data.load("digits")
    import PIL.JpegImagePlugin
    import PIL.PngImagePlugin  # noqa: F401

    base, results = peak_memory(), []
    for job in json.loads(Path(manifest).read_text()):
        start = time.process_time()
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            outcome, text = attempt(job)
        except DataError as exc:
            outcome, text = "refused", str(exc)
        except Hang:
            outcome, text = "hang", ""
        except BaseException as exc:
            outcome, text = "escaped", f"{type(exc).__name__}: {exc}"
        seconds = time.process_time() - start
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        checked = "found" if job["only_load"] else outcome_of(check, job)
        packed = outcome_of(pack, job) if len(results) % 4 == 0 and not job["only_load"] else ""
        signal.setitimer(signal.ITIMER_REAL, 0)
        result = {"outcome": outcome, "text": text, "seconds": seconds, "memory": peak_memory() - base}
        results.append({**result, "checked": checked, "packed": packed})
    Path(report).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
