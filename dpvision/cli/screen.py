"""What the operator sees in the terminal: tables, a ledger, findings about data, progress bars."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpvision.core.ledger import Account
    from dpvision.data import Findings, Split
    from dpvision.private.training.train import Progress

# Seconds between two lines about long work in a log.
LOG_EVERY = 30


def say(text: str = "") -> None:
    print(text, flush=True)


def table(rows: Mapping[str, Any], *, title: str | None = None) -> None:
    """Two columns: what, and how much."""
    if title:
        say(title)
    width = max((len(k) for k in rows), default=0)
    for key, value in rows.items():
        say(f"  {key:<{width}}  {value}")


def grid(header: list[str], rows: list[list[str]]) -> None:
    """A plain table with a line under the header."""
    widths = [max(len(r[i]) for r in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * w for w in widths], *rows]:
        say("  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


def majority(split: Split | None, classes: tuple[str, ...]) -> str:
    """What the dullest guess would reach, so that an accuracy can be judged."""
    if split is None:
        return ""
    counts = Counter(split.labels.tolist())
    best, count = counts.most_common(1)[0]
    return f"; always answering {classes[best]!r} would give {count / len(split.labels):.2%}"


def as_json(value: Any) -> None:
    say(json.dumps(value, indent=1))


def show_account(account: Account, charges: list[dict[str, Any]], *, file: Path, json: bool) -> None:
    """The ledger of a data set: each charge with what is spent up to and including it."""
    from dpvision.core.events import describe, from_json
    from dpvision.core.rounding import upper

    spent, budget = account.spent(), account.budget
    if json:
        limits = {"epsilon": budget.epsilon, "delta": budget.delta}
        found = {"account": account.id, "budget": limits, "budget_changes": account.budget_changes, "spent": spent}
        found["composition"] = account.composition
        found["planned"] = [describe(event) for _, event in account.plan]
        as_json({**found, "charges": charges, "file": str(file)})
        return
    rows = [
        [
            c["time"],
            c["run"],
            describe(from_json(c["event"]))
            + ("" if c["private"] else " (NOT PRIVATE: fixed key)")
            + (f" (counted apart: {c['new_account']})" if "new_account" in c else ""),
            upper(c["epsilon"], 4),
        ]
        for c in charges
    ]
    grid(["time", "run", "what was done to the data", "epsilon so far"], rows)
    for change in account.budget_changes:
        say(f"{change['time']}: the budget was changed to epsilon {change['epsilon']:g} at delta {change['delta']:g}")
    say(f"account {account.id}: epsilon {upper(spent, 4)} of {budget.epsilon:g} spent at delta {budget.delta:g}")
    say(f"composition: {account.composition}")
    for _, event in account.plan:
        say(f"planned, charged with the next run: {describe(event)}")
    for group in account.groups:
        for _, event in group.planned:
            say(f"planned and charged, not run yet: {describe(event)}")
    say(f"file: {file}")


def findings_json(findings: Findings) -> dict[str, Any]:
    """What `check` found, with the flags that would declare it as public."""
    train = findings.counts.get("train", {})
    n = findings.persons or sum(train.values())
    unit = "--unit person " if findings.persons else ""
    size = next(iter(findings.sizes), (0, 0))
    return {
        "name": findings.name,
        "counts": {split: dict(classes) for split, classes in findings.counts.items()},
        "sizes": {f"{h}x{w}": count for (h, w), count in findings.sizes.items()},
        "channels": {str(k): v for k, v in findings.channels.items()},
        "persons": findings.persons,
        "problems": list(findings.problems),
        "broken": [{"path": b.path, "reason": b.reason} for b in findings.broken],
        "declare": f"{unit}--n {n} --classes {','.join(train)}" + (f" --size {size[0]}" if size[0] == size[1] else ""),
    }


def show_findings(findings: dict[str, Any]) -> None:
    say(f"{findings['name']} (not protected by any noise, not for release)")
    for split, counts in findings["counts"].items():
        say(f"  {split}: {sum(counts.values()):,} images, {len(counts)} classes")
        for name, count in counts.items():
            say(f"    {name}: {count:,}")
    say(f"  sizes: {', '.join(f'{k} ({v:,})' for k, v in findings['sizes'].items())}")
    if findings["persons"] is not None:
        say(f"  persons in train: {findings['persons']:,}")
    for problem in findings["problems"]:
        say(f"  problem: {problem}")
    for broken in findings["broken"]:
        say(f"  broken: {broken['path']}: {broken['reason']}")
    if findings["broken"]:
        say("  To go on without the broken files: --skip-broken")
    say(f"  These figures become public by training. To declare them yourself: {findings['declare']}")


def show_parts(said: dict[str, Any], out: Path) -> None:
    """What `data split` wrote."""
    classes, counts = said["classes"], said["public"]["of_each_class"]
    fewest, most = min(counts), max(counts)
    each = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    say(f"{out / 'public.npz'}: {said['public']['images']:,} images, {each} of each of {len(classes)} classes")
    if said["public"]["images"] != said["asked"]:
        why = "a person is wholly in one part" if fewest != most else f"it is no multiple of {len(classes)} classes"
        say(f"  note: {said['asked']:,} were asked for; {why}, so they are fewer.")
    say(f"{out / 'private.npz'}: {said['private']['images']:,} images to train on; other splits as they were")
    say(f"{out / 'split.json'}: which rows are public, and digests. {said['consent']}")
    if classes != [str(number) for number in range(len(classes))]:
        say(f"  note: an .npz numbers its classes. To name them: --classes {','.join(classes)}")


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


@contextmanager
def training_bar(target: float, *, shown: bool = True) -> Iterator[Callable[[Progress], None]]:
    """Step, images per second, time left and the epsilon that was charged; on stderr, so that output can be piped.

    Where stderr is no terminal, a line every half minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:>7,.0f} images/s"),
        TimeRemainingColumn(),
        TextColumn("epsilon {task.fields[epsilon]:.2f} charged"),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not (shown and sys.stderr.isatty())) as bar:
        task = bar.add_task("training", total=None, speed=0.0, epsilon=target)
        began = told = time.monotonic()
        first: int | None = None

        def update(progress: Progress) -> None:
            nonlocal told, first
            now = time.monotonic()
            first = progress.step - 1 if first is None else first
            speed = progress.images / max(now - began, 1e-9)
            if not sys.stderr.isatty() and now - told > LOG_EVERY:
                told = now
                left = (now - began) / (progress.step - first) * (progress.steps - progress.step)
                print(
                    f"training {progress.step}/{progress.steps}, {speed:,.0f} images/s, about {duration(left)} left, "
                    f"epsilon {progress.epsilon:.2f} charged",
                    file=sys.stderr,
                    flush=True,
                )
            bar.update(task, total=progress.steps, completed=progress.step, speed=speed, epsilon=progress.epsilon)

        yield update


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work of a known length: called with (done, of)."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, total=of, completed=done)


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the training to save its state and stop; a second one stops at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def named_bars(*, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each piece of work as it comes: called with (name, done, of). In a log, a line now and then."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    seen = sys.stderr.isatty() and shown
    with Bar(console=Console(stderr=True), disable=not seen) as bar:
        tasks: dict[str, Any] = {}
        last = time.monotonic()

        def show(what: str, done: int, of: int) -> None:
            nonlocal last
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], total=of, completed=done)
            if shown and not seen and time.monotonic() - last > LOG_EVERY:
                last = time.monotonic()
                print(f"{what} {done:,}/{of:,}", file=sys.stderr, flush=True)

        yield show
