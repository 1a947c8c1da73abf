"""What the operator sees in the terminal: tables, the plan of a training, a progress bar, the closing lines."""

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
    from dpvision.private.accounts.accounts import Accounts
    from dpvision.private.statistics.release import Prepared as PreparedRelease
    from dpvision.private.training.train import Prepared, Progress
    from dpvision.private.training.tune import Prepared as PreparedTuning
    from dpvision.settings.training import Config

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


def account_notes(prepared: Prepared | PreparedRelease, accounts: Accounts) -> list[str]:
    """Which accounts will be charged, what is on them, and which others share images but are not charged."""
    from dpvision.core.rounding import upper
    from dpvision.private.accounts.accounts import describe_shares

    config, notes = prepared.config, []
    for ledger in (accounts.first, *accounts.others):
        if ledger.exists():
            account = ledger.account()
            spent, most = upper(account.spent(), 4), account.budget.epsilon
            notes.append(f"ledger: account {account.id}, epsilon {spent} of {most:g} spent")
        else:
            most = config.budget or config.epsilon
            notes.append(f"ledger: a NEW account, with a budget of epsilon {most:g} at delta {config.delta:g}")
    if accounts.new_account is not None:
        notes.append(f"ledger: counted apart from other accounts, on the card too: {accounts.new_account}")
    charged = {ledger.fingerprint for ledger in (accounts.first, *accounts.others)}
    for each in accounts.overlaps:
        other = each.ledger.account()
        told = f"note: account {other.id} has {describe_shares(each)}"
        if each.ledger.fingerprint in charged:
            notes.append(f"{told}, so it is charged.")
        else:
            notes.append(
                f"{told} and has spent epsilon {upper(other.spent(), 4)}. It is not charged: only both accounts "
                "together bound what is revealed about those images."
            )
    return notes


def show_plan(account: Account) -> None:
    """What is planned on an account, and what all of it would use of the budget."""
    from dpvision.core import accountant
    from dpvision.core.events import describe
    from dpvision.core.rounding import upper

    after = accountant.epsilon(account.total_planned, account.budget.delta)
    for _, event in account.plan:
        say(f"planned: {describe(event)}")
    say(
        f"account {account.id}: all that is charged and planned uses epsilon {upper(after, 4)} of "
        f"{account.budget.epsilon:g}. Nothing is charged yet: the first of the planned runs charges all of them. Give "
        "each command again without --plan, in any order; `dpvision ledger DATA --drop-plan` forgets the plan."
    )


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
    say(f"{findings['name']} (for your eyes: not protected by any noise, not to be released)")
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


