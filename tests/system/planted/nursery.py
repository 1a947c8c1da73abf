"""A process in which bugs are planted: libraries are imported once, then each question is answered in a fork of it.

A question is a line of JSON, {"bug": name or null, "checks": names or null, "first": ..., "seeds": [...]}; the answer
is a line too: {"alarms": {check: what it found}, "seconds": of processor time}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class Nursery:
    """The process, to be asked."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.planted.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def ask(self, bug: str | None, **question: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"bug": bug, **question}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process in which bugs are planted has ended")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """In a fork: plant, import, check."""
    from tests.system.planted.bugs import BY_NAME
    from tests.system.planted.planting import plant

    start = time.process_time()
    if question["bug"] is not None:
        plant(BY_NAME[question["bug"]].edits)
    import torch

    torch.set_num_threads(1)
    try:
        from tests.system.planted.suite import CHECKS, alarms
    except Exception as error:
        return {"alarms": {"import": [f"{type(error).__name__}: {error}"]}, "seconds": time.process_time() - start}
    names = tuple(question.get("checks") or CHECKS)
    results: dict[str, list[str]] = {}
    for seed in question.get("seeds") or [0]:
        results.update(alarms(names, seed=seed, first=bool(question.get("first"))))
        if results and question.get("first"):
            break
    return {"alarms": results, "seconds": time.process_time() - start}


def _serve() -> None:
    warnings.simplefilter("ignore")
    import dp_accounting.pld.privacy_loss_distribution
    import scipy.stats
    import sklearn.base
    import torch

    assert dp_accounting and scipy.stats and sklearn.base and torch
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            code = 1
            try:
                with os.fdopen(writing, "w") as out:
                    out.write(json.dumps(_answer(json.loads(line))))
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        print(text or '{"alarms": {"nursery": ["it broke"]}, "seconds": 0}', flush=True)


if __name__ == "__main__":
    _serve()
