"""The verbs recipes and tune: named settings, and private hyperparameter tuning with a random number of trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli import screen
from dpvision.cli.app import (
    DataSet,
    DryRun,
    NewAccount,
    Recipe,
    RunFolder,
    SettingsFile,
    option,
    out_option,
    takes,
    training_settings,
    verb,
)
from dpvision.errors import ConfigError
from dpvision.settings.setting import Setting, declared
from dpvision.settings.training import Config


def fixed_for_all(of: Setting) -> bool:
    """Return whether `tune` takes this setting for all candidates: it is about privacy or data, or is tunable."""
    return of.tunable or of.group == "Data" or of.name in ("epsilon", "delta", "unit", "budget", "device", "precision")


@verb
@takes(Config, fixed_for_all)
def tune(
    data: DataSet,
    /,
    *,
    grid: Annotated[
        list[str],
        option("Optimisation", "Setting and values to try, such as lr=0.5,1,2; may be repeated for other settings."),
    ],
    score: Annotated[
        str,
        option(
            "Public data",
            "Public labelled images of the same classes, to score candidates: an .npz, a folder or a .csv.",
        ),
    ],
    out: RunFolder = None,
    trials: Annotated[
        float, option("Optimisation", "Expected number of trials; the actual number is random and stays secret.")
    ] = 8,
    eta: Annotated[
        float,
        option(
            "Optimisation",
            "Distribution of the number of trials: 1 geometric; 0 logarithmic, cheaper but more often only 1 trial.",
        ),
    ] = 1,
    recipe: Recipe = "default",
    config: SettingsFile = None,
    new_account: NewAccount = None,
    dry_run: DryRun = False,
    **flags: Any,
) -> None:
    """Tune hyperparameters privately, by a score on public images.

    Trains a random number of candidates and releases the best one. The ledger is charged once for all trials, before
    the first one starts. The number of trials stays secret.

    Example: `dpvision tune private.npz --epsilon 3 --grid lr=1,2,4 --score public.npz --out runs/tuned`
    """
    from dpvision.storage.run_folder import next_free, require_free

    settings = training_settings(recipe, config, flags)
    values = dict(_values(text) for text in grid)
    if not dry_run:
        require_free(out := out or next_free())

    from dpvision.cli.plan import show_tuning
    from dpvision.cli.train import show_result, write_report
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.training.tune import prepare, proceed

    with screen.progress("reading images"):
        prepared = prepare(data, settings, values, score=score, trials=trials, eta=eta)
        accounts = choose(prepared.first.fingerprint, prepared.first.sketch, new_account=new_account)
    show_tuning(prepared, accounts)
    if dry_run or out is None:
        accounts.require_room(prepared.event, prepared.first.config)
        screen.say("dry run: nothing was trained, nothing was charged.")
        return
    screen.say("tuning; progress and time are not shown, since they would reveal the secret number of trials")
    run = proceed(prepared, out, accounts=accounts)
    paths = write_report(run)
    facts = run.facts()["tuning"]
    chosen = ", ".join(f"{name} {value}" for name, value in facts["chosen"].items())
    screen.say(f"chosen: {chosen}; accuracy {facts['score_of_the_chosen']:.2%} on the public images")
    show_result(run, paths)


def _values(text: str) -> tuple[str, list[Any]]:
    """Parse an option such as lr=0.5,1 into a name and its values: numbers, true, false, or else words."""
    name, _, values = text.partition("=")
    if not name.strip() or not values.strip():
        raise ConfigError(f"--grid {text}: it must be a setting with its values. Fix: use --grid lr=0.5,1,2.")
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


@verb
def recipes(
    action: Annotated[Literal["list", "show", "copy"], Parameter(help="Action to perform.")] = "list",
    name: Annotated[str | None, Parameter(help="Recipe to show or copy.")] = None,
    /,
    *,
    out: Annotated[Path | None, out_option("With `copy`: TOML file to write.", default="NAME.toml")] = None,
) -> None:
    """List recipes, show one, or copy one to a TOML file for `--config`.

    Example: `dpvision recipes show small-cnn`
    """
    import inspect

    from dpvision.core import files
    from dpvision.settings.recipes import RECIPES, RELEASES
    from dpvision.settings.recipes import recipe as named
    from dpvision.settings.release import Release, unused_settings
    from dpvision.settings.setting import write_toml

    if action == "list":
        for verb_name, known in (("train", RECIPES), ("release", RELEASES)):
            rows = [[k, (f.__doc__ or "").split("\n")[0]] for k, f in known.items()]
            screen.grid([f"recipe of {verb_name}", "description"], rows)
        return
    if name is None:
        raise ConfigError(
            f"recipes {action} needs the name of a recipe. Fix: choose one that `dpvision recipes` lists."
        )
    verb_name = "release" if name in RELEASES else "train"
    settings = RELEASES[name]() if name in RELEASES else named(name)
    # No recipe sets epsilon: it is a decision of the user.
    left_out = {"epsilon"} | (unused_settings(settings) if isinstance(settings, Release) else set())
    lines = write_toml(settings).splitlines(keepends=True)
    text = "".join(line for line in lines if line.split(" = ")[0] not in left_out)
    if action == "show":
        screen.say(inspect.getdoc({**RECIPES, **RELEASES}[name]) or "")
        screen.say()
        screen.say(text.rstrip())
        return
    target = out or Path(f"{name}.toml")
    if target.exists():
        raise ConfigError(f"{target}: already exists. Fix: use another --out.")
    files.write(target, text, mode=0o644)
    screen.say(f"wrote {target}; use it with `dpvision {verb_name} DATA --epsilon EPSILON --config {target}`")
