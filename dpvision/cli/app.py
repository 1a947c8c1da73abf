"""The application: its verbs in groups, how it starts, and how errors become one message and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import App, CycloptsError, Group, Parameter

from dpvision import __version__
from dpvision.errors import DPVisionError

# The verbs as `dpvision --help` shows them.
VERBS = {
    "Use": ("train", "resume", "predict", "eval", "export", "release", "features"),
    "Data": ("check", "data", "ledger", "plan"),
    "Public data": ("images", "pretrain", "synth", "warm"),
    "Evidence": ("audit", "report", "board", "tune", "geometry", "study", "recipes"),
    "Help": ("completion",),
}
_GROUPS = {name: Group(name, sort_key=place) for place, name in enumerate(VERBS)}
WELCOME = """\
dpvision trains image classifiers with differential privacy: you get a model and
a proof of how little it reveals about any one image. Three commands to start:

  dpvision check digits                                what is in a data set
  dpvision train digits --epsilon 3 --out runs/first   train a private classifier
  dpvision report runs/first                           write its report and card

`digits` is built in. In its place: a folder of images (train/CLASS/x.png), an
.npz or a .csv. `dpvision --help` lists all commands, and `dpvision train --help`
the options of one.
"""

app = App(
    name="dpvision",
    version=__version__,
    help="Train on private images: a model, and a proof of how little it reveals about any one of them.",
    help_epilogue="Start with `dpvision train digits --epsilon 3 --out runs/first`, then open runs/first/report.html. "
    "The options of a command: `dpvision train --help`.\n\n"
    "Exit codes: 0 done, 2 wrong usage, 3 unusable data, 4 refused for privacy, 5 a worker process failed, "
    "130 interrupted. `--debug` shows tracebacks.",
    help_format="markdown",
    group_commands=_GROUPS["Help"],
    suppress_keyboard_interrupt=False,  # `main` reports it
)

Function = TypeVar("Function", bound=Callable[..., None])


def verb(function: Function) -> Function:
    """Register a function as a verb, in its group of the help page."""
    app.command(function, **_place(function.__name__))
    return function


def verb_with_parts(name: str, text: str | None = None) -> App:
    """Register a verb that has verbs of its own, such as `data pack`."""
    place = _place(name)
    parts = App(help=text, group_commands="Commands", **place)
    app.command(parts)
    return parts


def _place(name: str) -> dict[str, Any]:
    """Name, group and place in the group of a verb; the epilogue of the whole application is not repeated."""
    name = {"evaluate": "eval"}.get(name, name)
    group = next(group for group, names in VERBS.items() if name in names)
    return {"name": name, "group": _GROUPS[group], "sort_key": VERBS[group].index(name), "help_epilogue": ""}


@verb
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to complete in.")],
    /,
) -> None:
    """Print a script that completes verbs and options in your shell.

    To install it, write the output where the shell looks for it: for bash
    `~/.local/share/bash-completion/completions/dpvision`, for fish `~/.config/fish/completions/dpvision.fish`, for zsh
    a file `_dpvision` in a folder of `$fpath`.

    Example: `dpvision completion bash`
    """
    print(app.generate_completion(shell=shell))


def main() -> None:
    """Run one verb; errors become one message and an exit code."""
    debug = "--debug" in sys.argv[1:]
    words = [w for w in sys.argv[1:] if w != "--debug"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be text
    try:
        if words:
            app(words, exit_on_error=False, print_error=False)
        else:
            print(WELCOME, end="", flush=True)
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
    elif _is_first_to_stop():
        print(f"dpvision (rank {os.environ.get('RANK', '0')}): {message}", file=sys.stderr, flush=True)
    sys.exit(code)


def _is_first_to_stop() -> bool:
    """Whether this is the first of several worker processes that stop: one of them reports why."""
    from dpvision.private.training import ranks

    return ranks.is_first_to_report()
