"""The verbs predict, eval and export, which use a trained model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dpvision.cli import screen
from dpvision.cli.app import DataSet, Device, GroupColumn, Json, Size, existing, flag, option, out_option, verb
from dpvision.cli.train import describe_measures, find_account, show_groups, write_report
from dpvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    import torch


def _in_percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


def _interval(ends: list[float] | None) -> str:
    return "none" if ends is None else f"{ends[0]:.1%} to {ends[1]:.1%}"


NOUN = {"classes": "class", "labels": "label", "grades": "grade"}
# The figures of each class that `eval` prints; the others are in --json.
SHOWN: dict[str, Callable[[Any], str]] = {
    "known": "{:,}".format,
    "images": "{:,}".format,
    "recall": _in_percent,
    "recall_interval": _interval,
    "specificity": _in_percent,
    "auroc": lambda area: "none" if area is None else f"{area:.3f}",
    "auroc_interval": lambda ends: "none" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}",
    "average_precision": lambda value: "none" if value is None else f"{value:.3f}",
}


def choose_device(name: str, precision: str = "float32") -> torch.device:
    """Return the device with this name, with deterministic arithmetic; print why `auto` falls back to the CPU."""
    from dpvision.models.device import find_device, fix_arithmetic

    device = find_device(name, report=lambda reason: print(f"dpvision: {reason}", file=sys.stderr))
    fix_arithmetic(device, precision)
    return device


@verb
def predict(
    run: Annotated[Path, existing("Folder of a run, or a .safetensors file written by `export`.")],
    images: Annotated[Path, existing("An image, a folder of images, or an .npz with test_images or images.")],
    /,
    *,
    out: Annotated[Path | None, out_option("CSV file to write.", default="standard output")] = None,
    probabilities: Annotated[bool, flag("Output", "Add one column per class with its probability.")] = False,
    device: Device = "auto",
) -> None:
    """Classify images with a trained model.

    The output has one line per image, with the columns file, class, probability and problem. For a file that cannot be
    read, the column `problem` gives the reason, and the exit code at the end is 3. Images are read in small batches, so
    their number is not limited by memory.

    Example: `dpvision predict runs/first new_photos --probabilities --out guesses.csv`
    """
    from dpvision.core import files
    from dpvision.released.model import predict as classify

    chosen = choose_device(device)
    with screen.counting("predicting") as progress:
        classify = partial(classify, run, images, probabilities=probabilities, progress=progress, device=chosen)
        if out is None:
            failed = classify(sys.stdout.write)
        else:
            with files.open_to_write(out, mode=0o644) as file:
                failed = classify(lambda line: file.write(line.encode(errors="backslashreplace")))
            screen.say(f"wrote {out}")
    if failed:
        count = "a file" if failed == 1 else f"{failed:,} files"
        raise DataError(
            f"{images}: {count} cannot be read; the column `problem` has the reason. All others were classified."
        )


@verb
def evaluate(
    run: Annotated[Path, existing("Folder of a finished run.")],
    data: DataSet,
    /,
    *,
    split: Annotated[Literal["test", "val", "train"], option("Data", "Split to test on.")] = "test",
    size: Size = None,
    group: GroupColumn = None,
    keep: Annotated[bool, flag("Output", "Add the result to the report of the run (test split only).")] = False,
    examples: Annotated[
        int, option("Output", "With --keep: show this many correct and this many wrong TEST images in the report.")
    ] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure the accuracy of a trained model.

    No noise protects these figures: if the images are private, they are not for release. With --keep, they are added to
    the report of the run, with a confusion matrix and calibration.

    Example: `dpvision eval runs/first digits`
    """
    from dpvision.released.model import evaluate as measure
    from dpvision.settings.training import Config

    if examples and not keep:
        raise ConfigError(
            "--examples shows test images in the report, which is written only with --keep. Fix: add --keep."
        )
    Config(examples=examples)  # refuses a number out of range
    chosen = choose_device(device)
    with screen.progress("evaluating"):
        result = measure(run, data, split=split, size=size, group=group, keep=keep, examples=examples, device=chosen)
    if keep:
        from dpvision.storage.run_folder import Run

        write_report(Run(Path(os.path.abspath(run))))
    if json:
        screen.as_json(result)
        return
    screen.say(
        f"accuracy {result['accuracy']:.2%} on {result['images']:,} images of {split}; {describe_measures(result)}; "
        f"{result['always']}"
    )
    if split == "train":
        screen.say("  note, not for release: these figures are exact and about the private training images.")
    columns = [key for key in SHOWN if any(key in entry for entry in result["classes"].values())]
    rows = [[name, *(SHOWN[key](entry.get(key)) for key in columns)] for name, entry in result["classes"].items()]
    screen.grid(
        [
            result["task"].removesuffix("es") if result["task"] == "classes" else result["task"][:-1],
            *(key.replace("_", " ") for key in columns),
        ],
        rows,
    )
    if result.get("groups"):
        show_groups(result["groups"], result["class_names"])
    if result["warning"]:
        screen.say(f"WARNING: {result['warning']}")


@verb
def export(
    run: Annotated[Path, existing("Folder of a finished run.")],
    /,
    *,
    to: Annotated[
        Literal["safetensors", "onnx"],
        option("Output", "File format: weights for dpvision, or a graph for any ONNX runtime."),
    ],
    out: Annotated[
        Path | None, out_option("File to write.", default="model.safetensors or model.onnx in the run folder")
    ] = None,
    force: Annotated[bool, flag("Output", "Overwrite an existing file.")] = False,
) -> None:
    """Export a trained model as a single safetensors or ONNX file.

    The file includes the classes, the input preprocessing and the privacy card, which is the entry `card` of the header
    (safetensors) or the metadata (ONNX). The ONNX graph takes images as bytes (N, height, width, channels), scales
    them itself, and returns scores and probabilities; its output is compared with that of the model before the file is
    written. A model with an operator that ONNX does not have is refused, and the error names the operator.

    Example: `dpvision export runs/first --to onnx`, or
    `dpvision export runs/first --to safetensors --out first.safetensors`
    """
    from dpvision.released.export import export as write
    from dpvision.released.export import require_free
    from dpvision.released.report import card as card_of
    from dpvision.storage.run_folder import Run

    folder = Run(Path(os.path.abspath(run)))
    folder.config()
    out = out or run / f"model.{to}"
    require_free(out, to=to, force=force)
    card = card_of(folder, find_account(folder))
    with screen.progress(f"exporting to {to}"):
        difference = write(folder.weights, card, out, to=to, force=force)
    if difference is not None:
        screen.say(f"the outputs of onnxruntime and of the model differ by at most {difference:.1g} on random images")
    if card["status"] == "private":
        screen.say(f"wrote {out}: it may be released and includes its privacy card")
    else:
        screen.say(f"wrote {out}: {card['status']}; it must not be released")
