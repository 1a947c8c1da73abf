"""synth: images from words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dpvision.cli.app import app


@app.command
def synth(
    *,
    model: Annotated[str, Parameter(help="folder of a text-to-image pipeline (diffusers), or its name on the hub")],
    classes: Annotated[str, Parameter(help="names with commas between")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="image folder, for `train --synthetic`")],
    prompts: Annotated[str, Parameter(help="what is asked for; {class} is the class")] = "a photo of a {class}",
    count: Annotated[int, Parameter(help="images of each class")] = 1000,
    size: Annotated[int, Parameter(help="pixels a side")] = 32,
    steps: Annotated[int, Parameter(help="steps of the sampler")] = 25,
    guidance: float = 7.5,
    seed: int = 0,
) -> None:
    """Images from words, by a public text-to-image model. Nothing private is looked at.

    Example: `dpvision synth --model sd-turbo/ --classes cat,dog --prompts "a photo of a {class}" --out synthetic`
    """
    from dpvision import console
    from dpvision.synthesis.prompts import sample

    names = [name.strip() for name in classes.split(",") if name.strip()]
    with console.counting_bar("synthesising") as progress:
        sample(
            model,
            out,
            classes=names,
            prompt=prompts,
            count=count,
            size=size,
            steps=steps,
            guidance=guidance,
            seed=seed,
            progress=progress,
        )
    console.say(f"wrote {out}; use it with `dpvision train DATA --recipe dp-mix-diff --synthetic {out}`")
