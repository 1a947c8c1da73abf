"""The application, and what several verbs ask for in one way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dpvision import __version__
from dpvision.cli.options import PANELS
from dpvision.settings.setting import declared
from dpvision.settings.training import Config as Settings

app = App(
    name="dpvision",
    version=__version__,
    help="Differentially private image learning: private images in, a classifier and its proof out.",
    help_epilogue="Example: `dpvision train digits --epsilon 3 --out runs/first`, then open runs/first/report.html.\n\n"
    "Exit codes: 0 done, 2 usage, 3 data, 4 refused for privacy, 5 a worker process failed, 130 interrupted. "
    "Tracebacks: `--debug`.",
    help_format="markdown",
    suppress_keyboard_interrupt=False,  # main says that it was interrupted
)
data_app = App(name="data", help="Prepare data sets.")
app.command(data_app)

_HELP = {name: of.help for name, of in declared(Settings).items()}

Data = Annotated[str, Parameter(help="digits, an .npz, an image folder, a .csv or a packed store")]
Out = Annotated[Path, Parameter(name=["--out", "-o"], help="Folder to write, new or empty.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object.", show_default=False)]
Classes = Annotated[str | None, Parameter(help=_HELP["classes"])]
Size = Annotated[int | None, Parameter(help=_HELP["size"])]
Channels = Annotated[int | None, Parameter(help=_HELP["channels"])]
SkipBroken = Annotated[bool | None, Parameter(negative="", help=_HELP["skip_broken"])]

RunFolder = Annotated[
    Path | None,
    Parameter(
        name=["--out", "-o"],
        group=PANELS["Output"],
        help="Folder to write, which must be new.",
        show_default="the next number in runs/",
    ),
]
Recipe = Annotated[str, Parameter(group=PANELS["Model"], help=_HELP["recipe"])]
SettingsFile = Annotated[
    Path | None, Parameter(group=PANELS["Model"], help="TOML file of settings; options win over it.")
]
NewAccount = Annotated[
    str | None,
    Parameter(
        group=PANELS["Privacy"],
        help="If some of these images were used before, the budget of that earlier data set is charged too. Give a "
        "reason, such as 'another hospital, nobody is in both', to count them separately; it is printed on the card.",
    ),
]
DryRun = Annotated[
    bool,
    Parameter(
        negative="",
        group=PANELS["Output"],
        show_default=False,
        help="Print the plan and stop: nothing is written, nothing is charged.",
    ),
]
Plan = Annotated[
    bool,
    Parameter(
        negative="",
        group=PANELS["Privacy"],
        show_default=False,
        help="Enter this run in the account's plan and stop: runs that are all planned before the first of them "
        "starts are composed more tightly than runs chosen one after the other.",
    ),
]
Consented = Annotated[
    bool, Parameter(negative="", help="images on an account of the ledger are public too: their owners consented since")
]
PUBLISHED = "the public part alone, or --consented if the owners of these images consented to publish them"
