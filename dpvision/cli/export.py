"""export: a released network as one file for other people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.cli.reporting import account_of


@app.command
def export(
    run: Annotated[Path, Parameter(help="the folder of a finished run")],
    /,
    *,
    to: Annotated[
        Literal["safetensors", "onnx"], Parameter(help="weights for dpvision, or a graph for any ONNX runtime")
    ],
    out: Annotated[Path | None, Parameter(name=["--out", "-o"], help="file; by default model.TO in the run")] = None,
    force: Annotated[bool, Parameter(negative="", help="write over a file that is there")] = False,
) -> None:
    """One file with the released network, its classes, the preparation of its input and its privacy card.

    ONNX takes images as bytes (N, height, width, channels), scales them inside, and gives scores and probabilities; it
    is compared with the network before it gets its name. The card is the entry `card` in the header (safetensors) or
    the metadata (ONNX). What cannot become a graph is refused by the operator's name.

    Example: `dpvision export runs/first --to onnx`, or
    `dpvision export runs/first --to safetensors --out first.safetensors`
    """
    from dpvision.cli import screen
    from dpvision.released.export import export as write
    from dpvision.released.export import require_free
    from dpvision.released.report import card
    from dpvision.storage.run_folder import Run

    folder = Run(Path(os.path.abspath(run)))
    folder.config()
    out = out or run / f"model.{to}"
    require_free(out, to=to, force=force)
    made = card(folder, account_of(folder))
    apart = write(folder.weights, made, out, to=to, force=force)
    if apart is not None:
        screen.say(f"onnxruntime and the network differ by {apart:.1g} at most, on random images")
    if made["status"] == "private":
        screen.say(f"wrote {out}: it may leave, with its card inside")
    else:
        screen.say(f"wrote {out}: {made['status']}; it must not leave")
