"""report and study: what a run looks like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.errors import ConfigError


@app.command
def report(run: Path, /) -> None:
    """Write card.md, card.json and report.html of a run anew.

    Example: `dpvision report runs/first`
    """
    from dpvision import console
    from dpvision.runs import Run

    folder = Run(Path(os.path.abspath(run)))
    folder.config()
    for path in write_report(folder):
        console.say(f"wrote {path}")


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
    from dpvision import console
    from dpvision.runs import Run
    from dpvision.study import plot

    if not folders:
        raise ConfigError("study needs at least one run that was trained with --study.")
    looked = [Run(Path(os.path.abspath(f))) for f in folders]
    out = out or looked[0].operator / "gradients.svg"
    for name, deviation in plot(looked, out).items():
        console.say(f"{name}: deviation over the weights {deviation:.4g}")
    console.say(f"wrote {out} (for your eyes only)")


def write_report(run: Any) -> list[Path]:
    from dpvision.report import write

    return write(run, account_of(run))


def account_of(run: Any) -> Any:
    """The account of a run's data set, where there is one here."""
    from dpvision.privacy.ledger import ledger_of
    from dpvision.runs import fact

    book = ledger_of(fact(run.facts(), "fingerprint", str))
    return book.account() if book.exists() else None
