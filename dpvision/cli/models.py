"""eval and predict: what a released model says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import Data, Json, Size, app
from dpvision.errors import DataError


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
    from dpvision.cli import screen
    from dpvision.errors import ConfigError
    from dpvision.released.model import evaluate as measure
    from dpvision.settings.training import Config

    if examples and not keep:
        raise ConfigError("--examples puts test images on the report. Fix: --keep too, if that is meant.")
    Config(examples=examples)  # refuses what is out of range
    result = measure(run, source, split=split, size=size, keep=keep, examples=examples)
    if keep:
        from dpvision.cli.reporting import write_report
        from dpvision.storage.run_folder import Run

        write_report(Run(Path(os.path.abspath(run))))
    if json:
        screen.as_json(result)
    else:
        screen.say(
            f"accuracy {result['accuracy']:.2%} on {result['images']:,} images of {split}; mean over the classes "
            f"{result['balanced_accuracy']:.2%}; always answering {result['majority_class']!r} would give "
            f"{result['majority_share']:.2%}"
        )
        rows = [[k, f"{v['images']:,}", f"{v['recall']:.1%}"] for k, v in result["classes"].items()]
        screen.grid(["class", "images", "found"], rows)


@app.command
def predict(
    run: Annotated[Path, Parameter(help="the folder of a run, or a .safetensors file of `export`")],
    images: Annotated[Path, Parameter(help="an image, a folder of images, or an .npz with test_images or images")],
    /,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"], help="CSV file; by default the terminal")] = None,
    probabilities: Annotated[bool, Parameter(negative="", help="a column for each class, too")] = False,
) -> None:
    """Classify images with a released model: file, class, probability, problem.

    A file that cannot be read has a line that says why, and the exit code is 3 at the end. Images are read a few at a
    time, so there may be any number of them.

    Example: `dpvision predict runs/first new_photos --probabilities --out guesses.csv`
    """
    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.released.model import predict as guess

    with screen.counting_bar("predicting") as progress:
        if out is None:
            failed = guess(run, images, sys.stdout.write, probabilities=probabilities, progress=progress)
        else:
            with files.writing(out, mode=0o644) as file:
                failed = guess(
                    run,
                    images,
                    lambda line: file.write(line.encode(errors="backslashreplace")),
                    probabilities=probabilities,
                    progress=progress,
                )
            screen.say(f"wrote {out}")
    if failed:
        told = "a file" if failed == 1 else f"{failed:,} files"
        raise DataError(f"{images}: {told} cannot be read; the column problem says why. All others are predicted.")
