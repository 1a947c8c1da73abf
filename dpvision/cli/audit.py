"""audit: lower bounds on what a run or a release tells, beside the epsilon that is proved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.errors import ConfigError


@app.command
def audit(
    folder: Annotated[Path, Parameter(help="the folder of a finished run, or of a release")],
    source: Annotated[
        str | None, Parameter(help="its data: also try who was in, by losses; for your eyes only")
    ] = None,
    /,
    *,
    runs: Annotated[int, Parameter(help="canaries that are scored, half of them in the data")] = 10_000,
    confidence: Annotated[float, Parameter(help="of every bound")] = 0.95,
    shadows: Annotated[
        int | None, Parameter(help="of a run, with its data: LiRA with so many shadow models, such as 8")
    ] = None,
    operator: Annotated[
        Path | None, Parameter(help="of a release, with its data: where what you alone may see goes")
    ] = None,
    weights: Annotated[
        Path | None, Parameter(help="of a release: the encoder's public weights, if it has some")
    ] = None,
) -> None:
    """Attack a run or a release: canaries in its mechanism, those that a run carries, and, with the data, much more.

    Writes audit.json and audit.svg into the folder, and its card (of a run also the report) anew. Nothing is charged:
    the canaries are no one's, in runs of a mechanism without data. What is found from private images has no noise: of
    a run it goes to operator/, of a release to --operator. It is for your eyes, and nothing of it may leave.

    Example: `dpvision audit runs/first`, `dpvision audit runs/first digits --shadows 8`,
    or `dpvision audit releases/1 digits --operator attacked`
    """
    if runs < 100:
        raise ConfigError(f"--runs {runs}: fewer than 100 canaries show nothing. Usual: 10,000.")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: it must be from 0.5 to below 1, such as 0.95.")
    place = Path(os.path.abspath(folder))
    is_release = (place / "schema.json").exists()
    _require_what_fits(is_release, source, shadows=shadows, operator=operator, weights=weights)
    if is_release:
        refuted = _release(place, source, runs, confidence, operator, weights)
    else:
        refuted = _run(place, source, runs, confidence, shadows)
    from dpvision.cli import screen

    if refuted:
        screen.say(
            "REFUTED: what was found is more than the claim allows. By canaries in other runs of the mechanism that is "
            f"chance once in {1 / (1 - confidence):.0f} audits of a true claim: audit again with more --runs. By those "
            "in the run itself, once in 20 runs, and auditing again tells the same. If it stays, do not release it, "
            "and report it (SECURITY.md)."
        )
        raise SystemExit(4)
    screen.say("not refuted: no test here showed more than the claim allows.")


def _require_what_fits(
    is_release: bool, source: str | None, *, shadows: int | None, operator: Path | None, weights: Path | None
) -> None:
    if is_release:
        if shadows is not None:
            raise ConfigError("--shadows: a release has no model to compare with. Fix: leave it out.")
        if (source is None) != (operator is None):
            raise ConfigError(
                "what private images tell of a release must not get into its folder. Fix: the data and --operator "
                "FOLDER, a folder elsewhere that never leaves; or neither of them."
            )
    elif operator is not None or weights is not None:
        raise ConfigError("--operator and --weights are for releases: a run has its operator/ folder and its weights.")
    elif shadows is not None and source is None:
        raise ConfigError("--shadows needs the run's data: `dpvision audit RUN DATA --shadows 8`.")


def _run(place: Path, source: str | None, canaries: int, confidence: float, shadows: int | None) -> bool:
    from dpvision.audit import run_audit
    from dpvision.cli import screen
    from dpvision.cli.reporting import write_report
    from dpvision.core.events import from_json
    from dpvision.released.report import audits
    from dpvision.storage.run_folder import Run, fact

    folder = Run(place)
    config = folder.config()
    if folder.facts().get("complete") is not True:
        raise ConfigError(f"{place}: the run is not finished. Fix: `dpvision resume {place}`.")
    if "tuning" in folder.facts():
        raise ConfigError(f"{place}: is a tuning, and an audit is of one training. Fix: a run with the same settings.")
    event = from_json(fact(folder.facts(), "event", dict))
    carried = audits.of_run(place, event, config).get("one_run")  # a file that is not ours is refused first
    planned = None
    if source is not None and shadows is not None:
        from dpvision.audit.shadow_models import plan_shadows

        planned = plan_shadows(folder, source, count=shadows)
    with screen.counting_bar("canaries") as progress:
        scores = run_audit.score_canaries(config, canaries=canaries, progress=progress)
    found, allowed = _told(place, scores, event, delta=config.delta, confidence=confidence)
    if carried is not None:
        screen.say(
            f"canaries in this run: {carried['right']} of {carried['guesses']} guesses right; epsilon at least "
            f"{carried['epsilon_at_least']:.3f}"
        )
    if source is not None:
        from dpvision.released.model import load_model

        _losses(folder.operator, run_audit.attack_losses(place, source), load_model(place).classes, allowed)
    if planned is not None:
        _shadows(folder, planned, allowed)
    for path in write_report(folder):
        screen.say(f"wrote {path}")
    return found.refuted or bool((carried or {}).get("refuted"))


def _release(
    place: Path, source: str | None, canaries: int, confidence: float, operator: Path | None, weights: Path | None
) -> bool:
    from dpvision.audit import release_audit
    from dpvision.cli import screen
    from dpvision.released.finished import finished
    from dpvision.released.report import audits, release_card

    release = finished(place)
    audits.of_release(place, release.event, release.settings.delta)  # a file that is not ours is refused first
    if operator is not None and operator.resolve().is_relative_to(place.resolve()):
        raise ConfigError(f"--operator {operator}: is in the release, which leaves. Fix: a folder elsewhere.")
    if operator is not None and any((operator / name).exists() for name in ("schema.json", "config.toml")):
        raise ConfigError(f"--operator {operator}: is a release or a run, which leaves. Fix: a folder of its own.")
    with screen.counting_bar("canaries") as progress:
        scores = release_audit.score_canaries(release, canaries=canaries, progress=progress)
    found, allowed = _told(place, scores, release.event, delta=release.settings.delta, confidence=confidence)
    for path in release_card.write_audited(release):
        screen.say(f"wrote {path}")
    if source is not None and operator is not None:
        from dpvision.core import files

        files.make_folder(Path(os.path.abspath(operator)))
        with screen.named_bars() as bars:
            losses = release_audit.attack_losses(release, source, weights=weights, progress=bars)
        _losses(operator, losses, release.classes, allowed)
        _inversion(operator, release_audit.attack_rows(release, source, weights=weights))
    return found.refuted


def _told(place: Path, scores: Any, event: Any, *, delta: float, confidence: float) -> tuple[Any, Any]:
    """What canaries say, on the screen and in audit.json and audit.svg; and what the claim allows."""
    from dpvision.audit import audit_file, membership
    from dpvision.audit.bounds import ENOUGH_DRAWS, judge
    from dpvision.cli import screen
    from dpvision.core import accountant, files
    from dpvision.released.report.guarantee import most_true_positives

    found, proved = judge(scores, delta=delta, confidence=confidence), accountant.epsilon(event, delta)
    audit_file.write_section(place, "mechanism", found.as_section(proved=proved))
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    allowed = (rates, most_true_positives(scores.claimed, rates))
    curve = membership.roc_curve(scores.with_record, scores.without)
    picture = membership.plot_roc({"canaries": curve}, allowed=allowed, title="canaries in this mechanism")
    files.write(place / "audit.svg", picture, mode=0o644)
    mu, profile = found.estimate, found.profile
    shown = {
        "proved": f"epsilon at most {proved:.4f} at delta {found.delta:g}",
        "shown": f"epsilon at least {found.bound.epsilon:.4f}, with {found.bound.confidence:.0%} confidence",
        "estimate": f"mu {mu.mu:.4f} ({mu.low:.4f} to {mu.high:.4f}); a true claim gives {found.claimed_mu:.4f}",
        "whole curve": f"delta({profile.epsilon:.3f}) at least {profile.shown:.3g}, claimed {profile.claimed:.3g}",
    }
    if f"{found.epsilon:.4f}" != f"{proved:.4f}":
        shown["tested"] = f"the last settings alone, which claim epsilon {found.epsilon:.4f}; others came before them"
    if found.draws < ENOUGH_DRAWS:
        shown["estimate"] += "; too few canaries were drawn for an alarm by it"
    screen.table(shown, title=f"{len(scores.without) + len(scores.with_record):,} canaries in its mechanism")
    return found, allowed


def _losses(operator: Path, attacked: Any, classes: tuple[str, ...], allowed: Any) -> None:
    """Who was in, by losses: into the operator's folder."""
    from dpvision.audit import membership
    from dpvision.cli import screen

    found, scores = attacked
    told = found.as_json(classes)
    curves = {"losses": membership.roc_curve(scores["members"], scores["others"])}
    _for_the_operator(operator, "membership", told, curves, allowed)
    worst = max(told["by_class"].items(), key=lambda x: x[1], default=("none", 0.5))
    screen.say(
        f"losses of {found.members:,} members and {found.others:,} others (for your eyes only): AUC {found.auc:.4f}, "
        f"worst class {worst[0]!r} {worst[1]:.4f}; at 1% wrongly reported, {found.true_positive_rates[0.01]:.2%} are "
        f"found. In {operator}: membership.json, membership.svg"
    )


