"""Run a module in a process whose accelerator is the stand-in: python -m tests.standin -m MODULE [ARGUMENTS].

STANDIN="bits=10,late=1" python -m tests.standin -m dpvision train data.npz --device standin
torchrun --nproc-per-node 2 -m tests.standin -m dpvision train data.npz --device auto
"""

from __future__ import annotations

import os
import runpy
import sys

from tests.standin import module
from tests.standin.options import parse_options, set_options


def main() -> None:
    """Set the options, and run the module as python -m would."""
    if len(sys.argv) < 3 or sys.argv[1] != "-m":
        raise SystemExit("usage: python -m tests.standin -m MODULE [ARGUMENTS]")
    try:
        set_options(parse_options(os.environ.get("STANDIN", "")))
    except ValueError as exc:
        raise SystemExit(f"STANDIN: {exc}") from None
    module.available = True
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
