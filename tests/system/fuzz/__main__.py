"""`python -m tests.system.fuzz ROOT` repeats the failures that a campaign stored in ROOT/faults.jsonl, and prints the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

from tests.fork_server import ForkServer
from tests.system.fuzz.campaign import Campaign


def main() -> None:
    with ForkServer() as server:
        campaign = Campaign(server, Path(sys.argv[1]))
        kept = [json.loads(line) for line in campaign.faults.read_text().splitlines()]
        for fault in kept:
            try:
                getattr(campaign, fault["what"])(Random(fault["seed"]))
                print(f"{fault['what']} {fault['seed']}: no fault now")
            except AssertionError as exc:
                print(f"{fault['what']} {fault['seed']}: {exc}")


if __name__ == "__main__":
    main()
