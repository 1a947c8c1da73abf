"""The plans of a training, a tuning and a release, as they are printed before anything is charged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpvision.cli.screen import duration, say, table
from dpvision.settings.training import WAYS

if TYPE_CHECKING:
    from dpvision.core.events import Event
    from dpvision.core.ledger import Account
    from dpvision.private.accounts.accounts import Accounts
    from dpvision.private.statistics.release import Prepared as PreparedRelease
    from dpvision.private.training.train import Prepared
    from dpvision.private.training.tune import Prepared as PreparedTuning
    from dpvision.settings.training import Config

TRAINED = {
    "head": "the head alone",
    "centred-head": "the mean of the features in the first step, then the head",
    "probe": "the head and the normalisation before it",
    "bias": "the biases and the head",
}


def show_training(prepared: Prepared, accounts: Accounts) -> None:
    """The plan of a training, with what is public and how it is known."""
    from dpvision.core.rounding import upper
    from dpvision.private.training import ranks as distributed
    from dpvision.private.training.timing import seconds
    from dpvision.private.training.units import units
    from dpvision.settings import cross_checks

    config, event, sampler = prepared.config, prepared.event(), prepared.sampler
    ranks = distributed.ranks()
    where = "this machine" if ranks == 1 else f"{ranks} ranks like this one"
    weights = sum(p.numel() for p in prepared.model().parameters() if p.requires_grad)
    table(
        {
            **_data(prepared, config.unit),
            "model": f"{config.model}, {weights:,} weights, recipe {config.recipe}",
            **_what_goes_in(config),
            "sampling": f"Poisson, expected batch {config.batch:,} of {config.n:,} (rate {sampler.rate:.6g})"
            if sampler.rate < 1
            else f"every {config.unit} in every step",
            "time": f"about {duration(seconds(prepared, ranks=ranks))} on {where} as it is now",
            "steps": f"{config.steps:,} ({sampler.rate * sampler.steps:.1f} expected passes)",
            "noise": f"sigma {config.sigma:.5g} at clip {config.clip:g}",
            "guarantee": _guarantee(event, config.delta),
            **_with_first_weights(prepared),
            "cross-check": f"Rényi {upper(cross_checks.rdp_epsilon(event, config.delta), 4)}; "
            + _central_limit(event, config.delta),
        },
        title="plan",
    )
    here = units(prepared.data.train, config.unit)
    assert config.n
    if not 0.67 < here / config.n < 1.5:
        say(f"  note, not for release: n is declared as {config.n:,}, and the data has {here:,} {config.unit}s.")
    twice = prepared.persons_in_both()
    if twice:
        say(f"  note: {twice:,} persons of the test split are in the training data too; accuracy is not noised.")
    if config.assist in ("dope", "mirror") and config.lr > 1:
        say(
            f"  note: {config.assist} adds public gradients, which are not clipped: lr {config.lr:g} is likely too "
            "large. Fix: --lr 0.5."
        )
    if prepared.synthetic is not None and prepared.synthetic.originals is not None:
        channels, height, width = prepared.shape
        say(f"  note: the public images became {height}x{width} pixels of {channels} channels.")
    _notes(prepared, accounts)


def show_tuning(prepared: PreparedTuning, accounts: Accounts) -> None:
    """The plan of a tuning."""
    from dpvision.core import accountant
    from dpvision.core.events import describe
    from dpvision.core.rounding import upper

    first, event, stop = prepared.first, prepared.event, prepared.stopping
    alone = max(accountant.epsilon(trial, first.config.delta) for trial in set(event.trials))
    table(
        {
            **_data(first, first.config.unit),
            "candidates": f"{len(prepared.candidates):,}, each trial one of them, all equally likely",
            "trials": f"{stop.mean:.4g} expected, drawn in secret (negative binomial, eta {stop.eta:g}, gamma "
            f"{stop.gamma:.4g}); with probability {stop.chances(1)[0]:.0%} there is only one",
            "a trial": "; or ".join(dict.fromkeys(describe(trial) for trial in event.trials)),
            "by itself": f"epsilon {upper(alone, 4)}: what the choice leaves for it",
            "score": f"accuracy on {len(prepared.score):,} public images ({prepared.score_on['file']})",
            "guarantee": f"epsilon {upper(prepared.epsilon, 4)} at delta {first.config.delta:g}, of all of it",
        },
        title="plan",
    )
    _notes(first, accounts)


def show_release(prepared: PreparedRelease, accounts: Accounts) -> None:
    """The plan of a release."""
    from dpvision.core.events import describe

    config, event = prepared.config, prepared.event()
    table(
        {
            **_data(prepared, "image"),
            "recipe": f"{config.recipe}: {config.rows:,} rows"
            + (f" of expected degree {config.degree:.4g}, {config.sampling} sampling" if config.degree else ""),
            "features": f"{config.encoder}, "
            + (f"whitened by random images, {config.rank} directions at most" if config.rank else "as they are"),
            "charged": describe(event),
            "guarantee": _guarantee(event, config.delta),
            "cross-check": _central_limit(event, config.delta),
        },
        title="plan",
    )
    if prepared.data.train.persons is not None:
        say("  note: the unit is one image; this data says whose images are whose, and a person is protected less.")
    _notes(prepared, accounts)


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


def note_other_ranks(facts: Mapping[str, Any], ranks: int) -> None:
    """State what another number of ranks costs, before it is charged."""
    before = facts.get("ranks", 1)
    if before != ranks and facts.get("complete") is not True:
        say(
            f"note: the ranks of this run were {before} so far and are {ranks} now. They draw other samples, so a "
            "branch starts here: fresh noise, and the rest of the steps are charged to the ledger again. To go on as "
            f"before, resume with {before}."
        )


def _data(prepared: Prepared | PreparedRelease, unit: str) -> dict[str, str]:
    """The rows about the data, by public figures alone."""
    data, config = prepared.data, prepared.config
    channels, height, width = prepared.shape
    return {
        "data": f"{data.name}: images {height}x{width}x{channels}, {len(data.classes)} classes",
        "unit": f"{unit}; n = {config.n:,} {unit}s",
    }


def _guarantee(event: Event, delta: float) -> str:
    from dpvision.core import accountant
    from dpvision.core.rounding import upper

    return f"epsilon {upper(accountant.epsilon(event, delta), 4)} at delta {delta:g}, by {accountant.NAME}"


def _central_limit(event: Event, delta: float) -> str:
    from dpvision.settings import gdp

    epsilon = gdp.gaussian_epsilon(gdp.central_limit_mu(event), delta)
    return f"central limit {epsilon:.4f} (approximate, not a bound)"


def _with_first_weights(prepared: Prepared) -> dict[str, str]:
    """What the model reveals in all, where it starts from weights of another private training."""
    from dpvision.core import accountant, adaptive
    from dpvision.core.rounding import upper

    if not prepared.before:
        return {}
    both = accountant.epsilon(
        adaptive.compose((*prepared.before, prepared.event()), prepared.config.delta), prepared.config.delta
    )
    return {"in all": f"epsilon {upper(both, 4)}, with what the first weights tell of their own training data"}


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
        rows["assisted"] = f"{WAYS[config.assist].title.format(config)}; public batches of {config.public_batch}"
    if config.part != "all":
        rest = "" if config.pretrained or config.prior else "; the rest stays as it was drawn, without --pretrained"
        rows["trained"] = TRAINED[config.part] + rest
    if config.canaries:
        rows["canaries"] = f"{config.canaries:,}, each inserted by a secret draw and not counted in n: a one-run audit"
    if config.probe_steps:
        rows["first"] = f"{config.probe_steps:,} steps for {TRAINED['probe']}, lr {config.probe_lr or config.lr:g}"
    return rows


def _notes(prepared: Prepared | PreparedRelease, accounts: Accounts) -> None:
    """What every plan adds: what becomes public, what is missing, and which accounts are charged."""
    if prepared.read_off:
        say(
            f"  note: {', '.join(prepared.read_off)}: read off the data and treated as public; the card says so. "
            "If they must not be revealed, declare other figures: --n (rounded), --classes, --size, --channels."
        )
    if prepared.data.test is None:
        say("  note: there is no test split, so no accuracy will be reported.")
    for line in _account_notes(prepared, accounts):
        say(f"  {line}")
    for broken in prepared.data.broken:
        say(f"  left out: {broken.path}: {broken.reason}")


def _account_notes(prepared: Prepared | PreparedRelease, accounts: Accounts) -> list[str]:
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
    for overlap in accounts.overlaps:
        other = overlap.ledger.account()
        shared = f"note: account {other.id} has {describe_shares(overlap)}"
        if overlap.ledger.fingerprint in charged:
            notes.append(f"{shared}, so it is charged.")
        else:
            notes.append(
                f"{shared} and has spent epsilon {upper(other.spent(), 4)}. It is not charged: only both accounts "
                "together bound what is revealed about those images."
            )
    return notes