def show_training(prepared: Prepared, accounts: Accounts) -> None:
    """The plan of a training, with what is public and how it is known."""
    from dpvision.core import accountant, gdp
    from dpvision.core.rounding import upper
    from dpvision.private.training import ranks as distributed
    from dpvision.private.training.timing import seconds
    from dpvision.private.training.units import units

    config, event = prepared.config, prepared.event()
    epsilon = accountant.epsilon(event, config.delta)
    rough = gdp.gaussian_epsilon(gdp.central_limit_mu(event), config.delta)
    channels, height, width = prepared.shape
    here = units(prepared.data.train, config.unit)
    ranks = distributed.ranks()
    where = "this machine" if ranks == 1 else f"{ranks} ranks like this one"
    weights = sum(p.numel() for p in prepared.model().parameters() if p.requires_grad)
    table(
        {
            "data": f"{prepared.data.name}: images {height}x{width}x{channels}, {len(prepared.data.classes)} classes",
            "unit": f"{config.unit}; n = {config.n:,} {config.unit}s",
            "model": f"{config.model}, {weights:,} weights, recipe {config.recipe}",
            **_what_goes_in(config),
            "sampling": f"Poisson, expected batch {config.batch:,} of {config.n:,} (rate {prepared.sampler.rate:.6g})"
            if prepared.sampler.rate < 1
            else f"every {config.unit} in every step",
            "time": f"about {_duration(seconds(prepared, ranks=ranks))} on {where} as it is now",
            "steps": f"{config.steps:,} ({prepared.sampler.rate * prepared.sampler.steps:.1f} expected passes)",
            "noise": f"sigma {config.sigma:.5g} at clip {config.clip:g}",
            "guarantee": f"epsilon {upper(epsilon, 4)} at delta {config.delta:g}, by {accountant.NAME}",
            **_with_first_weights(prepared),
            "cross-check": f"Rényi {upper(accountant.rdp_epsilon(event, config.delta), 4)}; "
            f"central limit {rough:.4f} (approximate, not a bound)",
        },
        title="plan",
    )
    if prepared.read_off:
        say(
            f"  note: {', '.join(prepared.read_off)}: read off the data and treated as public; the card says so. "
            "If they must not be told, declare other figures: --n (rounded), --classes, --size, --channels."
        )
    twice = prepared.persons_in_both()
    if twice:
        say(f"  note: {twice:,} persons of the test split are in the training data too; accuracy is not noised.")
    if prepared.data.test is None:
        say("  note: there is no test split, so no accuracy will be told.")
    assert config.n
    if not 0.67 < here / config.n < 1.5:
        say(f"  note, for your eyes: n is declared as {config.n:,}, and the data has {here:,} {config.unit}s.")
    if config.assist in ("dope", "mirror") and config.lr > 1:
        say(
            f"  note: {config.assist} adds public gradients, which are not clipped: lr {config.lr:g} is likely too "
            "large. Fix: --lr 0.5."
        )
    if prepared.synthetic is not None and prepared.synthetic.originals is not None:
        channels, height, width = prepared.shape
        say(f"  note: the public images became {height}x{width} pixels of {channels} channels.")
    for line in account_notes(prepared, accounts):
        say(f"  {line}")
    for broken in prepared.data.broken:
        say(f"  left out: {broken.path}: {broken.reason}")


def show_tuning(prepared: PreparedTuning, accounts: Accounts) -> None:
    """The plan of a tuning."""
    from dpvision.core import accountant
    from dpvision.core.events import describe
    from dpvision.core.rounding import upper

    first, event, stop = prepared.first, prepared.event, prepared.stopping
    alone = max(accountant.epsilon(trial, first.config.delta) for trial in set(event.trials))
    channels, height, width = first.shape
    table(
        {
            "data": f"{first.data.name}: images {height}x{width}x{channels}, {len(first.data.classes)} classes",
            "unit": f"{first.config.unit}; n = {first.config.n:,} {first.config.unit}s",
            "candidates": f"{len(prepared.candidates):,}, each trial one of them by a fair coin",
            "trials": f"{stop.mean:.4g} expected, drawn in secret (negative binomial, eta {stop.eta:g}, gamma "
            f"{stop.gamma:.4g}); by chance {stop.chances(1)[0]:.0%} there is one alone",
            "a trial": "; or ".join(dict.fromkeys(describe(trial) for trial in event.trials)),
            "by itself": f"epsilon {upper(alone, 4)}: what the choice leaves for it",
            "score": f"accuracy on {len(prepared.score):,} public images ({prepared.score_on['file']})",
            "guarantee": f"epsilon {upper(prepared.epsilon, 4)} at delta {first.config.delta:g}, of all of it",
        },
        title="plan",
    )
    if first.read_off:
        say(f"  note: {', '.join(first.read_off)}: read off the data and treated as public; the card says so.")
    for line in account_notes(first, accounts):
        say(f"  {line}")