def _shadows(folder: Any, planned: Any, allowed: Any) -> None:
    """LiRA: into operator/."""
    from dpvision.audit.shadow_models import WARNING, train_shadows_and_attack
    from dpvision.cli import screen

    with screen.counting_bar("shadow models") as progress:
        found = train_shadows_and_attack(planned, progress=progress)
    _for_the_operator(folder.operator, "lira", found.as_json(), found.curves, allowed)
    for name, one in (("this model", found.this_model), ("shadow models in turn", found.shadows_in_turn)):
        screen.say(
            f"LiRA, {name}: {one.members:,} members and {one.others:,} others, AUC {one.auc:.4f}; at 0.1% and 1% "
            f"wrongly reported, {one.true_positive_rates[0.001]:.2%} and {one.true_positive_rates[0.01]:.2%} are found"
        )
    screen.say(f"{WARNING} In {folder.operator}: lira.json, lira.svg")


def _for_the_operator(operator: Path, name: str, told: Any, curves: Any, allowed: Any) -> None:
    import json

    from dpvision.audit import membership
    from dpvision.core import files

    files.write(operator / f"{name}.json", json.dumps(told, indent=1) + "\n")
    picture = membership.plot_roc(curves, allowed=allowed, title="NOT FOR RELEASE")
    files.write(operator / f"{name}.svg", picture)


def _inversion(operator: Path, found: Any) -> None:
    """Images of released rows: into the operator's folder."""
    import io
    import json

    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.public.sheets import named_lines

    if isinstance(found, str):
        screen.say(f"no inversion: {found}.")
        return
    told = {name: getattr(found, name) for name in ("alone", "members", "others", "compared")}
    files.write(operator / "inversion.json", json.dumps(told, indent=1) + "\n")
    sheet = io.BytesIO()
    named_lines(sheet, found.lines)
    files.write(operator / "inversion.png", sheet.getvalue())
    screen.say(
        f"inversion (for your eyes only): images of released rows correlate {found.members:.3f} with the nearest of "
        f"{found.compared:,} training images, and {found.others:.3f} with the nearest of as many test images; those of "
        f"records alone and without noise {found.alone:.3f} with themselves (where that is low, the attack is weak "
        f"and its failure shows nothing). In {operator}: inversion.json and .png"
    )
