"""The verb `plan` (noise from epsilon, or epsilon from noise), and the plans printed before a run is charged."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dpvision.cli.app import NO_TEST_SPLIT, DescribeDevice, Json, flag, like, option, verb_with_parts
from dpvision.cli.screen import as_json, duration, say, table
from dpvision.errors import ConfigError
from dpvision.settings.figures import describe, upper
from dpvision.settings.release import Release
from dpvision.settings.setting import declared
from dpvision.settings.training import WAYS, Config

if TYPE_CHECKING:
    from dpvision.core.account import Account
    from dpvision.core.events import Event
    from dpvision.models.cost import Described, Prediction
    from dpvision.private.accounts.accounts import Accounts
    from dpvision.private.statistics.head_run import PreparedHead
    from dpvision.private.statistics.release import PreparedRelease
    from dpvision.private.training.train import Prepared
    from dpvision.private.training.tune import PreparedTuning
    from dpvision.storage.run_folder import Run

TRAINED = {
    "head": "the head only",
    "centred-head": "the mean of the features in the first step, then the head",
    "probe": "the head and the normalisation before it",
    "bias": "the biases and the head",
}
LOSSES = {
    "classes": "mean cross-entropy",
    "labels": "mean over images of the sum of the labels' binary cross-entropies",
    "grades": "mean over images of the sum of the thresholds' binary cross-entropies",
}
FIXED = ("linear", "scatter-linear")  # networks whose features have no weights
Confirm = Annotated[bool, flag("Output", "Confirm the answer with dp-accounting, which takes about a second.")]
_TRAINING, _RELEASE = declared(Config), declared(Release)


def _solvable_option(name: str, *, of: dict[str, Any] = _TRAINING, default: str | None = None) -> Any:
    """Describe an option by the declaration of a setting, with its effective default."""
    return like(of[name], show_default=default or of[name].default_text)


plan_verb = verb_with_parts("plan")


@plan_verb.default
def plan(
    *,
    n: Annotated[int, like(_TRAINING["n"])],
    batch: Annotated[int | None, _solvable_option("batch")] = None,
    steps: Annotated[int | None, _solvable_option("steps")] = None,
    epsilon: Annotated[
        float | None, _solvable_option("epsilon", default="computed if --sigma or --attack-success is given")
    ] = None,
    sigma: Annotated[float | None, _solvable_option("sigma", default="computed if --epsilon is given")] = None,
    delta: Annotated[float, like(_TRAINING["delta"])] = 1e-5,
    attack_success: Annotated[
        float | None,
        option(
            "Privacy",
            "Share of the members that the best membership test may find: compute the largest such epsilon.",
            default="none",
        ),
    ] = None,
    at_fpr: Annotated[
        float, option("Privacy", "With --attack-success: share of non-members that the test wrongly reports.")
    ] = 0.01,
    confirm: Confirm = False,
    model: Annotated[
        str | None, like(_TRAINING["model"], help="Network for --describe-device.", show_default="none")
    ] = None,
    views: Annotated[int, option("Views", "Number of views of each image, for --describe-device.")] = 1,
    size: Annotated[int, option("Data", "Pixels per side of an image.")] = 32,
    channels: Annotated[int, option("Data", "Channels of an image: 3 for colour, 1 for grey.")] = 3,
    classes: Annotated[int, option("Data", "Number of classes, for --describe-device.")] = 10,
    precision: Annotated[str, like(_TRAINING["precision"])] = "float32",
    describe_device: DescribeDevice = None,
    scale_down: Annotated[
        float | None,
        option("Output", "Also plan a cheap rehearsal on public data, scaled down by this factor.", default="none"),
    ] = None,
    json: Json = False,
) -> None:
    """Compute noise from epsilon, or epsilon from noise, without data.

    With --n and --epsilon only, describes what `dpvision train` would do on images of --size and --channels. Or give
    all but one of batch, steps, epsilon and sigma to compute the missing one. The answer never exceeds epsilon. Without
    epsilon and sigma, --attack-success computes both from what an attack may achieve.

    Example: `dpvision plan --n 4000 --epsilon 3 --size 28 --channels 1`,
    `dpvision plan --n 50000 --batch 4096 --steps 875 --epsilon 1 --delta 1e-5 --json`, or
    `dpvision plan --n 50000 --attack-success 0.05 --at-fpr 0.01`
    """
    from dpvision.settings.plan import plan as solve
    from dpvision.settings.plan import scaled_down

    others = (batch, steps, sigma, attack_success, model, scale_down, describe_device)
    if epsilon is not None and all(x is None for x in others):
        answer = _plan_training(n, epsilon, delta, (channels, size, size), confirm=confirm)
    else:
        answer = solve(
            n=n,
            batch=batch,
            steps=steps,
            epsilon=epsilon,
            sigma=sigma,
            delta=delta,
            attack_success=attack_success,
            at_fpr=at_fpr,
            confirm=confirm,
        )
    if scale_down is not None:
        answer["rehearsal"] = scaled_down(answer, scale_down)
    if describe_device is not None:
        shape = (channels, size, size)
        answer["estimate"] = _estimate(describe_device, answer, model, shape, classes, views=views, precision=precision)
    if json:
        as_json(answer)
        return
    rough, rehearsal = answer.pop("approximate"), answer.pop("rehearsal", None)
    limit = f"central limit: epsilon {rough['epsilon']:.4g}, mu {rough['mu']:.4g} (not a bound)"
    table({**_as_text(answer), "approximate": limit})
    if rehearsal is not None:
        table(_as_text(rehearsal), title="rehearsal")


def _plan_training(
    n: int, epsilon: float, delta: float, shape: tuple[int, int, int], *, confirm: bool
) -> dict[str, Any]:
    """Return what `train` does with these numbers; torch is imported only if public weights are at hand."""
    from dpvision.settings import auto
    from dpvision.settings.plan import plan_training
    from dpvision.storage import weights

    def width(model: str) -> int:
        known = auto.width_of(model, shape)
        if known is None:
            from dpvision.private.training import choice

            known = choice.width_of(model, shape)
        return known

    if min(shape) < 1 or shape[0] not in (1, 3):
        raise ConfigError(f"--size {shape[1]} --channels {shape[0]}: images have 1 or 3 channels and 1 pixel or more.")
    numbers = auto.Numbers(n=n, shape=shape, epsilon=epsilon, delta=delta, encoder=weights.network_at_hand())
    answer = plan_training(numbers, width=width, confirm=confirm)
    return {"images": f"assumed to be {shape[1]}x{shape[2]}x{shape[0]}: set --size and --channels", **answer}


@plan_verb.command(help_epilogue="")
def release(
    *,
    n: Annotated[int, like(_RELEASE["n"])],
    epsilon: Annotated[float, like(_RELEASE["epsilon"])],
    classes: Annotated[int, option("Data", "Number of classes.")] = 10,
    recipe: Annotated[str, like(_RELEASE["recipe"])] = "moments",
    rows: Annotated[int | None, _solvable_option("rows", of=_RELEASE)] = None,
    degree: Annotated[float | None, _solvable_option("degree", of=_RELEASE)] = None,
    delta: Annotated[float, like(_RELEASE["delta"])] = 1e-5,
    confirm: Confirm = False,
    json: Json = False,
) -> None:
    """Compute the noise of a release without data, and the degree of mixtures that biases a linear model least.

    Example: `dpvision plan release --n 60000 --epsilon 1 --classes 10`
    """
    from dpvision.settings.plan import plan_release

    answer = plan_release(
        recipe, n=n, epsilon=epsilon, classes=classes, rows=rows, degree=degree, delta=delta, confirm=confirm
    )
    if json:
        as_json(answer)
    else:
        table(_as_text(answer))


def _estimate(
    path: Path,
    answer: Mapping[str, Any],
    model: str | None,
    shape: tuple[int, int, int],
    classes: int,
    *,
    views: int,
    precision: str,
) -> str:
    """Return the estimated time of the planned training run on the device that a file describes."""
    from torch.nn.functional import cross_entropy

    from dpvision.models import build
    from dpvision.models.cost import Described, count, predict

    if model is None:
        raise ConfigError("--describe-device needs to know which network is trained. Fix: use --model NAME.")
    device = Described.read(path)
    network = build(model, shape, classes=classes, seed=0)
    cost = count(network, lambda outputs, targets: cross_entropy(outputs, targets, reduction="none"), shape)
    prediction = predict(cost, device, batch=answer["batch"], views=views, precision=precision)
    return describe_prediction(prediction, device, answer["steps"])


def _as_text(answer: Mapping[str, Any]) -> dict[str, str]:
    return {
        k.replace("_", " "): upper(v) if k == "epsilon" else f"{v:.6g}" if isinstance(v, float) else f"{v}"
        for k, v in answer.items()
    }


def show_training(
    prepared: Prepared, accounts: Accounts, describe_device: Path | None = None, *, seconds_of_prior: float = 0.0
) -> None:
    """Print the plan of a training run, and which facts about the data become public.

    With `describe_device`, the time is an estimate for the device that this file describes. `seconds_of_prior` is how
    long the prior took to build, 0 if it was cached: the predicted time does not include it.
    """
    from dpvision.private.training import ranks as distributed
    from dpvision.private.training.private_sum import count_units
    from dpvision.settings import quick

    config, event, sampler = prepared.config, prepared.event(), prepared.sampler
    ranks = distributed.ranks()
    time = _time_here(prepared, ranks) if describe_device is None else _time_on(prepared, describe_device)
    if config.prior:
        built = f"was built in {duration(seconds_of_prior)} and" if seconds_of_prior else "was built earlier and"
        time += f", not including the prior, which {built} is cached"
    weights = sum(p.numel() for p in prepared.network.build().parameters() if p.requires_grad)
    table(
        {
            **_data(prepared, config.unit),
            "model": f"{config.model}, {weights:,} weights, recipe {config.recipe}",
            **_objective(config),
            **({"chosen by": config.chosen_by} if config.chosen_by else {}),
            **_input_rows(config),
            "objective": f"{LOSSES[config.task]}, by gradient descent with learning rate {config.lr:.4g}"
            + (f", momentum {config.momentum:g}" if config.momentum else ""),
            "sampling": f"Poisson, expected batch {config.batch:,} of {config.n:,} (rate {sampler.rate:.6g})"
            if sampler.rate < 1
            else f"every {config.unit} in every step",
            "device": f"{prepared.device}, {config.precision}",
            "time": time,
            **_disk(prepared),
            "steps": f"{config.steps:,} ({sampler.rate * sampler.steps:.1f} expected passes)",
            "noise": f"sigma {config.sigma:.5g} at clip {config.clip:g}",
            "guarantee": _guarantee(event, config.delta),
            **_with_first_weights(prepared),
            "cross-check": f"{upper(quick.rdp_epsilon(event, config.delta))} by Rényi accounting, a looser bound; "
            + _central_limit(event, config.delta),
        },
        title="plan",
    )
    for note in prepared.notes:
        say(f"  note: {note}")
    count = count_units(prepared.data.train, config.unit)
    assert config.n
    if not 0.67 < count / config.n < 1.5:
        say(f"  note, not for release: n is declared as {config.n:,}, but the data has {count:,} {config.unit}s.")
    if config.assist in ("dope", "mirror") and config.lr > 1:
        say(
            f"  note: {config.assist} adds public gradients, which are not clipped: lr {config.lr:g} is likely too "
            "large. Fix: use --lr 0.5."
        )
    if prepared.public.images is not None and prepared.public.images.originals is not None:
        channels, height, width = prepared.shape
        say(f"  note: the public images were converted to {height}x{width} pixels of {channels} channels.")
    _notes(prepared, accounts)


def _disk(prepared: Prepared) -> dict[str, str]:
    """Return the row about the disk space of features that are still to be computed, if there are any."""
    import shutil

    from dpvision.storage.home import home

    size = prepared.bytes_of_features()
    if not size:
        return {}
    place = next(folder for folder in (home(), *home().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    warning = "" if size < free else ": NOT ENOUGH. Fix: set DPVISION_HOME to a larger disk, or --minutes"
    needed = f"{size / 1e9:.2g} GB for features (not for release, as the number of images may be private)"
    return {"disk": f"{needed} in {home() / 'features'}, {free / 1e9:.2g} GB free{warning}"}


def _time_here(prepared: Prepared, ranks: int) -> str:
    """Return the time of a training run on this machine, predicted from a measured rate."""
    where = "this machine" if ranks == 1 else f"{ranks} worker processes like this one"
    return f"about {duration(prepared.estimate_seconds(ranks=ranks))} on {where} at its current load"


def _time_on(prepared: Prepared, path: Path) -> str:
    """Return the estimated time of a training run on the device that a file describes."""
    from dpvision.models.cost import Described

    return describe_prediction(prepared.predict(device := Described.read(path)), device, prepared.sampler.steps)


def describe_prediction(prediction: Prediction, device: Described, steps: int) -> str:
    """Describe a prediction, and state that it is an estimate."""
    memory = f"passes of {prediction.units:,} units in {prediction.memory / 1e9:.3g} GB"
    return (
        f"about {duration(prediction.step * steps)} on {device.name}: {prediction.images_per_second:,.0f} images/s "
        f"with all their views, {memory} (an estimate from counted operations, not measured)"
    )


def show_head(prepared: PreparedHead, accounts: Accounts) -> None:
    """Print the plan of a head on features, and which facts about the data become public."""
    from dpvision.settings.figures import describe

    config, event, data = prepared.config, prepared.event(), prepared.data
    assert config.steps and config.n
    table(
        {
            "data": f"{data.name}: rows of {prepared.shape[2]:,} features, {len(data.classes)} classes",
            "unit": f"image (one row); n = {config.n:,} rows"
            if config.unit == "image"
            else f"person (the mean of their rows' contributions); n = {config.n:,} persons",
            **({"chosen by": config.chosen_by} if config.chosen_by else {}),
            **_objective(config),
            "head": f"{config.head}: the mean row, then {config.steps - 1:,} more noisy "
            + ("sum" if config.steps == 2 else "sums"),
            **_input_rows(config),
            "charged": describe(event),
            "guarantee": _guarantee(event, config.delta),
            "cross-check": _central_limit(event, config.delta),
        },
        title="plan",
    )
    _notes(prepared, accounts)


def show_tuning(prepared: PreparedTuning, accounts: Accounts) -> None:
    """Print the plan of a tuning run."""
    from dpvision.core import accountant

    first, event, stop = prepared.first, prepared.event, prepared.stopping
    alone = max(accountant.epsilon(trial, first.config.delta) for trial in set(event.trials))
    table(
        {
            **_data(first, first.config.unit),
            "candidates": f"{len(prepared.candidates):,}; each trial trains one of them, drawn uniformly at random",
            "trials": f"{stop.mean:.4g} expected; their number is secret (negative binomial, eta {stop.eta:g}, gamma "
            f"{stop.gamma:.4g}); with probability {stop.probabilities(1)[0]:.0%} it is 1",
            "mechanism": "; or ".join(dict.fromkeys(describe(trial) for trial in event.trials)),
            "one trial": f"epsilon {upper(alone)}; the rest of the budget pays for the choice",
            "score": f"accuracy on {len(prepared.score):,} public images ({prepared.score_on['file']})",
            "guarantee": f"epsilon {upper(prepared.epsilon)} at delta {first.config.delta:g}, for the whole tuning run",
        },
        title="plan",
    )
    _notes(first, accounts)


def show_release(prepared: PreparedRelease, accounts: Accounts) -> None:
    """Print the plan of a release."""
    config, event = prepared.config, prepared.event()
    table(
        {
            **_data(prepared, config.unit),
            **_objective(config),
            "recipe": f"{config.recipe}: {config.rows:,} rows"
            + (f" of expected degree {config.degree:.4g}, {config.sampling} sampling" if config.degree else ""),
            **({"chosen by": config.chosen_by} if config.chosen_by else {}),
            "features": f"{config.encoder}, "
            + (f"whitened with random images, at most {config.rank} directions" if config.rank else "not whitened"),
            "charged": describe(event),
            "guarantee": _guarantee(event, config.delta),
            "cross-check": _central_limit(event, config.delta),
        },
        title="plan",
    )
    _notes(prepared, accounts)


def show_planned_runs(account: Account, data: str) -> None:
    """Print the planned runs of an account, and how much of the budget they would use in total."""
    from dpvision.core import accountant

    after = accountant.epsilon(account.total_planned, account.budget.delta)
    for _, event in account.plan:
        say(f"planned: {describe(event)}")
    say(
        f"account {account.id}: all charged and planned runs together use epsilon {upper(after)} of "
        f"{account.budget.epsilon:g}. Nothing is charged yet: the first planned run to start charges all of them. "
        f"Repeat each command without --plan, in any order; `dpvision ledger {shlex.quote(data)} --drop-plan` deletes "
        "the plan."
    )


def note_other_arithmetic(run: Run, prepared: Prepared) -> None:
    """Print the cost of resuming on another device or with another precision, before it is charged."""
    from dpvision.private.training.state import State
    from dpvision.storage import safetensors

    header = safetensors.read(run.state).header
    before = State.config_of(header, run.state)
    was, now = (before.device.split(":")[0], before.precision), (prepared.device.type, prepared.config.precision)
    if header["branch"] and was != now and run.facts().get("complete") is not True:
        say(
            f"note: this run used {before.device} with {before.precision} so far; {prepared.device} with "
            f"{prepared.config.precision} rounds differently. So a branch starts here: fresh noise is drawn, and the "
            "remaining steps are charged to the ledger again."
        )


def note_other_ranks(facts: Mapping[str, Any], ranks: int) -> None:
    """Print the cost of resuming with another number of worker processes, before it is charged."""
    before = facts.get("ranks", 1)
    if before != ranks and facts.get("complete") is not True:
        say(
            f"note: this run used {before} worker processes so far and now uses {ranks}, which changes the samples. So "
            "a branch starts here: fresh noise is drawn, and the remaining steps are charged to the ledger again. To "
            f"avoid this, resume with {before}."
        )


def _data(prepared: Prepared | PreparedRelease, unit: str) -> dict[str, str]:
    """Return the rows about the data, from public facts alone."""
    data, config = prepared.data, prepared.config
    channels, height, width = prepared.shape
    return {
        "data": f"{data.name}: images {height}x{width}x{channels}, {len(data.classes)} classes",
        "unit": f"{unit}; n = {config.n:,} {unit}s",
    }


def _objective(config: Config | Release) -> dict[str, str]:
    """Return the row about the objective, if it is not accuracy."""
    balanced = "balanced: the accuracy in the mean over all classes, rare or frequent"
    return {"aim": balanced} if config.objective == "balanced" else {}


def _guarantee(event: Event, delta: float) -> str:
    from dpvision.core import accountant

    return f"epsilon {upper(accountant.epsilon(event, delta))} at delta {delta:g}, by {accountant.NAME}"


def _central_limit(event: Event, delta: float) -> str:
    from dpvision.settings import gdp

    epsilon = gdp.gaussian_epsilon(gdp.central_limit_mu(event), delta)
    return f"about {epsilon:.2f} by the central limit, which is not a bound"


def _with_first_weights(prepared: Prepared) -> dict[str, str]:
    """Return the total privacy loss of the model, if it starts from weights that were trained privately."""
    from dpvision.core import accountant, adaptive

    if not prepared.public.earlier_events:
        return {}
    both = accountant.epsilon(
        adaptive.compose((*prepared.public.earlier_events, prepared.event()), prepared.config.delta),
        prepared.config.delta,
    )
    return {"in total": f"epsilon {upper(both)}, together with what the initial weights reveal of their training data"}


def _input_rows(config: Config) -> dict[str, str]:
    """Return the rows about views and public inputs, if there are any."""
    rows = {}
    if not config.as_it_is:
        kinds = {"of the image": config.k_base, "mixtures": config.k_self, "public images": config.k_diff}
        views = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        augment = ", ".join(config.augment) or "not augmented"
        rows["views"] = f"{config.views} averaged before clipping: {views}; {augment}"
    prior = config.prior and f"prior {config.prior}, built from random images"
    public = [str(v) for v in (prior, config.pretrained, config.synthetic) if v]
    if public:
        rows["public"] = ", ".join(public)
    if config.assist != "none":
        rows["assisted"] = f"{WAYS[config.assist].title.format(config)}; public batches of {config.public_batch}"
    if config.part != "all":
        fixed = config.pretrained or config.prior or str(config.model).startswith(FIXED)
        rest = "" if fixed else "; the others keep random initial values (no --pretrained)"
        rows["trained"] = TRAINED[config.part] + rest
    if config.canaries:
        rows["canaries"] = (
            f"{config.canaries:,} for a one-run audit, each inserted or not by a secret draw; not counted in n"
        )
    if config.probe_steps:
        rows["first"] = f"{config.probe_steps:,} steps for {TRAINED['probe']}, lr {config.probe_lr or config.lr:g}"
    return rows


def _notes(prepared: Prepared | PreparedHead | PreparedRelease, accounts: Accounts) -> None:
    """Print the notes below every plan: facts that become public, missing splits, accounts and skipped files."""
    from dpvision.private.accounts.persons import count_in_both

    if prepared.read_off:
        say(
            f"  note: {', '.join(prepared.read_off)}: read from the data and treated as public, as the card states. "
            "If these facts are not public, declare them instead: --n (rounded), --classes, --size, --channels."
        )
    for note in prepared.data.notes:
        say(f"  note: {note}")
    in_both = count_in_both(prepared.data)
    if in_both:
        say(f"  note: {in_both:,} persons are in both splits; for them, no noise protects the test accuracy.")
    if prepared.config.unit == "image" and prepared.data.train.persons is not None:
        say("  note: the guarantee is for one image; a person with several images in this data is protected less.")
    if prepared.data.test is None:
        say(f"  note: {NO_TEST_SPLIT}")
    for line in _account_notes(prepared, accounts):
        say(f"  {line}")
    for broken in prepared.data.broken:
        say(f"  left out: {broken.path}: {broken.reason}")


def _account_notes(prepared: Prepared | PreparedHead | PreparedRelease, accounts: Accounts) -> list[str]:
    """Describe the accounts: those that are charged, what they have spent, and others that share images with them."""
    from dpvision.private.accounts.accounts import describe_shares

    config, notes = prepared.config, []
    for ledger in (accounts.first, *accounts.others):
        if ledger.exists():
            account = ledger.account()
            spent, most = upper(account.spent()), account.budget.epsilon
            notes.append(f"ledger: account {account.id}; earlier runs have spent epsilon {spent} of {most:g}")
        else:
            most = config.budget or config.epsilon
            notes.append(f"ledger: a new account, opened by this run with a budget of epsilon {most:g}")
    if accounts.new_account is not None:
        notes.append(f"ledger: counted separately from other accounts, as the card states: {accounts.new_account}")
    charged = {ledger.fingerprint for ledger in (accounts.first, *accounts.others)}
    for overlap in accounts.overlaps:
        other = overlap.ledger.account()
        shared = f"note: account {other.id} has {describe_shares(overlap)}"
        if overlap.ledger.fingerprint in charged:
            notes.append(f"{shared}, so this run is charged to it too.")
        else:
            notes.append(
                f"{shared} and has spent epsilon {upper(other.spent())}. It is not charged: only the two "
                "accounts together bound what is revealed about those images."
            )
    return notes