def show_release(prepared: PreparedRelease, accounts: Accounts) -> None:
    """The plan of a release."""
    from dpvision.core import accountant, gdp
    from dpvision.core.events import describe
    from dpvision.core.rounding import upper

    config, event = prepared.config, prepared.event()
    epsilon = accountant.epsilon(event, config.delta)
    rough = gdp.gaussian_epsilon(gdp.central_limit_mu(event), config.delta)
    channels, height, width = prepared.shape
    features = f"{config.encoder}, " + (
        f"whitened by random images, {config.rank} directions at most" if config.rank else "as they are"
    )
    shown = {
        "data": f"{prepared.data.name}: images {height}x{width}x{channels}, {len(prepared.data.classes)} classes",
        "unit": f"image; n = {config.n:,} images",
        "recipe": f"{config.recipe}: {config.rows:,} rows"
        + (f" of expected degree {config.degree:.4g}, {config.sampling} sampling" if config.degree else ""),
        "features": features,
        "charged": describe(event),
        "guarantee": f"epsilon {upper(epsilon, 4)} at delta {config.delta:g}, by {accountant.NAME}",
        "cross-check": f"central limit {rough:.4f} (approximate, not a bound)",
    }
    table(shown, title="plan")
    if prepared.read_off:
        say(
            f"  note: {', '.join(prepared.read_off)}: read off the data and treated as public; the card says so. "
            "If they must not be told, declare other figures: --n (rounded), --classes, --size, --channels."
        )
    if prepared.data.train.persons is not None:
        say("  note: the unit is one image; this data says whose images are whose, and a person is protected less.")
    if prepared.data.test is None:
        say("  note: there is no test split, so no accuracy will be told.")
    for line in account_notes(prepared, accounts):
        say(f"  {line}")
    for broken in prepared.data.broken:
        say(f"  left out: {broken.path}: {broken.reason}")


def _with_first_weights(prepared: Prepared) -> dict[str, str]:
    """What the model tells in all, where it starts from weights of another private training."""
    from dpvision.core import accountant, adaptive
    from dpvision.core.rounding import upper

    if not prepared.before:
        return {}
    both = accountant.epsilon(
        adaptive.compose((*prepared.before, prepared.event()), prepared.config.delta), prepared.config.delta
    )
    return {"in all": f"epsilon {upper(both, 4)}, with what the first weights tell of their own training data"}


TRAINED = {
    "head": "the head alone",
    "centred-head": "the mean of the features in the first step, then the head",
    "probe": "the head and the normalisation before it",
    "bias": "the biases and the head",
}


ASSISTED = {
    "weights": "weight multiplicity, radius {0.radius:g}",
    "dope": "DOPE-SGD: the public gradient is taken off before clipping, and put back",
    "mirror": "mirror descent: less of the private and more of the public gradient with every step",
    "adadps": "AdaDPS: gradients are scaled by public second moments before clipping",
}


def _what_goes_in(config: Config) -> dict[str, str]:
    """Views and public inputs, where there are any."""
    rows = {}
    if not config.as_it_is:
        kinds = {"of the image": config.k_base, "mixtures": config.k_self, "public images": config.k_diff}
        each = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        rows["views"] = f"{config.views} averaged before clipping: {each}; {', '.join(config.augment) or 'as they are'}"
    made = config.prior and f"prior {config.prior}, made of random images"
    public = [str(v) for v in (made, config.pretrained, config.synthetic) if v]
    if public:
        rows["public"] = ", ".join(public)
    if config.assist != "none":
        rows["assisted"] = f"{ASSISTED[config.assist].format(config)}; public batches of {config.public_batch}"
    if config.part != "all":
        rest = "" if config.pretrained or config.prior else "; the rest stays as it was drawn, without --pretrained"
        rows["trained"] = TRAINED[config.part] + rest
    if config.canaries:
        rows["canaries"] = f"{config.canaries:,}, each put in by a secret coin and not counted in n: a one-run audit"
    if config.probe_steps:
        rows["first"] = f"{config.probe_steps:,} steps for {TRAINED['probe']}, lr {config.probe_lr or config.lr:g}"
    return rows


def note_other_ranks(facts: Mapping[str, Any], ranks: int) -> None:
    """Say what another number of ranks costs, before it is charged."""
    before = facts.get("ranks", 1)
    if before != ranks and facts.get("complete") is not True:
        say(
            f"note: the ranks of this run were {before} so far and are {ranks} now. They toss other coins, so a branch "
            "starts here: fresh noise, and the rest of the steps are charged to the ledger again. To go on as before, "
            f"resume with {before}."
        )


def _duration(seconds: float) -> str:
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
            if not sys.stderr.isatty() and now - told > 30:
                told = now
                left = (now - began) / (progress.step - first) * (progress.steps - progress.step)
                print(
                    f"training {progress.step}/{progress.steps}, {speed:,.0f} images/s, about {_duration(left)} left, "
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
