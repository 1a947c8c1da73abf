"""release and features: a data set that may leave the building, and features of other images to go with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import Classes, Data, DryRun, NewAccount, Plan, SettingsFile, app
from dpvision.cli.options import PANELS, from_file, read, require_epsilon, takes
from dpvision.errors import ConfigError
from dpvision.settings.release import Release
from dpvision.settings.setting import class_list


@app.command
@takes(Release)
def release(
    source: Data,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(
            name=["--out", "-o"],
            group=PANELS["Output"],
            help="Folder to write, which must be new.",
            show_default="the next number in releases/",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Parameter(
            group=PANELS["Model"],
            help="Settings to start from, by name; `dpvision recipes` lists them.",
            show_default="moments",
        ),
    ] = None,
    config: SettingsFile = None,
    new_account: NewAccount = None,
    accounting: Annotated[
        Literal["sound", "paper"],
        Parameter(
            group=PANELS["Privacy"],
            help="paper: compare with the account that was published for this method, and write nothing.",
        ),
    ] = "sound",
    dry_run: DryRun = False,
    plan: Plan = False,
    **flags: Any,
) -> None:
    """Publish a private data set of features that anyone can train on, at no further privacy cost.

    The data set's ledger is charged before any noise is drawn. Defaults are those of the recipe `moments`; other
    recipes set others. What is not given is computed from public numbers.

    Example: `dpvision release digits --epsilon 1`
    """
    from dpvision.settings.recipes import release_recipe
    from dpvision.settings.release import changed
    from dpvision.settings.setting import checked

    given, stated = read(Release, flags), from_file(Release, config)
    require_epsilon(given, stated, whom="any one image")
    named = str(stated.pop("recipe", recipe or "moments"))
    if recipe not in (None, named):
        raise ConfigError(f"{config}: is of recipe {named}, and --recipe is {recipe}. Fix: leave one of them out.")
    settings = changed(release_recipe(named), checked(Release, stated, source=str(config)))
    settings = changed(settings, checked(Release, given, source="command line"))

    from dpvision.cli import plans, screen
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.statistics.release import Encoded, make, prepare, require_encoder, require_possible
    from dpvision.private.training import ranks
    from dpvision.released.folder import next_free

    ranks.start()
    prepared = prepare(source, settings)
    first = ranks.rank() == 0
    if accounting == "paper":
        from dpvision.audit.hierarchical import compare_accounts

        table = compare_accounts(prepared.config, len(prepared.data.classes))
        screen.table(table, title="the published account, for comparison")
        screen.say("comparison only: nothing was written, nothing was charged.")
        return
    accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if first:
        plans.show_release(prepared, accounts)
    out, test_key = out or next_free(), os.environ.get("DPVISION_TEST_KEY") or None
    require_possible(prepared, out, test_key, accounts)
    if plan:
        if first:
            plans.show_plan(accounts.plan(prepared.event(), prepared.config, prepared.sketch))
        return
    if dry_run:
        require_encoder(prepared)
        screen.say(f"dry run: nothing was released, nothing was charged. It would be written to {out}.")
        return
    with screen.named_bars(shown=first) as progress:
        encoded = Encoded(prepared, progress)  # by all ranks together
        if not first:
            return  # one charge, one noise
        card = make(
            prepared,
            out,
            encoded=encoded,
            test_key=test_key,
            accounts=accounts,
            progress=progress,
        )
    for name, value in (card["accuracy"] or {}).items():
        screen.say(f"test accuracy, {name}: {value:.2%}")
    if card["status"] == "private":
        screen.say(f"wrote {out}: what may leave, with card.md and README.md")
    else:
        screen.say(f"wrote {out}: {card['status']}; it must not leave")


@app.command
def features(
    folder: Annotated[Path, Parameter(help="a released folder")],
    source: Data,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help=".safetensors file to write")],
    split: Literal["train", "val", "test"] = "test",
    weights: Annotated[Path | None, Parameter(help="the encoder's public weights, where it has some")] = None,
    classes: Classes = None,
) -> None:
    """Features of other images, as those of a release are: to test on them what was learned from it.

    What it writes is as private as the images.

    Example: `dpvision features releases/1 digits --out test.safetensors`
    """
    from dpvision.cli import screen
    from dpvision.private.features.as_released import features_of
    from dpvision.released.folder import write_arrays

    if out.exists() or out.suffix != ".safetensors":
        raise ConfigError(f"{out}: must be a new file that ends in .safetensors. Fix: another --out.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}. Fix: make it first, or another --out.")
    with screen.named_bars() as progress:
        arrays = features_of(
            folder, source, split=split, weights=weights, classes=class_list(classes), progress=progress
        )
    write_arrays(out, arrays, mode=0o600)
    screen.say(f"wrote {out}: features {arrays['features'].shape} and labels, as private as the images")
