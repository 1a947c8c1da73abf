"""report, board and study: what runs look like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.errors import ConfigError


@app.command
def report(
    run: Path,
    /,
    *,
    no_examples: Annotated[
        bool, Parameter(negative="", help="without pictures of test images: examples.json is removed")
    ] = False,
) -> None:
    """Write card.md, card.json and report.html of a run anew.

    Example: `dpvision report runs/first`
    """
    from dpvision.cli import screen
    from dpvision.released.evaluation import PICTURES
    from dpvision.storage.run_folder import Run

    folder = Run(Path(os.path.abspath(run)))
    folder.config()
    if no_examples:
        (folder.folder / PICTURES).unlink(missing_ok=True)
    for path in write_report(folder):
        screen.say(f"wrote {path}")


@app.command
def board(
    *folders: Annotated[Path, Parameter(help="finished runs, or folders that hold some")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="the page to write")] = Path("board.html"),
) -> None:
    """Compare runs on one page: accuracy against epsilon, and a table that links to their reports.

    Example: `dpvision board runs --out runs/board.html`
    """
    from dpvision.cli import screen
    from dpvision.released.report.board import write

    if not folders:
        raise ConfigError("board needs at least one run. Fix: `dpvision board runs`.")
    if not out.parent.is_dir() or out.is_dir():
        raise ConfigError(f"{out}: cannot be written as a page. Fix: --out board.html, in a folder that is there.")
    out = Path(os.path.abspath(out))
    screen.say(f"wrote {out}: {write(list(folders), out):,} runs")


@app.command
def study(
    *folders: Annotated[Path, Parameter(help="runs that were trained with --study")],
    out: Annotated[
        Path | None, Parameter(name=["--out", "-o"], help="SVG file; by default in the first run's operator folder")
    ] = None,
) -> None:
    """Draw how large gradients were before clipping, run beside run. For your eyes: no noise protects it.

    Example: `dpvision train digits --epsilon 1 --study --out runs/looked`, then `dpvision study runs/looked`
    """
    from dpvision.cli import screen
    from dpvision.private.training.gradient_study import plot
    from dpvision.storage.run_folder import Run

    if not folders:
        raise ConfigError("study needs at least one run that was trained with --study.")
    looked = [Run(Path(os.path.abspath(f))) for f in folders]
    out = out or looked[0].operator / "gradients.svg"
    for name, deviation in plot(looked, out).items():
        screen.say(f"{name}: deviation over the weights {deviation:.4g}")
    screen.say(f"wrote {out} (for your eyes only)")


def write_report(run: Any) -> list[Path]:
    from dpvision.cli import screen
    from dpvision.core.ledger import home
    from dpvision.released.report import write
    from dpvision.storage.leftovers import clear

    account = account_of(run)
    if account is None and (run.folder / "ledger.jsonl").exists():
        screen.say(f"note: there is no ledger of this data in {home()}: card and report lose it. Fix: DPVISION_HOME.")
    clear(run)  # what a kill left of a tuning's trials
    return write(run, account)


def account_of(run: Any) -> Any:
    """The account of a run's data set, where there is one here."""
    from dpvision.private.accounts.accounts import read_accounts

    book = read_accounts(run.facts()).first
    return book.account() if book.exists() else None
