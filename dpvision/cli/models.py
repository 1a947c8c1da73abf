"""eval and predict: what a released model says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import Data, Json, Size, app


@app.command(name="eval")
def evaluate(
    run: Path,
    source: Data,
    /,
    *,
    split: Literal["test", "val", "train"] = "test",
    size: Size = None,
    keep: Annotated[bool, Parameter(negative="", help="keep what is found on the test split for the report")] = False,
    examples: Annotated[
        int, Parameter(help="with --keep: so many test images named right, and as many wrong, ON THE REPORT")
    ] = 0,
    json: Json = False,
) -> None:
    """Accuracy of a released model on a data set. For your eyes: no noise protects the figure.

    With --keep it is on the run's report, with confusions and calibration. No noise protects test images there either.

    Example: `dpvision eval runs/first digits`
    """
    from dpvision import console
    from dpvision.config import Config
    from dpvision.errors import ConfigError
    from dpvision.inference import evaluate as measure

    if examples and not keep:
        raise ConfigError("--examples puts test images on the report. Fix: --keep too, if that is meant.")
    Config(examples=examples)  # refuses what is out of range
    result = measure(run, source, split=split, size=size, keep=keep, examples=examples)
    if keep:
        from dpvision.cli.reporting import write_report
        from dpvision.runs import Run

        write_report(Run(Path(os.path.abspath(run))))
    if json:
        console.as_json(result)
    else:
        console.say(
            f"accuracy {result['accuracy']:.2%} on {result['images']:,} images of {split}; mean over the classes "
            f"{result['balanced_accuracy']:.2%}; always answering {result['majority_class']!r} would give "
            f"{result['majority_share']:.2%}"
        )
        rows = [[k, f"{v['images']:,}", f"{v['recall']:.1%}"] for k, v in result["classes"].items()]
        console.grid(["class", "images", "found"], rows)


@app.command
def predict(
    run: Path,
    images: Annotated[Path, Parameter(help="an image, a folder of images, or an .npz")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="CSV file; by default the terminal")] = None,
) -> None:
    """Classify images with a released model: file, class, probability.

    Example: `dpvision predict runs/first photos/ --out guesses.csv`
    """
    from dpvision import console
    from dpvision.inference import predict as guess

    with console.counting_bar("predicting") as progress:
        text = guess(run, images, progress=progress)
    if out is None:
        console.say(text.rstrip("\n"))
    else:
        from dpvision import atomic

        atomic.write(out, text, mode=0o644)
        console.say(f"wrote {out}")
