"""A process that holds one network in one mode and makes a pass over its images whenever it reads a line.

`python -m benchmarks.engine_worker SPECIFICATION` with a JSON object. It first prints {"resident": bytes}, then one
JSON object for each line read; when the mode cannot treat the network, {"skip": reason}. With a list of `candidates`
(layout, cut) in the specification, a line makes it try them all and print the fastest.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.engine_networks import load
from benchmarks.engine_peers import Pass, ready
from dpvision.models.device import keep_freed_memory

SHOWN = 2000  # entries of the clipped sum sent to the parent for comparison


def measured(once: Pass) -> tuple[dict[str, float], list[torch.Tensor]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = once()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, result


def passes(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What to say before the first pass, then after each."""
    model, images, targets = load(spec["network"], spec["units"] * spec["views"])
    once = ready(spec["mode"], model, images, targets, views=spec["views"], cut=spec["cut"], layout=spec["layout"])
    del images
    resident = _resident()
    yield {"resident": resident}
    first = True
    while True:
        times, result = measured(once)
        answer = {**times, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        yield {**answer, "shown": _shown(result)} if first else answer
        first = False
        del result


def trials(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Nothing, then the layout and cut with the least time per image among the candidates that do not fail."""
    yield {}
    times: list[tuple[float, str, int]] = []
    failure = ""
    count, views = spec["units"] * spec["views"], spec["views"]
    for number, (layout, cut) in enumerate(spec["candidates"]):
        model, images, targets = load(spec["network"], min(count, max(spec["sample"], cut)))
        try:
            once = ready(spec["mode"], model, images, targets, views=views, cut=cut, layout=layout)
            if number == 0:
                once()
            wall = min(measured(once)[0]["wall"] for _ in range(spec["repeats"]))
        except Exception as error:
            failure = _reason(error)
        else:
            times.append((wall / len(targets), layout, cut))
    yield {"layout": min(times)[1], "cut": min(times)[2]} if times else {"skip": failure}


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _shown(result: list[torch.Tensor]) -> list[float]:
    """Entries at even distances, the same for every mode."""
    flat = torch.cat([t.detach().flatten() for t in result])
    return flat[:: max(1, len(flat) // SHOWN)].tolist()


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def main(spec: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    torch.set_num_threads(spec["threads"])
    keep_freed_memory()  # ours asks for it; every mode gets it
    warnings.simplefilter("ignore")
    answers = trials(spec) if "candidates" in spec else passes(spec)
    try:
        say(next(answers))
        for _ in sys.stdin:
            say(next(answers))
    except Exception as error:
        say({"skip": _reason(error)})


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=channel, flush=True)

    main(json.loads(sys.argv[1]), say)
