"""images: what random processes draw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dpvision.cli.app import app


@app.command
def images(
    process: Annotated[str | None, Parameter(help="name of a random process; without one they are listed")] = None,
    /,
    *,
    count: Annotated[int, Parameter(help="how many images")] = 96,
    size: Annotated[int, Parameter(help="pixels a side")] = 64,
    seed: int = 0,
    workers: Annotated[int, Parameter(help="processor cores")] = 1,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"], help="folder; by default the process's name")] = None,
) -> None:
    """Images that no camera took: drawn by a random process, with a contact sheet to look at.

    Example: `dpvision images dead-leaves-mixed --count 1000 --out leaves`
    """
    from dpvision.cli import screen
    from dpvision.public.random import PROCESSES
    from dpvision.public.random.gallery import write_gallery

    if process is None:
        what = [[name, (draws.__doc__ or "").split("\n")[0]] for name, draws in PROCESSES.items()]
        screen.grid(["process", "what"], what)
        return
    place = out or Path(process)
    with screen.counting_bar("drawing") as progress:
        write_gallery(process, place, count=count, side=size, seed=seed, workers=workers, progress=progress)
    screen.say(f"wrote {place}; look at {place / 'contact_sheet.png'}")
