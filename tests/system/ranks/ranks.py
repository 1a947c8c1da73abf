"""Several ranks on this machine: each in its own process, connected by torchrun's variables.

Processes are forks of one that has imported everything, but for modules of the stand-in, which must be imported first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fork_server import Forked
from tests.system.runs.commands import QUIET

Processes = Sequence[subprocess.Popen[str] | Forked]
Result = tuple[int, str, str]  # exit code, output, errors


def start(
    *words: str | Path,
    ranks: int,
    home: Path,
    key: str | None = None,
    module: str = "dpvision",
    last: Sequence[str | Path] = (),
    last_home: Path | None = None,
) -> Processes:
    """`python -m module words` on every rank; the last rank may get other words and another home."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    environment = {k: v for k, v in os.environ.items() if k != "DPVISION_TEST_KEY"} | QUIET | meeting
    environment |= {"DPVISION_TEST_KEY": key} if key else {}
    processes: list[subprocess.Popen[str] | Forked] = []
    for rank in range(ranks):
        odd = rank == ranks - 1
        place, given = last_home if odd and last_home else home, last if odd and last else words
        if module != "tests.standin":
            processes.append(Forked(module, *given, home=place, key=key, RANK=str(rank), **meeting))
            continue
        own = {"RANK": str(rank), "DPVISION_HOME": str(place)}
        command, pipe = [sys.executable, "-m", module, *map(str, given)], subprocess.PIPE
        processes.append(subprocess.Popen(command, env=environment | own, text=True, stdout=pipe, stderr=pipe))
    return processes


def finish(processes: Processes, *, seconds: float = 120) -> list[Result]:
    """What became of each rank; none may take longer."""
    try:
        output = [process.communicate(timeout=seconds) for process in processes]
        return [(process.returncode, out, err) for process, (out, err) in zip(processes, output, strict=True)]
    finally:
        for process in processes:
            process.kill()
