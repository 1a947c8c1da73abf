"""The verbs train, resume, report and board."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dpvision.cli import screen
from dpvision.cli.app import (
    DataSet,
    DescribeDevice,
    DryRun,
    NewAccount,
    Plan,
    Recipe,
    RunFolder,
    SettingsFile,
    existing,
    flag,
    option,
    out_option,
    read,
    takes,
    training_settings,
    verb,
)
from dpvision.errors import ConfigError
from dpvision.settings.training import Config

if TYPE_CHECKING:
    from dpvision.cli.screen import Show
    from dpvision.core.account import Account
    from dpvision.private.training.train import Progress
    from dpvision.storage.run_folder import Run

Track = Annotated[
    tuple[Literal["tensorboard", "trackio"], ...],
    option(
        "Output",
        "Also log epsilon and test accuracy, but nothing private, to this tracker. May be given twice.",
        show_default=False,
    ),
]


@verb
@takes(Config)
def train(
    data: DataSet,
    /,
    *,
    out: RunFolder = None,
    recipe: Recipe = "auto",
    config: SettingsFile = None,
    new_account: NewAccount = None,
    track: Track = (),
    dry_run: DryRun = False,
    describe_device: DescribeDevice = None,
    plan: Plan = False,
    **flags: Any,
) -> None:
    """Train an image classifier with differential privacy.

    Only the data set and epsilon are required. All other settings have defaults, are computed from public numbers, or
    come from a recipe. The defaults shown are those of the recipe `default`; what the recipe `auto` chooses is in the
    plan, which is printed first. The data set's ledger is charged before training starts. To use several worker
    processes, run `torchrun --nproc-per-node 2 -m dpvision -- train DATA --epsilon 3`.

    If DATA is an .npz with train_features (N, d) instead of images, a linear classifier is fitted to them: see --head.

    Example: `dpvision train digits --epsilon 3 --out runs/first`
    """
    from dpvision.storage.run_folder import next_free, require_free

    if describe_device is not None and not dry_run:
        raise ConfigError("--describe-device only estimates the time on another device. Fix: add --dry-run.")
    settings = training_settings(recipe, config, flags)
    if not (dry_run or plan):
        require_free(out := out or next_free())

    from dpvision.cli.plan import show_planned_runs, show_training
    from dpvision.data import holds_features
    from dpvision.private.training import ranks
    from dpvision.private.training.metrics import require_installed

    require_installed(track)
    ranks.start()  # before anything that may fail on one rank only
    if holds_features(data):
        _fit_head(data, settings, out, new_account=new_account, track=track, plan=plan)
        return
    if settings.head is not None:
        raise ConfigError(
            f"{data}: --head applies to features only (an .npz with train_features). Fix: leave --head out."
        )
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training.prepare import prepare
    from dpvision.private.training.train import require_room_for_canaries

    times: list[float] = []
    with screen.progress("reading images") as show:

        def watch_prior(done: int, total: int) -> None:
            times.append(time.monotonic())
            show("building the prior", done, total)

        prepared = prepare(data, settings, watch_prior)
        if settings.sigma is not None:
            _require_enough_noise(prepared)
        show("looking up earlier uses of these images")
        accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if ranks.rank() == 0:
        seconds_of_prior = times[-1] - times[0] if times else 0.0
        show_training(prepared, accounts, describe_device, seconds_of_prior=seconds_of_prior)
        if settings.recipe.startswith("dp-randp") and not settings.pretrained:
            screen.say(
                f"note: recipe {settings.recipe} is meant to start from pretrained weights, but none are given, so it "
                "starts from random weights. Fix: run `dpvision pretrain`, then --pretrained PRIOR/weights.safetensors."
            )
    if plan:
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            show_planned_runs(accounts.plan(prepared.event(), prepared.config, prepared.sketch), data)
        return
    if dry_run or out is None:
        accounts.require_room(prepared.event(), prepared.config)
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            screen.say("dry run: nothing was trained, nothing was charged.")
        return
    test_key = os.environ.get("DPVISION_TEST_KEY") or None
    _train_to(out, prepared, track, test_key=test_key, accounts=accounts)


@verb
@takes(Config, lambda of: of.resumable, default="as in the run", common=False)
def resume(run: Annotated[Path, existing("Folder of a stopped run.")], /, *, track: Track = (), **flags: Any) -> None:
    """Continue a stopped run, with bit-identical results.

    The run keeps its settings. Changing a setting starts a branch: fresh noise is drawn, and the remaining steps are
    charged to the ledger again.

    Example: `dpvision resume runs/first`
    """
    from dpvision.cli.plan import note_other_arithmetic, note_other_ranks
    from dpvision.private.training import ranks
    from dpvision.private.training.metrics import require_installed
    from dpvision.private.training.train import reopen
    from dpvision.storage.run_folder import Run

    require_installed(track)
    changes = read(Config, flags)
    folder = Run(Path(os.path.abspath(run)))
    folder.config()  # a clear error if it is not the folder of a run
    if "head" in folder.facts():
        _resume_head(folder, changes)
        return
    if changes and folder.facts().get("complete") is True:
        raise ConfigError(f"{run}: the run is finished, so {', '.join(changes)} cannot change. Fix: start a new run.")
    ranks.start()
    if ranks.rank() == 0:
        note_other_ranks(folder.facts(), ranks.ranks())
    with screen.progress("reading images"):
        prepared = reopen(folder, changes)
    if ranks.rank() == 0:
        note_other_arithmetic(folder, prepared)
    _train_to(folder, prepared, track)


def _fit_head(
    data: str, settings: Config, out: Path | None, *, new_account: str | None, track: tuple[str, ...], plan: bool
) -> None:
    """Fit a head to features. Without `out`, print the plan only, and charge nothing."""
    from dpvision.cli.plan import show_head, show_planned_runs
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.statistics.head_run import prepare

    if track or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a head on features is fitted by a single process and is not tracked. Fix: leave out --track and torchrun."
        )
    with screen.progress("reading features") as show:
        prepared = prepare(data, settings)
        show("looking up earlier uses of these features")
        accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    show_head(prepared, accounts)
    if plan:
        show_planned_runs(accounts.plan(prepared.event(), prepared.config, prepared.sketch), data)
    elif out is None:
        accounts.require_room(prepared.event(), prepared.config)
        screen.say("dry run: nothing was trained, nothing was charged.")
    else:
        _train_to(out, prepared, test_key=os.environ.get("DPVISION_TEST_KEY") or None, accounts=accounts)


def _resume_head(run: Any, changes: dict[str, Any]) -> None:
    from dpvision.private.statistics.head_run import reopen

    if changes:
        raise ConfigError(
            f"{run.folder}: {', '.join(changes)} cannot change after the fit has begun. Fix: start a new run."
        )
    with screen.progress("reading features"):
        prepared = reopen(run)
    _train_to(run, prepared)


def _require_enough_noise(prepared: Any) -> None:
    """Refuse a noise multiplier that is too small for the requested epsilon."""
    from dpvision.core import accountant
    from dpvision.settings.figures import upper

    config = prepared.config
    epsilon = accountant.epsilon(prepared.event(), config.delta)
    if epsilon > config.epsilon:
        raise ConfigError(
            f"sigma {config.sigma:g} gives epsilon {upper(epsilon, 4)}, more than the requested {config.epsilon:g}. "
            "Fix: leave --sigma out, so that it is computed."
        )


def _train_to(to: Path | Run, prepared: Any, track: tuple[str, ...] = (), **begin: Any) -> None:
    """Train until the end or until a stop is requested; then write the report and print the result."""
    from dpvision.private.statistics import head_run
    from dpvision.private.training import ranks
    from dpvision.private.training.train import run as train_run

    is_first = ranks.rank() == 0
    with screen.progress("preparing the run") as show:
        if isinstance(prepared, head_run.PreparedHead):
            outcome = head_run.run(prepared, to, **begin)
        else:
            outcome = train_run(prepared, to, track=track, display=_display(show), **begin)
    run = outcome.run
    if not outcome.complete:
        if is_first:
            launch = "dpvision" if ranks.ranks() == 1 else f"torchrun --nproc-per-node {ranks.ranks()} -m dpvision --"
            screen.say(f"stopped; every step is charged and saved. To continue: {launch} resume {run.folder}")
        sys.exit(130)
    if not is_first:
        return
    paths = write_report(run)
    if prepared.config.study:
        from dpvision.private.training import gradient_study

        picture = run.operator / "gradients.svg"
        gradient_study.plot([run], picture)
        screen.say(f"wrote {picture}: gradients before clipping (not for release)")
    screen.say(f"trained in {outcome.seconds:.1f} s" if outcome.seconds else "the run was already finished")
    show_result(run, paths)


def show_result(run: Run, paths: list[Path]) -> None:
    """Print the accuracy of a finished run and what it reveals, both of which are also in its card and report."""
    from dpvision.released import evaluation
    from dpvision.released.advice import advise
    from dpvision.released.report import sentence
    from dpvision.storage.run_folder import read_json

    card = read_json(run.folder / "card.json")
    classes, accuracy = card["public_facts"]["classes"]["value"], card["accuracy"]
    figures = evaluation.read_evaluation(run, classes=len(classes), weights=card["weights_digest"])
    if accuracy and figures:
        is_head = card["config"].get("head") is not None
        which = "" if is_head else f" ({accuracy['released']} weights, a choice made before training)"
        screen.say(
            f"test accuracy {accuracy['released_test_accuracy']:.2%}{which}; "
            f"{describe_measures(evaluation.summary(figures))}; {evaluation.describe_trivial(figures, classes)}"
        )
    if figures and figures["groups"]:
        show_groups(figures["groups"], classes)
    screen.say(sentence(card))
    say_total(card)
    screen.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")
    if figures and (warning := evaluation.warning(figures, classes)):
        screen.say(f"WARNING: {warning}")
    for line in advise(card):
        screen.say(f"what would help: {line}")


def say_total(card: Mapping[str, Any]) -> None:
    """Print what all runs on the images have spent of their privacy budget, and what is left."""
    from dpvision.settings.figures import lower, upper

    account = card.get("data_set")
    if account is None or account["epsilon_spent"] is None:
        return
    spent, budget = account["epsilon_spent"], account["epsilon_budget"]
    runs = "this run has" if account["charges"] == 1 else f"{account['charges']:,} runs have"
    left = lower(max(budget - spent, 0.0))
    screen.say(f"privacy budget of the data: {runs} spent epsilon {upper(spent)} of {budget:g}; about {left} is left")


def show_groups(figures: dict[str, Any], classes: list[str]) -> None:
    """Print recall and AUROC by group, and a warning if groups are hidden."""
    from dpvision.released import groups

    rows = groups.describe_cells(figures, classes)
    if rows:
        screen.grid(list(groups.HEAD), [[row[0] or groups.NOT_STATED, *row[1:]] for row in rows])
    if figures["hidden"]:
        screen.say(f"WARNING: {groups.WARNING}")


def describe_measures(short: Mapping[str, Any] | None) -> str:
    """Return the measures next to accuracy in a line: balanced accuracy, AUROC and kappa, with 95% intervals."""
    assert short is not None
    parts = [f"balanced accuracy {_measured(short, 'balanced_accuracy', '.2%')}"]
    parts += [f"AUROC {_measured(short, 'macro_auroc', '.3f')}"] if short.get("macro_auroc") is not None else []
    parts += [f"quadratic kappa {_measured(short, 'kappa', '.3f')}"] if short.get("kappa") is not None else []
    return ", ".join(parts)


def _measured(short: Mapping[str, Any], name: str, form: str) -> str:
    value, ends = short[name], short.get(f"{name}_interval")
    if value is None:
        return "not defined"
    return f"{value:{form}}" + ("" if ends is None else f" ({ends[0]:{form}} to {ends[1]:{form}})")


def _display(show: Show) -> Any:
    """Return what the operator sees of a run; Ctrl-C stops it."""
    from dpvision.private.training.train import Display
    from dpvision.settings.figures import upper

    class Screen(Display):
        @contextmanager
        def features(self) -> Iterator[Callable[[int, int], None]]:
            yield partial(screen.in_percent(show), "computing features")

        @contextmanager
        def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
            show("checking the gradient computation and charging the ledger")

            def watch(at: Progress) -> None:
                show("training", at.step, at.steps, f"epsilon {upper(at.epsilon)} charged")

            with screen.stoppable() as stop:
                yield watch, stop

    return Screen()


@verb
def report(
    run: Annotated[Path, existing("Folder of a finished run or a release.")],
    /,
    *,
    no_examples: Annotated[bool, flag("Output", "Remove the pictures of test images, and examples.json.")] = False,
) -> None:
    """Regenerate the report and privacy card of a run or a release.

    Rewrites report.html, card.md and card.json in its folder, and README.md in that of a release.

    Example: `dpvision report runs/first`, or `dpvision report releases/1`
    """
    from dpvision.released.evaluation import EXAMPLES
    from dpvision.storage.run_folder import Run

    place = Path(os.path.abspath(run))
    if (place / "schema.json").exists():
        from dpvision.released.folder import read_release
        from dpvision.released.report import rewrite_release

        if no_examples:
            raise ConfigError(
                "--no-examples: the report of a release has no pictures of test images. Fix: leave it out."
            )
        written = rewrite_release(read_release(place))
    else:
        folder = Run(place)
        folder.config()
        if no_examples:
            (folder.folder / EXAMPLES).unlink(missing_ok=True)
        written = write_report(folder)
    for path in written:
        screen.say(f"wrote {path}")


@verb
def board(
    *folders: Annotated[Path, existing("Folders of finished runs, or folders that contain them.")],
    out: Annotated[Path, out_option("HTML file to write.")] = Path("board.html"),
) -> None:
    """Compare runs on one HTML page.

    The page plots accuracy against epsilon and lists the runs, with links to their reports.

    Example: `dpvision board runs --out runs/board.html`
    """
    from dpvision.released.report.board import write

    if not folders:
        raise ConfigError("board needs at least one run. Fix: run `dpvision board runs`.")
    if not out.parent.is_dir() or out.is_dir():
        raise ConfigError(
            f"{out}: is a folder, or its folder does not exist. Fix: use --out board.html, in a folder that exists."
        )
    out = Path(os.path.abspath(out))
    screen.say(f"wrote {out}: {write(list(folders), out):,} runs")


def write_report(run: Run, account: Account | None = None) -> list[Path]:
    """Write the report and cards of a run, with the account of its data set if it is on this machine."""
    from dpvision.released.report import write
    from dpvision.storage.run_folder import clear

    account = account or find_account(run)
    clear(run)  # trials that a killed tuning left behind
    return write(run, account)


def find_account(run: Run, *, required: bool = False) -> Account | None:
    """Return the account of a run's data set; None, with a note, if it is not on this machine.

    If `required`, a run that was charged to a ledger is refused without it.
    """
    from dpvision.private.accounts.accounts import read_accounts
    from dpvision.storage.home import home

    book = read_accounts(run.facts()).first
    if not book.exists() and (run.folder / "ledger.jsonl").exists():
        if required:
            raise ConfigError(
                f"{run.folder}: the ledger that this run was charged to is not in {home()}, and without it the card "
                "would lose the total of the data set. Nothing was written. Fix: set DPVISION_HOME to the folder that "
                f"the run was charged in. If that ledger is lost, remove {run.folder / 'ledger.jsonl'} first."
            )
        screen.say(
            f"note: {home()} has no ledger of this data set, so the card and report omit it. Fix: set DPVISION_HOME."
        )
    return book.account() if book.exists() else None
