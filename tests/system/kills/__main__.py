"""Count kills: `python -m tests.system.kills --kills 25` kills every long verb 25 times and prints a line for each."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fork_server import ForkServer
from tests.system.kills.killing import kill_until_done, unbroken
from tests.system.kills.verbs import VERBS, World, supplied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of each verb, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="verbs whose name has this in it")
    asked = parser.parse_args()
    total, faults = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder, ForkServer() as server:
        place = Path(folder).resolve()
        supplies = supplied(server, place)
        for number, verb in enumerate(v for v in VERBS if asked.only in v.name):
            began, rng = time.monotonic(), random.Random(asked.seed * 1000 + number)
            whole = unbroken(server, verb, World(place / f"unbroken-{number}", supplies))
            try:
                tally = kill_until_done(server, verb, supplies, whole, kills=asked.kills, rng=rng)
            except AssertionError as exc:
                faults += 1
                print(f"FAULT {verb.name}: {exc}", flush=True)
                continue
            total += tally.kills
            counts = ", ".join(f"{count} of {name}" for name, count in tally.kills.items())
            print(
                f"{verb.name}: {counts}; {tally.ends} times to the same end, {whole.changes} changes to the disk, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"{sum(total.values())} kills, {faults} faults: {dict(total)}")
    raise SystemExit(faults > 0)


if __name__ == "__main__":
    main()
