"""tune: the best of a random number of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import Channels, Classes, Data, NewAccount, Size, app, class_list, given
from dpvision.errors import ConfigError


@app.command
def tune(
    source: Data,
    /,
    *,
    epsilon: Annotated[float, Parameter(help="how much the whole tuning may tell")],
    grid: Annotated[list[str], Parameter(negative="", help="a setting and its values, such as lr=0.5,1,2; repeat it")],
    score: Annotated[str, Parameter(help="public labelled images of the same classes: .npz, folder, csv")],
    out: Annotated[
        Path | None, Parameter(name=["--out", "-o"], help="folder of the run, new; by default the next in runs/")
    ] = None,
    trials: Annotated[float, Parameter(help="how many trials are expected; how many there are is drawn in secret")] = 8,
    eta: Annotated[float, Parameter(help="shape of that number: 1 geometric; 0 logarithmic, cheaper, oftener one")] = 1,
    delta: Annotated[float | None, Parameter(help="chance that it is more; 1e-5, below 1/n")] = None,
    recipe: Annotated[str, Parameter(help="see `dpvision recipes`; settings that are not in the grid")] = "default",
    config: Annotated[Path | None, Parameter(help="TOML file of settings; flags win over it")] = None,
    model: Annotated[str | None, Parameter(help="such as scatter-linear; by default by n")] = None,
    unit: Annotated[Literal["image", "person"] | None, Parameter(help="whom the guarantee protects")] = None,
    n: Annotated[int | None, Parameter(help="declare the public number of units")] = None,
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    batch: Annotated[int | None, Parameter(help="expected batch")] = None,
    steps: Annotated[int | None, Parameter(help="of each trial")] = None,
    budget: Annotated[
        float | None, Parameter(help="the data set's epsilon over all runs, if this is its first")
    ] = None,
    new_account: NewAccount = None,
    dry_run: Annotated[bool, Parameter(negative="", help="print the plan and stop; nothing is charged")] = False,
) -> None:
    """Choose settings privately: train a random number of candidates, release the best by a public score.

    The ledger is charged once, for the whole, before the first trial. How many trials there were is secret.

    Example: `dpvision tune private.npz --epsilon 3 --grid lr=1,2,4 --score public.npz --out runs/tuned`
    """
    flags = given(locals())
    from dpvision.settings.recipes import recipe as named
    from dpvision.settings.training import Config, merged, read_toml
    from dpvision.storage.run_folder import next_free, require_free

    if classes is not None:
        flags["classes"] = class_list(classes)
    settings = merged(
        named(recipe, epsilon=merged(Config(), {"epsilon": epsilon}, source="epsilon").epsilon),
        {
            **({} if config is None else read_toml(config)),
            **flags,
        },
        source="command line",
    )
    values = dict(_values(text) for text in grid)
    if not dry_run:
        require_free(out := out or next_free())

    from dpvision.cli import screen
    from dpvision.cli.reporting import write_report
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training.tune import prepare, proceed, without_times
    from dpvision.released.report import card, sentence

    prepared = prepare(source, settings, values, score=score, trials=trials, eta=eta)
    accounts = choose(prepared.first.fingerprint, prepared.first.sketch, new_account=new_account)
    screen.show_tuning(prepared, accounts)
    if dry_run or out is None:
        accounts.require_room(prepared.event, prepared.first.config)
        screen.say("dry run: no run was made, nothing was charged.")
        return
    with screen.counting_bar("trials so far") as progress:  # how many there will be is not told
        run = proceed(prepared, out, accounts=accounts, watch=lambda done: progress(done, done + 1))
    paths = write_report(run)
    without_times(run)
    told = run.facts()["tuning"]
    chosen = ", ".join(f"{name} {value}" for name, value in told["chosen"].items())
    screen.say(f"chosen: {chosen}; right on {told['score_of_the_chosen']:.2%} of the public images")
    screen.say(sentence(card(run, None)))
    screen.say(f"run folder {run.folder}: {', '.join(p.name for p in paths)}, weights.safetensors")


def _values(text: str) -> tuple[str, list[Any]]:
    """lr=0.5,1 -> lr and its values: numbers where they are numbers, true, false, otherwise words."""
    name, _, values = text.partition("=")
    if not name.strip() or not values.strip():
        raise ConfigError(f"--grid {text}: it must be a setting and its values. Fix: --grid lr=0.5,1,2.")
    return name.strip().replace("-", "_"), [_value(word.strip()) for word in values.split(",")]


def _value(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
