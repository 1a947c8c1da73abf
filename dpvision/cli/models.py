"""eval and predict: what a released model says."""

from __future__ import annotations

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
    json: Json = False,
) -> None:
    """Accuracy of a released model on a data set. For your eyes: no noise protects the figure.

    Example: `dpvision eval runs/first digits`
    """
    from dpvision import console
    from dpvision.inference import evaluate as measure

    result = measure(run, source, split=split, size=size)
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
