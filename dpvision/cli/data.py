"""The verbs check, data pack, data split and ledger: the content of a data set, its parts, and its privacy budget."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpvision.cli.app import (
    NO_TEST_SPLIT,
    Channels,
    Classes,
    Columns,
    DataSet,
    GroupColumn,
    Json,
    Size,
    SkipBroken,
    Task,
    TestShare,
    Window,
    flag,
    option,
    out_option,
    verb,
    verb_with_parts,
)
from dpvision.cli.screen import as_json, counting, grid, progress, say
from dpvision.settings.setting import class_list

if TYPE_CHECKING:
    from dpvision.core.account import Account
    from dpvision.data import Findings

MAX_SIZES = 5  # the number of sizes to print if there are many

data_verb = verb_with_parts("data", "Pack a data set into one store, or split off a public part.")


@verb
def check(
    data: DataSet,
    /,
    *,
    classes: Classes = None,
    size: Size = None,
    test_share: TestShare = None,
    window: Window = None,
    columns: Columns = None,
    task: Task = "classes",
    group: GroupColumn = None,
    json: Json = False,
) -> None:
    """Count the images of a data set and list broken files.

    No noise protects what it prints: not for release.

    Example: `dpvision check digits`
    """
    from dpvision.data import check as find

    with progress("reading images"):
        findings = find(
            data,
            classes=class_list(classes),
            size=size,
            test_share=test_share,
            window=window,
            columns=columns,
            task=task,
            group=group,
        )
    if json:
        as_json(_findings_json(findings, task))
    else:
        _show_findings(_findings_json(findings, task))
    if findings.broken or findings.problems:
        sys.exit(3)


@data_verb.command(help_epilogue="")
def pack(
    data: DataSet,
    /,
    *,
    out: Annotated[Path, out_option("Folder of the store to write; it must be new.")],
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    test_share: TestShare = None,
    window: Window = None,
    columns: Columns = None,
    task: Task = "classes",
) -> None:
    """Pack a data set into a memory-mapped store, for data larger than memory.

    Example: `dpvision data pack photos --out photos.pack`
    """
    from dpvision.data import pack as pack_into
    from dpvision.public.provenance import copy_provenance

    with counting("packing") as packed:
        store = pack_into(
            data,
            out,
            classes=class_list(classes),
            size=size,
            channels=channels,
            skip_broken=bool(skip_broken),
            test_share=test_share,
            window=window,
            columns=columns,
            task=task,
            progress=packed,
        )
    copy_provenance(data, store)
    say(f"wrote {store}; use it in place of the data set")


@data_verb.command(help_epilogue="")
def split(
    data: DataSet,
    /,
    *,
    public: Annotated[int, option("Data", "Number of public images in total; each class gets the same number.")],
    out: Annotated[Path, out_option("Folder to write the parts to, new or empty.")],
    seed: Annotated[int, option("Data", "Seed of the choice of public images.")] = 0,
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    test_share: TestShare = None,
    window: Window = None,
    columns: Columns = None,
) -> None:
    """Split the training images into a public part, whose owners consented, and the private rest.

    Writes public.npz, private.npz (with the test images unchanged) and split.json. If persons are known, all images of
    a person are in one part. The private part is a separate data set with a separate ledger.

    Example: `dpvision data split cifar10.npz --public 2000 --out parts`
    """
    from dataclasses import replace

    from dpvision.data import fingerprint, load
    from dpvision.public.provenance import copy_provenance
    from dpvision.public.split import split as cut

    with progress("reading images") as show:
        whole = load(
            data,
            classes=class_list(classes),
            size=size,
            channels=channels,
            skip_broken=bool(skip_broken),
            test_share=test_share,
            window=window,
            columns=columns,
        )
        show("writing the parts")
        parts = cut(whole, out, public=public, seed=seed)
        for part in ("public", "private"):
            copy_provenance(data, out / f"{part}.npz")
    _show_parts(parts, out)
    if fingerprint(replace(whole.train, originals=None)) != fingerprint(whole.train):
        say("note: images were resized or recoloured, so an account of the originals does not recognise the parts.")


@verb
def ledger(
    data: DataSet,
    /,
    *,
    set_budget: Annotated[
        float | None,
        option("Privacy", "Set the privacy budget (epsilon) of the data set over all runs.", default="none"),
    ] = None,
    delta: Annotated[
        float | None, option("Privacy", "Delta of that budget, with --set-budget.", default="unchanged, or 1e-5")
    ] = None,
    drop_plan: Annotated[bool, flag("Privacy", "Drop planned runs that have not been charged yet.")] = False,
    classes: Classes = None,
    size: Size = None,
    skip_broken: SkipBroken = None,
    test_share: TestShare = None,
    window: Window = None,
    columns: Columns = None,
    task: Task = "classes",
    group: GroupColumn = None,
    json: Json = False,
) -> None:
    """Show how much of a data set's privacy budget all runs have spent.

    Example: `dpvision ledger digits`, or, a decision of the data's owner, `dpvision ledger digits --set-budget 10`
    """
    from dpvision.core.events import Budget
    from dpvision.data import holds_features, identify, load, load_rows
    from dpvision.errors import ConfigError
    from dpvision.private.accounts import overlap
    from dpvision.private.accounts.accounts import choose, describe_shares
    from dpvision.released.report.guarantee import ledger_lines
    from dpvision.storage.home import ledger_of

    with progress("reading images"):
        options: dict[str, Any] = {
            "classes": class_list(classes),
            "size": size,
            "skip_broken": bool(skip_broken),
            "test_share": test_share,
            "window": window,
            "columns": columns,
            "task": task,
            "group": group,
        }
        of_rows = holds_features(data)
        train = (load_rows(data, classes=options["classes"], task=task) if of_rows else load(data, **options)).train
        fingerprint, _, digests = identify(train)
        accounts = choose(
            fingerprint, (overlap.sketch_rows if of_rows else overlap.sketch_images)(train.images, digests)
        )
    book = accounts.first
    for other in accounts.overlaps if not json else ():
        say(f"account {other.ledger.account().id} has {describe_shares(other)}")
    if drop_plan or set_budget is not None:
        book = ledger_of(fingerprint)  # a decision about this data set never changes another account
        if not book.exists() and accounts.first.exists():
            raise ConfigError(
                f"{data}: has no account of its own; its runs are charged to account {accounts.first.account().id}, "
                "which has some of the same images. Fix: name the data set of that account."
            )
    if drop_plan and book.exists():
        book.drop_plan()
    if set_budget is not None:
        new = Budget(set_budget, delta or (book.account().budget.delta if book.exists() else 1e-5))
        account = book.set_budget(new) if book.exists() else book.open(new)
    elif not book.exists():
        say(f"no run was ever charged to this data; its ledger would be {book.path}")
        return
    else:
        account = book.account()
    _show_account(account, ledger_lines(account), file=book.path, json=json)


def _show_account(account: Account, charges: list[dict[str, Any]], *, file: Path, json: bool) -> None:
    """Print the ledger of a data set: each charge with what is spent up to and including it."""
    from dpvision.core.events import from_json
    from dpvision.released.report.guarantee import budget_changes, composition
    from dpvision.settings.figures import describe, upper

    spent, budget = account.spent(), account.budget
    if json:
        limits = {"epsilon": budget.epsilon, "delta": budget.delta}
        as_json(
            {
                "account": account.id,
                "budget": limits,
                "budget_changes": budget_changes(account),
                "spent": spent,
                "composition": composition(account.total),
                "planned": [describe(event) for _, event in account.plan],
                "charges": charges,
                "file": str(file),
            }
        )
        return
    rows = [
        [
            c["time"],
            c["run"],
            describe(from_json(c["event"]))
            + ("" if c["private"] else " (NOT PRIVATE: fixed key)")
            + (f" (counted separately: {c['new_account']})" if "new_account" in c else ""),
            upper(c["epsilon"]),
        ]
        for c in charges
    ]
    grid(["time", "run", "what was done to the data", "epsilon so far"], rows)
    for change in budget_changes(account):
        say(f"{change['time']}: the budget was changed to epsilon {change['epsilon']:g} at delta {change['delta']:g}")
    say(f"account {account.id}: epsilon {upper(spent)} of {budget.epsilon:g} spent at delta {budget.delta:g}")
    say(f"composition: {composition(account.total)}")
    for _, event in account.plan:
        say(f"planned, charged with the next run: {describe(event)}")
    for group in account.groups:
        for _, event in group.planned:
            say(f"planned and charged, not run yet: {describe(event)}")
    say(f"file: {file}")


def _findings_json(findings: Findings, task: str) -> dict[str, Any]:
    """Return what `check` found, and the options that declare facts: without values, as these are of the data."""
    unit = "--unit person " if findings.persons else ""
    return {
        "name": findings.name,
        "task": task,
        "counts": {split: dict(classes) for split, classes in findings.counts.items()},
        "sizes": {f"{h}x{w}": count for (h, w), count in findings.sizes.items()},
        "channels": {str(k): v for k, v in findings.channels.items()},
        "persons": findings.persons,
        "problems": list(findings.problems),
        "notes": list(findings.notes),
        "broken": [{"path": b.path, "reason": b.reason} for b in findings.broken],
        "declare": f"{unit}--n N --classes A,B,... --size SIZE",
    }


def _show_findings(findings: dict[str, Any]) -> None:
    say(f"{findings['name']} (not protected by any noise, not for release)")
    for split, counts in findings["counts"].items():
        what = "labels on images" if findings["task"] == "labels" else "images"
        say(f"  {split}: {sum(counts.values()):,} {what}, {len(counts)} {findings['task']}")
        for name, count in counts.items():
            say(f"    {name}: {count:,}")
    say(f"  sizes: {_sizes(findings['sizes'])}")
    if findings["persons"] is not None:
        say(f"  persons in train: {findings['persons']:,}")
    for note in findings["notes"]:
        say(f"  note: {note}")
    if "test" not in findings["counts"]:
        say(f"  note: {NO_TEST_SPLIT}")
    for problem in findings["problems"]:
        say(f"  problem: {problem}")
    for broken in findings["broken"]:
        say(f"  broken: {broken['path']}: {broken['reason']}")
    if findings["broken"]:
        say("  To train without the broken files: --skip-broken")
    say(
        f"  These figures become public by training, unless others are declared: {findings['declare']}. Declare only "
        "what is public anyway, from a source other than these data."
    )


def _sizes(counts: dict[str, int]) -> str:
    """Return sizes of images with their counts: all of a few, of many the most frequent and the extremes."""
    frequent = sorted(counts, key=lambda size: -counts[size])[:MAX_SIZES]
    text = ", ".join(f"{size} ({counts[size]:,})" for size in frequent)
    if len(counts) <= MAX_SIZES:
        return text
    by_area = sorted(counts, key=lambda size: int(size.split("x")[0]) * int(size.split("x")[1]))
    return (
        f"{len(counts):,} different; smallest {by_area[0]}, largest {by_area[-1]} (height x width); "
        f"most frequent: {text}"
    )


def _show_parts(parts: dict[str, Any], out: Path) -> None:
    """Print what `data split` wrote."""
    classes, public = parts["classes"], parts["public"]
    fewest, most = min(public["of_each_class"]), max(public["of_each_class"])
    count = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    say(f"{out / 'public.npz'}: {public['images']:,} images, {count} of each of {len(classes)} classes")
    if public["images"] != parts["asked"]:
        why = (
            "all images of a person are in one part"
            if fewest != most
            else f"that is not a multiple of {len(classes)} classes"
        )
        say(f"  note: {parts['asked']:,} were requested, but {why}, so there are fewer.")
    say(f"{out / 'private.npz'}: {parts['private']['images']:,} images to train on; other splits are unchanged")
    say(f"{out / 'split.json'}: which rows are public, and digests. {parts['consent']}")
    if classes != [str(number) for number in range(len(classes))]:
        say(f"  note: an .npz numbers its classes. To name them: --classes {','.join(classes)}")
