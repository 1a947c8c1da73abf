"""The application, and what several verbs ask for in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dpvision import __version__

app = App(
    name="dpvision",
    version=__version__,
    help="Differentially private image learning: private images in, a classifier and its proof out.",
    help_epilogue="Example: `dpvision train digits --epsilon 3 --out runs/first`, then open runs/first/report.html.\n\n"
    "Exit codes: 0 done, 2 usage, 3 data, 4 refused for privacy, 5 a rank was lost, 130 interrupted. "
    "Tracebacks: `--debug`.",
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # main says that it was interrupted
)
data_app = App(name="data", help="Prepare data sets.")
app.command(data_app)

Data = Annotated[str, Parameter(help="digits, an .npz, an image folder, a .csv or a packed store")]
Out = Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the run, new or empty")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="print one JSON object")]
Classes = Annotated[str | None, Parameter(help="declare the classes: a number, or names with commas between")]
Size = Annotated[int | None, Parameter(help="resize images to this many pixels a side")]
Channels = Annotated[int | None, Parameter(help="declare the channels: 1 for gray, 3 for colour")]
ClipStyle = Literal["flat", "automatic", "per-layer"]
SkipBroken = Annotated[bool | None, Parameter(negative="", help="leave out images that can not be read")]

NewAccount = Annotated[
    str | None,
    Parameter(
        help="If some of these images were used before, the budget of that earlier data set is charged too. Give a "
        "reason, such as 'another hospital, nobody is in both', to count them separately; it is printed on the card."
    ),
]
Consented = Annotated[
    bool, Parameter(negative="", help="images on an account of the ledger are public too: their owners consented since")
]
PUBLISHED = "the public part alone, or --consented if the owners of these images consented to publish them"


def class_list(text: str | None) -> int | list[str] | None:
    if text is None:
        return None
    return int(text) if text.isascii() and text.isdigit() else word_list(text)


def word_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    """The settings among a verb's arguments that were given: they have the names that they have in Config."""
    from dpvision.settings.training import SETTINGS

    return {k: v for k, v in arguments.items() if k in SETTINGS and v is not None}
