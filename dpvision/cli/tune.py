"""tune: the best of a random number of trials."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import Data, DryRun, NewAccount, Recipe, RunFolder, SettingsFile, app
from dpvision.cli.options import PANELS, takes, training_settings
from dpvision.errors import ConfigError
from dpvision.settings.setting import Setting, declared
from dpvision.settings.training import Config


def fixed_for_all(of: Setting) -> bool:
    """Whether a tuning takes this setting for all of its candidates: the guarantee, the data, and what it could try."""
    return of.tunable or of.group == "Data" or of.name in ("epsilon", "delta", "unit", "budget")


@app.command
@takes(Config, fixed_for_all)
def tune(
    source: Data,
    /,
    *,
    grid: Annotated[
        list[str],
        Parameter(
            negative="",
            group=PANELS["Optimisation"],
            help="A setting and the values to try, such as lr=0.5,1,2; repeat it for other settings.",
        ),
    ],
    score: Annotated[
        str,
        Parameter(
            group=PANELS["Public data"],
            help="Public labelled images of the same classes, to score by: an .npz, a folder or a .csv.",
        ),
    ],
    out: RunFolder = None,
    trials: Annotated[
        float,
        Parameter(
            group=PANELS["Optimisation"], help="Expected number of trials; their actual number is drawn in secret."
        ),
    ] = 8,
    eta: Annotated[
        float,
        Parameter(
            group=PANELS["Optimisation"],
            help="Distribution of that number: 1 geometric; 0 logarithmic, which costs less and is more often one.",
        ),
    ] = 1,
    recipe: Recipe = "default",
    config: SettingsFile = None,
    new_account: NewAccount = None,
    dry_run: DryRun = False,
    **flags: Any,
) -> None:
    """Choose settings privately: train a random number of candidates, release the best by a public score.

    The ledger is charged once, for the whole, before the first trial. How many trials there were is secret.

    Example: `dpvision tune private.npz --epsilon 3 --grid lr=1,2,4 --score public.npz --out runs/tuned`
    """
    from dpvision.storage.run_folder import next_free, require_free

    settings = training_settings(recipe, config, flags)
    values = dict(_values(text) for text in grid)
    if not dry_run:
        require_free(out := out or next_free())

    from dpvision.cli import plans, screen
    from dpvision.cli.reporting import write_report
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training.tune import prepare, proceed, without_times
    from dpvision.released.report import card, sentence

    prepared = prepare(source, settings, values, score=score, trials=trials, eta=eta)
    accounts = choose(prepared.first.fingerprint, prepared.first.sketch, new_account=new_account)
    plans.show_tuning(prepared, accounts)
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
    name = name.strip().replace("-", "_")
    of = declared(Config).get(name)
    read = _value if of is None or of.from_text is None else of.from_text
    return name, [read(word.strip()) for word in values.split(",")]


def _value(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
