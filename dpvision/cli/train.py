"""train and resume: a private training, from its settings to its report."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import Data, DryRun, NewAccount, Plan, Recipe, RunFolder, SettingsFile, app
from dpvision.cli.options import PANELS, read, takes, training_settings
from dpvision.cli.reporting import write_report
from dpvision.errors import ConfigError
from dpvision.settings.training import Config

Track = Annotated[
    tuple[Literal["tensorboard", "trackio"], ...],
    Parameter(
        negative="",
        group=PANELS["Output"],
        show_default=False,
        help="Also show epsilon and test accuracy there, nothing private; may repeat.",
    ),
]


@app.command
@takes(Config)
def train(
    source: Data,
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

    The data set's ledger is charged before training starts. Defaults are those of the recipe `default`; other recipes
    set others. What is not given is computed from public numbers. Several processes train together by
    `torchrun --nproc-per-node 2 -m dpvision train ...`.

    Example: `dpvision train digits --epsilon 3 --out runs/first`
    """
    from dpvision.private.training.trackers import require
    from dpvision.storage.run_folder import next_free, require_free

    require(track)
    settings = training_settings(recipe, config, flags)
    if not (dry_run or plan):
        require_free(out := out or next_free())

    from dpvision.cli import plans, screen
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training import ranks
    from dpvision.private.training.prepare import prepare
    from dpvision.private.training.train import require_room_for_canaries

    ranks.start()
    with screen.counting_bar("preparing") as progress:
        prepared = prepare(source, settings, progress)
    if settings.sigma is not None:
        _require_noise(prepared)
    accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if ranks.rank() == 0:
        plans.show_training(prepared, accounts)
        if settings.recipe.startswith("dp-randp") and not settings.pretrained:
            screen.say(
                f"note: recipe {settings.recipe} is meant to start from a prior, and none is given: weights are "
                "random. Fix: `dpvision pretrain`, then --pretrained PRIOR/weights.safetensors."
            )
    if plan:
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            plans.show_plan(accounts.plan(prepared.event(), prepared.config, prepared.sketch))
        return
    if dry_run or out is None:
        accounts.require_room(prepared.event(), prepared.config)
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            screen.say("dry run: no run was made, nothing was charged.")
        return
    test_key = os.environ.get("DPVISION_TEST_KEY") or None
    _train_on(out, prepared, track, test_key=test_key, accounts=accounts)


@app.command
@takes(Config, lambda of: of.resumable, default="as in the run")
def resume(
    run: Annotated[Path, Parameter(help="Folder of a run that was stopped.")],
    /,
    *,
    track: Track = (),
    **flags: Any,
) -> None:
    """Go on with a run that was stopped, to the same weights bit by bit.

    Settings are those of the run. A changed setting starts a branch: fresh noise, and the rest of the steps are charged
    to the ledger again.

    Example: `dpvision resume runs/first`
    """
    from dpvision.cli import plans
    from dpvision.private.training import ranks
    from dpvision.private.training.trackers import require
    from dpvision.private.training.train import reopen
    from dpvision.storage.run_folder import Run

    require(track)
    changes = read(Config, flags)
    folder = Run(Path(os.path.abspath(run)))
    folder.config()  # a clear error if this is no run
    if changes and folder.facts().get("complete") is True:
        raise ConfigError(f"{run}: the run is finished, so {', '.join(changes)} cannot change. Fix: a new run.")
    ranks.start()
    if ranks.rank() == 0:
        plans.note_other_ranks(folder.facts(), ranks.ranks())
    _train_on(folder, reopen(folder, changes), track)


def _require_noise(prepared: Any) -> None:
    """Refuse a noise multiplier that does not keep the epsilon that was asked for."""
    from dpvision.core import accountant
    from dpvision.core.rounding import upper

    config = prepared.config
    epsilon = accountant.epsilon(prepared.event(), config.delta)
    if epsilon > config.epsilon:
        raise ConfigError(
            f"sigma {config.sigma:g} makes it epsilon {upper(epsilon, 4)}, more than the {config.epsilon:g} that is "
            "asked for. Fix: leave --sigma out, and it is computed."
        )


def _train_on(to: Any, prepared: Any, track: tuple[str, ...], **begin: Any) -> None:
    """Train to the end or to a stop, write the report and print what was reached."""
    from dpvision.cli import screen
    from dpvision.cli.face import Screen
    from dpvision.private.training import ranks
    from dpvision.private.training.train import run as train_run

    alone, first = ranks.ranks() == 1, ranks.rank() == 0
    face = Screen(prepared.config.epsilon, shown=first)
    outcome = train_run(prepared, to, track=track, face=face, **begin)
    run = outcome.run
    if not outcome.complete:
        if first:
            launch = "dpvision" if alone else f"torchrun --nproc-per-node {ranks.ranks()} -m dpvision"
            screen.say(f"stopped; every step is charged and saved. Go on with: {launch} resume {run.folder}")
        sys.exit(130)
    if not first:
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
        most = screen.majority(prepared.data.test, prepared.data.classes)
        which = f"{prepared.config.release} weights, a choice made before training"
        screen.say(f"test accuracy {outcome.accuracy:.2%} ({which}){most}")
    screen.say(sentence(card(run, None)))
    screen.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")
