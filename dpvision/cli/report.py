"""report and board: runs on pages for other people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import flag, out_option
from dpvision.errors import ConfigError


@verb
def report(
    run: Annotated[Path, Parameter(help="Folder of a finished run or release.")],
    /,
    *,
    no_examples: Annotated[
        bool, flag("Output", "Leave out pictures of test images; examples.json is removed.")
    ] = False,
) -> None:
    """Regenerate the report and privacy card of a run or a release.

    These are report.html, card.md and card.json in its folder.

    Example: `dpvision report runs/first`, or `dpvision report releases/1`
    """
    from dpvision.cli import screen
    from dpvision.released.evaluation import EXAMPLES
    from dpvision.storage.run_folder import Run

    place = Path(os.path.abspath(run))
    if (place / "schema.json").exists():
        from dpvision.released.folder import read_release
        from dpvision.released.report import rewrite_release

        if no_examples:
            raise ConfigError("--no-examples: a release has no pictures of test images. Fix: leave it out.")
        written = rewrite_release(read_release(place))
    else:
        folder = Run(place)
        folder.config()
        if no_examples:
            (folder.folder / EXAMPLES).unlink(missing_ok=True)
        written = write_report(folder)
    for path in written:
        screen.say(f"wrote {path}")


@verb
def board(
    *folders: Annotated[Path, Parameter(help="Finished runs, or folders that contain some.")],
    out: Annotated[Path, out_option("Page to write.")] = Path("board.html"),
) -> None:
    """Compare runs on one page.

    It plots accuracy against epsilon, and links to the reports in a table.

    Example: `dpvision board runs --out runs/board.html`
    """
    from dpvision.cli import screen
    from dpvision.released.report.board import write

    if not folders:
        raise ConfigError("board needs at least one run. Fix: `dpvision board runs`.")
    if not out.parent.is_dir() or out.is_dir():
        raise ConfigError(f"{out}: cannot be written as a page. Fix: --out board.html, in a folder that exists.")
    out = Path(os.path.abspath(out))
    screen.say(f"wrote {out}: {write(list(folders), out):,} runs")


def write_report(run: Any) -> list[Path]:
    """Write the report and cards of a run, with the account of its data set if that is on this machine."""
    from dpvision.cli import screen
    from dpvision.released.report import write
    from dpvision.storage.home import home
    from dpvision.storage.leftovers import clear

    account = account_of(run)
    if account is None and (run.folder / "ledger.jsonl").exists():
        screen.say(
            f"note: no ledger of this data set is in {home()}, so card and report lose it. Fix: set DPVISION_HOME."
        )
    clear(run)  # trials that a killed tuning left behind
    return write(run, account)


def account_of(run: Any) -> Any:
    """The account of a run's data set, or None if it is not on this machine."""
    from dpvision.private.accounts.accounts import read_accounts

    book = read_accounts(run.facts()).first
    return book.account() if book.exists() else None
