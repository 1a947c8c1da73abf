"""train and resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import (
    Channels,
    Classes,
    ClipStyle,
    Data,
    NewAccount,
    Size,
    SkipBroken,
    app,
    class_list,
    given,
    word_list,
)
from dpvision.cli.reporting import write_report
from dpvision.errors import ConfigError

Part = Literal["all", "head", "centred-head", "probe", "bias"]
Track = Annotated[
    tuple[Literal["tensorboard", "trackio"], ...],
    Parameter(negative="", help="show epsilon and test accuracy there, too; nothing private; may repeat"),
]


@app.command
def train(
    source: Data,
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(name=["--out", "-o"], help="folder of the run, new; by default the next in runs/"),
    ] = None,
    epsilon: Annotated[float | None, Parameter(help="how much may be told; 1 is strong, 8 is weak")] = None,
    delta: Annotated[float | None, Parameter(help="chance that it is more; 1e-5, below 1/n")] = None,
    recipe: Annotated[str, Parameter(help="see `dpvision recipes`")] = "default",
    config: Annotated[Path | None, Parameter(help="TOML file of settings; flags win over it")] = None,
    model: Annotated[str | None, Parameter(help="such as wrn-16-4 or scatter-linear; by default by n")] = None,
    part: Annotated[Part | None, Parameter(help="what is trained of the model")] = None,
    pretrained: Annotated[Path | None, Parameter(help="public weights to start from, a .safetensors file")] = None,
    prior: Annotated[
        Literal["patches"] | None, Parameter(help="weights to start from are made, of random images, and kept")
    ] = None,
    unit: Annotated[Literal["image", "person"] | None, Parameter(help="whom the guarantee protects")] = None,
    n: Annotated[int | None, Parameter(help="declare the public number of units")] = None,
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    batch: Annotated[int | None, Parameter(help="expected batch; half of n, at most 4096")] = None,
    full_batch: Annotated[bool | None, Parameter(negative="", help="every unit in every step")] = None,
    steps: Annotated[int | None, Parameter(help="by default 30 expected passes, 50 below 5,000 units")] = None,
    sigma: Annotated[float | None, Parameter(help="noise multiplier; by default what epsilon needs")] = None,
    lr: Annotated[float | None, Parameter(help="learning rate")] = None,
    final_noise: Annotated[float | None, Parameter(help="sets lr: noise in each weight at the end")] = None,
    probe_steps: Annotated[int | None, Parameter(help="so many steps learn the head and its norm first")] = None,
    probe_share: Annotated[float | None, Parameter(help="instead: as many as tell this share of epsilon")] = None,
    probe_lr: Annotated[float | None, Parameter(help="learning rate of these steps")] = None,
    momentum: float | None = None,
    clip: Annotated[float | None, Parameter(help="bound on one unit's gradient")] = None,
    clip_style: Annotated[ClipStyle | None, Parameter(help="scale down, normalise, or clip each layer")] = None,
    ema: Annotated[float | None, Parameter(help="decay of the running average of the weights")] = None,
    release: Annotated[Literal["ema", "last"] | None, Parameter(help="which weights; chosen before training")] = None,
    seed: Annotated[int | None, Parameter(help="initial weights only; noise never has a seed")] = None,
    physical: Annotated[int | None, Parameter(help="images worked on at a time: memory against speed")] = None,
    augment: Annotated[str | None, Parameter(help="what is done to views: crop,flip,cutout,jitter,autoaugment")] = None,
    k_base: Annotated[int | None, Parameter(help="views of an image itself")] = None,
    k_self: Annotated[int | None, Parameter(help="mixtures of two of its other views")] = None,
    k_diff: Annotated[int | None, Parameter(help="public images beside it, from --synthetic")] = None,
    mix: Annotated[Literal["mixup", "cutmix"] | None, Parameter(help="how two views are mixed")] = None,
    mix_alpha: Annotated[float | None, Parameter(help="shares of a mixture are Beta(alpha, alpha)")] = None,
    synthetic: Annotated[
        str | None,
        Parameter(name=["--synthetic", "--public"], help="public images of the same classes: .npz, folder, csv"),
    ] = None,
    assist: Annotated[
        Literal["none", "weights", "dope", "mirror", "adadps"] | None,
        Parameter(help="how gradients of public images assist: weight multiplicity, DOPE-SGD, mirror descent, AdaDPS"),
    ] = None,
    public_batch: Annotated[int | None, Parameter(help="public images in one public gradient")] = None,
    radius: Annotated[float | None, Parameter(help="weight multiplicity: how far weights are moved")] = None,
    adaptive: Annotated[bool | None, Parameter(negative="", help="in proportion to the weights")] = None,
    horizon: Annotated[float | None, Parameter(help="mirror: public alone after so many times all steps")] = None,
    floor: Annotated[float | None, Parameter(help="adadps: added to the second moment, in units of its mean")] = None,
    canaries: Annotated[
        int | None, Parameter(help="units that are no one's, to audit the run by; 1000 or all weights; costs accuracy")
    ] = None,
    checkpoint_every: Annotated[int | None, Parameter(help="steps between saved states")] = None,
    study: Annotated[
        bool | None, Parameter(negative="", help="look at gradients before clipping, for you alone")
    ] = None,
    budget: Annotated[
        float | None, Parameter(help="the data set's epsilon over all runs, if this is its first")
    ] = None,
    new_account: NewAccount = None,
    track: Track = (),
    examples: Annotated[
        int | None, Parameter(help="TEST images on the report: so many named right, as many wrong; by default none")
    ] = None,
    licence: Annotated[str | None, Parameter(help="under which others may use the weights; on the card")] = None,
    public_licence: Annotated[str | None, Parameter(help="of the public weights or images that go in")] = None,
    dry_run: Annotated[
        bool, Parameter(negative="", help="print the plan and stop; no run is made, nothing charged")
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
    """Train a classifier privately.

    The data set's ledger is charged before training starts. What is not given is computed from public numbers. Several
    processes train together by `torchrun --nproc-per-node 2 -m dpvision train ...`.

    Example: `dpvision train digits --epsilon 3 --out runs/first`
    """
    flags = {name: _READ_AS[name](value) if name in _READ_AS else value for name, value in given(locals()).items()}
    from dpvision.private.training.trackers import require
    from dpvision.settings.recipes import recipe as named
    from dpvision.settings.training import Config, merged, read_toml
    from dpvision.storage.run_folder import next_free, require_free

    require(track)
    stated = {} if config is None else read_toml(config)
    asked = {"epsilon": epsilon} if epsilon is not None else {k: stated[k] for k in ("epsilon",) if k in stated}
    settings = named(recipe, epsilon=merged(Config(), asked, source="epsilon").epsilon if asked else None)
    for name in {"pretrained", "synthetic"} & stated.keys():
        stated[name] = _place(str(stated[name]), beside=config)
    settings = merged(settings, stated, source=str(config))
    if epsilon is None and "epsilon" not in stated:
        raise ConfigError(
            "--epsilon is missing: how much may be told about any one image or person is a decision, so it has no "
            "default. Usual: 1 for a strong guarantee, 3 for a sound one, 8 for a weak one."
        )
    settings = merged(settings, flags, source="command line")
    if not (dry_run or plan):
        require_free(out := out or next_free())

    from dpvision.cli import screen
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training import ranks
    from dpvision.private.training.prepare import prepare
    from dpvision.private.training.train import begin, require_room_for_canaries

    ranks.start()
    with screen.counting_bar("preparing") as progress:
        prepared = prepare(source, settings, progress)
    if settings.sigma is not None:
        _require_noise(prepared)
    accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if ranks.rank() == 0:
        screen.show_training(prepared, accounts)
        if settings.recipe.startswith("dp-randp") and not settings.pretrained:
            screen.say(
                f"note: recipe {settings.recipe} is meant to start from a prior, and none is given: weights are "
                "random. Fix: `dpvision pretrain`, then --pretrained PRIOR/weights.safetensors."
            )
    if plan:
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            screen.show_plan(accounts.plan(prepared.event(), prepared.config, prepared.sketch))
        return
    if dry_run or out is None:
        accounts.require_room(prepared.event(), prepared.config)
        require_room_for_canaries(prepared)
        if ranks.rank() == 0:
            screen.say("dry run: no run was made, nothing was charged.")
        return
    test_key = os.environ.get("DPVISION_TEST_KEY") or None
    _train_on(begin(prepared, out, test_key=test_key, accounts=accounts), prepared, track)


@app.command
def resume(
    run: Path,
    /,
    *,
    lr: float | None = None,
    momentum: float | None = None,
    clip: float | None = None,
    clip_style: ClipStyle | None = None,
    ema: float | None = None,
    batch: int | None = None,
    steps: int | None = None,
    sigma: float | None = None,
    physical: int | None = None,
    checkpoint_every: int | None = None,
    track: Track = (),
) -> None:
    """Go on with a run that was stopped, to the same weights bit by bit.

    A changed setting starts a branch: fresh noise, and the rest of the steps are charged to the ledger again.

    Example: `dpvision resume runs/first`
    """
    flags = given(locals())
    from dpvision.cli import screen
    from dpvision.private.training import ranks
    from dpvision.private.training.trackers import require
    from dpvision.private.training.train import reopen
    from dpvision.storage.run_folder import Run

    require(track)
    folder = Run(Path(os.path.abspath(run)))
    folder.config()  # a clear error if this is no run
    if flags and folder.facts().get("complete") is True:
        raise ConfigError(f"{run}: the run is finished, so {', '.join(flags)} can not change. Fix: a new run.")
    ranks.start()
    if ranks.rank() == 0:
        screen.note_other_ranks(folder.facts(), ranks.ranks())
    _train_on(folder, reopen(folder, flags), track)


def _place(source: str, *, beside: Path | None = None) -> str:
    """A public input, found again from anywhere. In a settings file, paths are meant from its folder."""
    return source if source == "digits" else os.path.abspath(os.path.join(beside.parent if beside else "", source))


_READ_AS: dict[str, Callable[[str], Any]] = {
    "classes": class_list,
    "augment": word_list,
    "pretrained": os.path.abspath,
    "synthetic": _place,
}


def _require_noise(prepared: Any) -> None:
    """A noise that was asked for, beside an epsilon that was."""
    from dpvision.core import accountant
    from dpvision.core.rounding import upper

    config = prepared.config
    told = accountant.epsilon(prepared.event(), config.delta)
    if told > config.epsilon:
        raise ConfigError(
            f"sigma {config.sigma:g} makes it epsilon {upper(told, 4)}, more than the {config.epsilon:g} that is asked "
            "for. Fix: leave --sigma out, and it is computed."
        )


def _train_on(run: Any, prepared: Any, track: tuple[str, ...]) -> None:
    from dpvision.cli import screen
    from dpvision.private.training import ranks, trackers
    from dpvision.private.training.train import proceed

    alone, first = ranks.ranks() == 1, ranks.rank() == 0
    with screen.counting_bar("features") as progress:
        prepared.warm(progress)
    with (
        trackers.opened(track if first else (), run.folder) as there,
        screen.stoppable() as stop,
        screen.training_bar(prepared.config.epsilon, shown=first) as watch,
    ):
        outcome = proceed(run, prepared, watch=watch, stop=stop, trackers=there)
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
        screen.say(f"gradients before clipping, for your eyes only: {picture}")
    screen.say(f"trained in {outcome.seconds:.1f} s" if outcome.seconds else "the run is finished already")
    if outcome.accuracy is not None:
        most = screen.majority(prepared.data.test, prepared.data.classes)
        which = f"{prepared.config.release} weights, a choice made before training"
        screen.say(f"test accuracy {outcome.accuracy:.2%} ({which}){most}")
    screen.say(sentence(card(run, None)))
    screen.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")
