"""Run one verb; errors become one message and an exit code."""

from __future__ import annotations

import io
import os
import sys

from cyclopts import CycloptsError

from dpvision.cli.app import app
from dpvision.errors import DPVisionError


def main() -> None:
    """Run one verb; errors become one message and an exit code."""
    debug = "--debug" in sys.argv[1:]
    words = [w for w in sys.argv[1:] if w != "--debug"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as exc:
        _fail(str(exc), 2, debug=debug)
    except DPVisionError as exc:
        _fail(str(exc), exc.exit_code, debug=debug)
    except KeyboardInterrupt:
        _fail("interrupted.", 130, debug=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as exc:
        _fail(f"{exc.filename or 'the file system'}: {exc.strerror or exc}.", 3, debug=debug)
    except (MemoryError, RuntimeError) as exc:
        if isinstance(exc, RuntimeError) and "DefaultCPUAllocator" not in str(exc):
            raise
        _fail("this takes more memory than there is. Fix: smaller numbers, or a machine with more.", 3, debug=debug)


def _fail(message: str, code: int, *, debug: bool) -> None:
    if debug:
        raise
    if "WORLD_SIZE" not in os.environ:
        print(f"dpvision: {message}", file=sys.stderr)
    elif _first_to_tell():
        print(f"dpvision (rank {os.environ.get('RANK', '0')}): {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _first_to_tell() -> bool:
    """Of several ranks that stop, one tells why."""
    from dpvision.private.training import ranks

    return ranks.first_to_tell()
