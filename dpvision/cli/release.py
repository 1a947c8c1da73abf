"""The verbs release and features: publish private features, and compute matching features of other images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from dpvision.cli import screen
from dpvision.cli.app import (
    Classes,
    DataSet,
    Device,
    DryRun,
    EncoderWeights,
    NewAccount,
    Plan,
    SettingsFile,
    existing,
    option,
    out_option,
    read,
    read_settings_file,
    require_epsilon,
    takes,
    verb,
)
from dpvision.errors import ConfigError
from dpvision.settings.release import Release
from dpvision.settings.setting import class_list, declared


@verb
@takes(Release)
def release(
    data: DataSet,
    /,
    *,
    out: Annotated[
        Path | None, out_option("Folder to write; it must be new.", default="next free number in releases/")
    ] = None,
    recipe: Annotated[str | None, option("Model", declared(Release)["recipe"].help, default="moments")] = None,
    config: SettingsFile = None,
    new_account: NewAccount = None,
    accounting: Annotated[
        Literal["sound", "paper"],
        option("Privacy", "With `paper`: compare with the published accounting of this method, and exit."),
    ] = "sound",
    device: Device = "auto",
    dry_run: DryRun = False,
    plan: Plan = False,
    **flags: Any,
) -> None:
    """Publish private features of a data set for anyone to train on.

    Training on them has no further privacy cost. Only the data set and epsilon are required. The plan is printed first,
    and the data set's ledger is charged before any noise is drawn.

    Example: `dpvision release digits --epsilon 1`
    """
    from dpvision.settings.recipes import release_recipe
    from dpvision.settings.release import with_changes
    from dpvision.settings.setting import check_values

    given, from_file = read(Release, flags), read_settings_file(Release, config)
    require_epsilon(given, from_file, whom="any one image or person")
    named = str(from_file.pop("recipe", recipe or "moments"))
    if recipe not in (None, named):
        raise ConfigError(f"{config}: names recipe {named}, but --recipe is {recipe}. Fix: leave one of them out.")
    settings = with_changes(release_recipe(named), check_values(Release, from_file, source=str(config)))
    settings = with_changes(settings, check_values(Release, given, source="command line"))

    from dpvision.cli.plan import show_planned_runs, show_release
    from dpvision.cli.train import say_total
    from dpvision.models.device import find_device, fix_arithmetic
    from dpvision.private.accounts.accounts import choose
    from dpvision.private.statistics.release import Encoded, make, prepare, require_encoder, require_possible
    from dpvision.private.training import ranks
    from dpvision.released.folder import next_free

    ranks.start()
    place = find_device(device, report=screen.say)
    fix_arithmetic(place)
    with screen.progress("reading images"):
        prepared = prepare(data, settings)
    is_first = ranks.rank() == 0
    if accounting == "paper":
        from dpvision.audit.hierarchical import compare_accounts

        table = compare_accounts(prepared.config, len(prepared.data.classes))
        screen.table(table, title="published accounting, for comparison")
        screen.say("comparison only: nothing was written or charged.")
        return
    accounts = choose(prepared.fingerprint, prepared.sketch, new_account=new_account)
    if is_first:
        show_release(prepared, accounts)
    out, test_key = out or next_free(), os.environ.get("DPVISION_TEST_KEY") or None
    require_possible(prepared, out, test_key, accounts)
    if plan:
        if is_first:
            show_planned_runs(accounts.plan(prepared.event(), prepared.config, prepared.sketch), data)
        return
    if dry_run:
        require_encoder(prepared)
        screen.say(f"dry run: nothing was released, nothing was charged. The release would be written to {out}.")
        return
    with screen.progress("preparing the encoder") as show:
        progress = screen.in_percent(show)
        encoded = Encoded(prepared, progress, device=place)  # computed by all worker processes together
        if not is_first:
            return  # only the first process charges the ledger and draws the noise
        card = make(prepared, out, encoded=encoded, test_key=test_key, accounts=accounts, progress=progress)
    for name, value in (card["accuracy"] or {}).items():
        screen.say(f"test accuracy, {name}: {value:.2%}; mean over the classes {card['balanced_accuracy'][name]:.2%}")
    say_total(card)
    if card["status"] == "private":
        screen.say(f"wrote {out}: it may be released, with its card.md and README.md")
    else:
        screen.say(f"wrote {out}: {card['status']}; it must not be released")


@verb
def features(
    folder: Annotated[Path, existing("Folder of a release.")],
    data: DataSet,
    /,
    *,
    out: Annotated[Path, out_option("File to write (.safetensors); it must be new.")],
    split: Annotated[Literal["train", "val", "test"], option("Data", "Split to encode.")] = "test",
    weights: EncoderWeights = None,
    classes: Classes = None,
    device: Device = "auto",
) -> None:
    """Compute features of other images, to test models trained on a release.

    These features have no noise: they are as private as the images.

    Example: `dpvision features releases/1 digits --out test.safetensors`
    """
    from dpvision.models.device import find_device, fix_arithmetic
    from dpvision.private.features.public_map import features_of, origin_of
    from dpvision.released.folder import write_arrays

    if out.exists() or out.suffix != ".safetensors":
        raise ConfigError(f"{out}: must be a new file whose name ends in .safetensors. Fix: use another --out.")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.parent}. Fix: create it first, or use another --out.")
    place = find_device(device, report=screen.say)
    fix_arithmetic(place)
    with screen.progress("reading images") as show:
        arrays = features_of(
            folder,
            data,
            split=split,
            weights=weights,
            classes=class_list(classes),
            progress=screen.in_percent(show),
            device=place,
        )
    write_arrays(out, arrays, {"encoder": origin_of(folder)}, mode=0o600)  # one entry: several have no fixed order
    screen.say(f"wrote {out}: features {arrays['features'].shape} and labels, as private as the images")
