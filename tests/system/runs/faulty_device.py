"""Run dpvision on a stand-in with extra options: python -m tests.system.runs.faulty_device by_place=1e-6 train ..."""

from __future__ import annotations

import runpy
import sys

from tests.standin.options import parse_options, set_options

if __name__ == "__main__":
    set_options(parse_options(sys.argv.pop(1)))
    runpy.run_module("dpvision", run_name="__main__", alter_sys=True)
