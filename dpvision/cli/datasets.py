"""check, data pack, data split and ledger: what is there, in what parts, and what was spent on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import Channels, Classes, Data, Json, Size, SkipBroken, app, data_app
from dpvision.settings.setting import class_list


@app.command
def check(source: Data, /, *, classes: Classes = None, size: Size = None, json: Json = False) -> None:
    """Count, and list broken files. For your eyes: no noise protects what it prints.

    Example: `dpvision check digits`
    """
    from dpvision.cli import screen
    from dpvision.data import check as look

    findings = look(source, classes=class_list(classes), size=size)
    (screen.as_json if json else screen.show_findings)(screen.findings_json(findings))
    if findings.broken or findings.problems:
        sys.exit(3)


@data_app.command
def pack(
    source: Data,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the store, new")],
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
) -> None:
    """Pack a data set into a memory-mapped store, for data larger than memory.

    Example: `dpvision data pack photos --out photos.pack`
    """
    from dpvision.cli import screen
    from dpvision.data import pack as pack_into
    from dpvision.public import provenance

    with screen.counting_bar("packing") as progress:
        made = pack_into(
            source,
            out,
            classes=class_list(classes),
            size=size,
            channels=channels,
            skip_broken=bool(skip_broken),
            progress=progress,
        )
    provenance.pass_on(source, made)
    screen.say(f"wrote {made}; use it wherever a data set is asked for")


@data_app.command
def split(
    source: Data,
    /,
    *,
    public: Annotated[int, Parameter(help="how many images are public; equally many of each class")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the parts, new or empty")],
    seed: Annotated[int, Parameter(help="which images are public")] = 0,
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
) -> None:
    """Cut the images to train on into a public part, whose owners consented, and the private rest.

    Writes public.npz, private.npz (with the test images as they were) and split.json. Where persons are known, each is
    wholly in one part. The private part is a data set of its own, with a ledger of its own.

    Example: `dpvision data split cifar10.npz --public 2000 --out parts`
    """
    from dataclasses import replace

    from dpvision.cli import screen
    from dpvision.data import fingerprint, identify, load
    from dpvision.public import provenance
    from dpvision.public.split import split as cut

    data = load(source, classes=class_list(classes), size=size, channels=channels, skip_broken=bool(skip_broken))
    screen.show_parts(cut(data, out, public=public, seed=seed, digest=lambda part: identify(part)[1]), out)
    for part in ("public", "private"):
        provenance.pass_on(source, out / f"{part}.npz")
    if fingerprint(replace(data.train, originals=None)) != fingerprint(data.train):
        screen.say(
            "note: images were resized or recoloured, so an account of the originals does not know those of the parts."
        )


@app.command
def ledger(
    source: Data,
    /,
    *,
    set_budget: Annotated[float | None, Parameter(help="the data set's epsilon over all runs")] = None,
    delta: Annotated[float | None, Parameter(help="with --set-budget: the delta it is counted at")] = None,
    drop_plan: Annotated[bool, Parameter(negative="", help="forget planned runs that nothing was charged for")] = False,
    classes: Classes = None,
    size: Size = None,
    skip_broken: SkipBroken = None,
    json: Json = False,
) -> None:
    """What was spent on a data set, by all runs, and what is left.

    Example: `dpvision ledger digits`, or, a decision of the data's owner, `dpvision ledger digits --set-budget 10`
    """
    from dpvision.cli import screen
    from dpvision.core.events import Budget
    from dpvision.core.ledger import ledger_of
    from dpvision.data import identify, load
    from dpvision.errors import ConfigError
    from dpvision.private.accounts import overlap
    from dpvision.private.accounts.accounts import choose, describe_shares
    from dpvision.public.provenance import pixel_digests
    from dpvision.released.report.accounts import ledger_lines

    options: dict[str, Any] = {"classes": class_list(classes), "size": size, "skip_broken": bool(skip_broken)}
    train = load(source, **options).train
    fingerprint, _, digests = identify(train)
    accounts = choose(fingerprint, overlap.sketch(digests, pixel_digests(train.images), images=train.images))
    book = accounts.first
    for each in accounts.overlaps if not json else ():
        screen.say(f"account {each.ledger.account().id} has {describe_shares(each)}")
    if drop_plan or set_budget is not None:
        book = ledger_of(fingerprint)  # a decision about this data set, never about another's account
        if not book.exists() and accounts.first.exists():
            raise ConfigError(
                f"{source}: has no account of its own; its runs are charged to account {accounts.first.account().id}, "
                "which has some of the same images. Fix: name the data set of that account."
            )
    if drop_plan and book.exists():
        book.drop_plan()
    if set_budget is not None:
        new = Budget(set_budget, delta or (book.account().budget.delta if book.exists() else 1e-5))
        account = book.set_budget(new) if book.exists() else book.open(new)
    elif not book.exists():
        screen.say(f"no run was ever charged to this data; its ledger would be {book.path}")
        return
    else:
        account = book.account()
    screen.show_account(account, ledger_lines(account), file=book.path, json=json)
