"""release and features: a data set that may leave the building, and features of other images to go with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import Channels, Classes, Data, NewAccount, Size, SkipBroken, app, class_list
from dpvision.errors import ConfigError


@app.command
def release(
    source: Data,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(name=["--out", "-o"], help="folder of the release, new; by default the next in releases/"),
    ] = None,
    epsilon: Annotated[float | None, Parameter(help="how much may be told; 1 is strong, 8 is weak")] = None,
    delta: Annotated[float | None, Parameter(help="chance that it is more; by default 1e-5")] = None,
    recipe: Annotated[str | None, Parameter(help="see `dpvision recipes`; by default moments")] = None,
    config: Annotated[Path | None, Parameter(help="TOML file of settings; flags win over it")] = None,
    encoder: Annotated[str | None, Parameter(help="pixels, scatter-linear, patches, or a model with --weights")] = None,
    weights: Annotated[Path | None, Parameter(help="the encoder's public weights, a .safetensors file")] = None,
    rank: Annotated[int | None, Parameter(help="directions kept by the public map; 0 for features as they are")] = None,
    bound: Annotated[float | None, Parameter(help="with --rank 0: longer rows are shortened to it")] = None,
    n: Annotated[int | None, Parameter(help="declare the public number of images")] = None,
    classes: Classes = None,
    class_counts: Annotated[str | None, Parameter(help="declare how many images each class has: 500,80,...")] = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    rows: Annotated[int | None, Parameter(help="released rows; by default n, of moments 20,000 at least")] = None,
    sampling: Annotated[
        Literal["poisson", "hierarchical", "class-schedule"] | None,
        Parameter(help="how records get into a mixture; by default as in the recipe"),
    ] = None,
    degree: Annotated[float | None, Parameter(help="expected records in a mixture; by default the best")] = None,
    drawn: Annotated[float | None, Parameter(help="expected classes in a mixture, of hierarchical sampling")] = None,
    balance: Annotated[float | None, Parameter(help="lambda: noise of labels over that of features")] = None,
    alpha: Annotated[float | None, Parameter(help="random weights in a mixture, with this parameter")] = None,
    most_weight: Annotated[float | None, Parameter(help="with --alpha: they are cut at so many times 1/degree")] = None,
    share: Annotated[float | None, Parameter(help="of the guarantee, for the second moment in moments; 0.25")] = None,
    counts_share: Annotated[float | None, Parameter(help="and for the class counts; 0.05")] = None,
    seed: Annotated[int | None, Parameter(help="public coins only; noise never has a seed")] = None,
    licence: Annotated[str | None, Parameter(help="under which others may use it; written on the card")] = None,
    budget: Annotated[
        float | None, Parameter(help="the data set's epsilon over all runs, if this is its first")
    ] = None,
    new_account: NewAccount = None,
    accounting: Annotated[
        Literal["sound", "paper"], Parameter(help="paper: compare the published account, and write nothing")
    ] = "sound",
    dry_run: Annotated[
        bool, Parameter(negative="", help="check all but the features, print the plan and stop")
    ] = False,
    plan: Annotated[
        bool,
        Parameter(
            negative="",
            help="enter this run in the account's plan and stop: runs that are all planned before the first of them "
            "starts are composed more tightly than runs chosen one after the other",
        ),
    ] = False,
) -> None:
    """Release a data set of noisy features, once, on which everyone may train for ever.

    The data set's ledger is charged before any noise is drawn. What is not given is computed from public numbers.

    Example: `dpvision release digits --epsilon 1`
    """
    flags = {k: v for k, v in locals().items() if k in _FLAGS and v is not None}
    from dpvision.settings.recipes import release_recipe
    from dpvision.settings.release import Release, changed
    from dpvision.settings.training import checked, read_toml

    stated = {} if config is None else read_toml(config)
    if "weights" in stated and config is not None:
        stated["weights"] = os.path.abspath(config.parent / str(stated["weights"]))
    if epsilon is None and "epsilon" not in stated:
        raise ConfigError(
            "--epsilon is missing: how much may be told about any one image is a decision, so it has no default. "
            "Usual: 1 for a strong guarantee, 3 for a sound one, 8 for a weak one."
        )
    for name, read in (("classes", class_list), ("class_counts", _numbers), ("weights", os.path.abspath)):
        if name in flags:
            flags[name] = read(flags[name])
    named = str(stated.pop("recipe", recipe or "moments"))
    if recipe not in (None, named):
        raise ConfigError(f"{config}: is of recipe {named}, and --recipe is {recipe}. Fix: leave one of them out.")
    settings = changed(release_recipe(named), checked(Release, stated, source=str(config)))
    settings = changed(settings, checked(Release, flags, source="command line"))

    from dpvision.cli import screen
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.statistics.release import Encoded, make, prepare, require_encoder, require_possible
    from dpvision.private.training import ranks
    from dpvision.released.folder import next_free

    ranks.start()
    prepared = prepare(source, settings)
    first = ranks.rank() == 0
    if accounting == "paper":
        from dpvision.audit.papers_account import compare

        table = compare(prepared.config, len(prepared.data.classes))
        screen.table(table, title="the published account, for comparison")
        screen.say("comparison only: nothing was written, nothing was charged.")
        return
    accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if first:
        screen.show_release(prepared, accounts)
    out, test_key = out or next_free(), os.environ.get("DPVISION_TEST_KEY") or None
    require_possible(prepared, out, test_key, accounts)
    if plan:
        if first:
            screen.show_plan(accounts.plan(prepared.event(), prepared.config, prepared.sketch))
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


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"class-counts is {text!r}: it must be whole numbers with commas between.") from None


_FLAGS: frozenset[str] = frozenset(release.__annotations__) - {
    "source",
    "out",
    "recipe",
    "config",
    "accounting",
    "new_account",
    "dry_run",
    "plan",
}


__all__: list[Any] = ["features", "release"]
