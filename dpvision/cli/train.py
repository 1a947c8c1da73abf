"""train and resume: a private training, from its settings to its report."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import (
    DataSet,
    DryRun,
    NewAccount,
    Plan,
    Recipe,
    RunFolder,
    SettingsFile,
    option,
    read,
    takes,
    training_settings,
)
from dpvision.cli.report import write_report
from dpvision.errors import ConfigError
from dpvision.settings.training import Config

if TYPE_CHECKING:
    from dpvision.cli.screen import Show
    from dpvision.data import Split
    from dpvision.private.training.train import Progress

Track = Annotated[
    tuple[Literal["tensorboard", "trackio"], ...],
    option(
        "Output",
        "Also send epsilon and test accuracy to this tracker, and nothing private; repeat it for several.",
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
    recipe: Recipe = "default",
    config: SettingsFile = None,
    new_account: NewAccount = None,
    track: Track = (),
    dry_run: DryRun = False,
    plan: Plan = False,
    **flags: Any,
) -> None:
    """Train a classifier privately.

    You decide about the data and epsilon. Everything else has a default, is computed from public numbers, or comes with
    a recipe; the plan is printed first. The data set's ledger is charged before training starts. For several worker
    processes: `torchrun --nproc-per-node 2 -m dpvision train ...`.

    Example: `dpvision train digits --epsilon 3 --out runs/first`
    """
    from dpvision.private.training.metrics import require_installed
    from dpvision.storage.run_folder import next_free, require_free

    require_installed(track)
    settings = training_settings(recipe, config, flags)
    if not (dry_run or plan):
        require_free(out := out or next_free())

    from dpvision.cli import screen
    from dpvision.cli.plan import show_planned_runs, show_training
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training import ranks
    from dpvision.private.training.prepare import prepare
    from dpvision.private.training.train import require_room_for_canaries

    ranks.start()
    with screen.progress("reading images") as show:
        prepared = prepare(data, settings, lambda *done: show("building the prior", *done))
        if settings.sigma is not None:
            _require_enough_noise(prepared)
        show("looking up earlier uses of these images")
        accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if ranks.rank() == 0:
        show_training(prepared, accounts)
        if settings.recipe.startswith("dp-randp") and not settings.pretrained:
            screen.say(
                f"note: recipe {settings.recipe} is meant to start from pretrained weights, and none are given: "
                "weights are random. Fix: `dpvision pretrain`, then --pretrained PRIOR/weights.safetensors."
            )
    if plan:
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            show_planned_runs(accounts.plan(prepared.event(), prepared.config, prepared.sketch))
        return
    if dry_run or out is None:
        accounts.require_room(prepared.event(), prepared.config)
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            screen.say("dry run: no run was made, nothing was charged.")
        return
    test_key = os.environ.get("DPVISION_TEST_KEY") or None
    _train_to(out, prepared, track, test_key=test_key, accounts=accounts)


@verb
@takes(Config, lambda of: of.resumable, default="as in the run", common=False)
def resume(
    run: Annotated[Path, Parameter(help="Folder of a run that was stopped.")],
    /,
    *,
    track: Track = (),
    **flags: Any,
) -> None:
    """Continue a run that was stopped, to the same weights bit by bit.

    Settings are those of the run. A changed setting starts a branch: fresh noise, and the remaining steps are charged
    to the ledger again.

    Example: `dpvision resume runs/first`
    """
    from dpvision.cli import screen
    from dpvision.cli.plan import note_other_ranks
    from dpvision.private.training import ranks
    from dpvision.private.training.metrics import require_installed
    from dpvision.private.training.train import reopen
    from dpvision.storage.run_folder import Run

    require_installed(track)
    changes = read(Config, flags)
    folder = Run(Path(os.path.abspath(run)))
    folder.config()  # a clear error if it is not the folder of a run
    if changes and folder.facts().get("complete") is True:
        raise ConfigError(f"{run}: the run is finished, so {', '.join(changes)} cannot change. Fix: a new run.")
    ranks.start()
    if ranks.rank() == 0:
        note_other_ranks(folder.facts(), ranks.ranks())
    with screen.progress("reading images"):
        prepared = reopen(folder, changes)
    _train_to(folder, prepared, track)


def _require_enough_noise(prepared: Any) -> None:
    """Refuse a noise multiplier that does not keep the epsilon that was asked for."""
    from dpvision.core import accountant
    from dpvision.settings.figures import upper

    config = prepared.config
    epsilon = accountant.epsilon(prepared.event(), config.delta)
    if epsilon > config.epsilon:
        raise ConfigError(
            f"sigma {config.sigma:g} gives epsilon {upper(epsilon, 4)}, more than the {config.epsilon:g} that was "
            "asked for. Fix: leave --sigma out, and it is computed."
        )


def _train_to(to: Any, prepared: Any, track: tuple[str, ...], **begin: Any) -> None:
    """Train to the end or to a stop, write the report and print what was reached."""
    from dpvision.cli import screen
    from dpvision.private.training import ranks
    from dpvision.private.training.train import run as train_run

    is_first = ranks.rank() == 0
    with screen.progress("preparing the run") as show:
        outcome = train_run(prepared, to, track=track, face=_face(show), **begin)
    run = outcome.run
    if not outcome.complete:
        if is_first:
            launch = "dpvision" if ranks.ranks() == 1 else f"torchrun --nproc-per-node {ranks.ranks()} -m dpvision"
            screen.say(f"stopped; every step is charged and saved. To continue: {launch} resume {run.folder}")
        sys.exit(130)
    if not is_first:
        return
    from dpvision.private.training import gradient_study
    from dpvision.released.report import card, sentence

    paths = write_report(run)
    if prepared.config.study:
        picture = run.operator / "gradients.svg"
        gradient_study.plot([run], picture)
        screen.say(f"gradients before clipping, not for release: {picture}")
    screen.say(f"trained in {outcome.seconds:.1f} s" if outcome.seconds else "the run is finished already")
    if outcome.accuracy is not None:
        majority = _majority(prepared.data.test, prepared.data.classes)
        which = f"{prepared.config.release} weights, a choice made before training"
        screen.say(f"test accuracy {outcome.accuracy:.2%} ({which}){majority}")
    screen.say(sentence(card(run, None)))
    screen.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")


def _face(show: Show) -> Any:
    """What the operator sees of a run, and Ctrl-C as the way to stop it."""
    from dpvision.cli import screen
    from dpvision.private.training.train import Face

    class Screen(Face):
        @contextmanager
        def features(self) -> Iterator[Callable[[int, int], None]]:
            yield lambda done, total: show("computing features, per cent", round(100 * done / max(total, 1)), 100)

        @contextmanager
        def training(self) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
            show("checking the gradient computation and charging the ledger")

            def watch(at: Progress) -> None:
                show("training", at.step, at.steps, f"epsilon {at.epsilon:.2f} charged")

            with screen.stoppable() as stop:
                yield watch, stop

    return Screen()


def _majority(split: Split | None, classes: tuple[str, ...]) -> str:
    """The accuracy of always answering the most frequent class, by which another accuracy can be judged."""
    if split is None:
        return ""
    best, count = Counter(split.labels.tolist()).most_common(1)[0]
    return f"; always answering {classes[best]!r} would give {count / len(split.labels):.2%}"
