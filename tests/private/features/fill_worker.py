"""Fills a file of rows in a child that is killed at each system call in turn; prints one JSON line about every kill.

It is numpy alone, in its own process, so that a fork costs a millisecond.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from dpvision.private.features.resumable_file import ResumableFile, read_complete

ROWS = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)
BLOCK = 4
CALLS = ("open", "posix_fallocate", "pwrite", "fsync", "replace", "rename", "unlink")


def fill(path: Path) -> int:
    """The rows that had to be computed."""
    computed = 0
    with ResumableFile(path, ROWS.shape) as rows:
        done = rows.begin()
        while done < len(ROWS):
            part = ROWS[done : done + BLOCK]
            rows.write(done, part)
            computed += len(part)
            done += len(part)
            rows.record(done)
        rows.finish()
    return computed


def kill_at(stage: int) -> None:
    """Die in the `stage`-th call: before it, or of a write in the middle of it."""
    count = 0

    def deadly(original, *, torn=False):
        def call(*args, **named):
            nonlocal count
            count += 1
            if count == stage:
                if torn:
                    original(args[0], bytes(args[1])[: len(args[1]) // 2], *args[2:])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **named)

        return call

    for name in CALLS:
        setattr(os, name, deadly(getattr(os, name), torn=name == "pwrite"))


if __name__ == "__main__":
    for stage in range(1, 1000):
        path = Path(sys.argv[1]) / f"{stage}.npy"
        child = os.fork()
        if not child:
            kill_at(stage)
            fill(path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        whole = len(ROWS) if path.exists() else read_complete(path)
        computed = 0 if path.exists() else fill(path)
        print(json.dumps({"killed": os.WIFSIGNALED(status), "whole": whole, "computed": computed}), flush=True)
        if not os.WIFSIGNALED(status):
            break
