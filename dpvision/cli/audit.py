"""audit: lower bounds on what a run or a release reveals, compared with the epsilon that is proved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import option
from dpvision.errors import ConfigError


@verb
def audit(
    folder: Annotated[Path, Parameter(help="Folder of a finished run, or of a release.")],
    data: Annotated[
        str | None,
        Parameter(help="Its data set, for a membership attack as well; not for release.", show_default=False),
    ] = None,
    /,
    *,
    runs: Annotated[int, option("Privacy", "Number of canaries to score, half of them in the data.")] = 10_000,
    confidence: Annotated[float, option("Privacy", "Confidence of every bound.")] = 0.95,
    shadows: Annotated[
        int | None,
        option("Privacy", "Of a run, with DATA: number of shadow models of a LiRA attack, such as 8.", default="none"),
    ] = None,
    operator: Annotated[
        Path | None,
        option("Output", "Of a release, with DATA: folder for results that are not for release.", default="none"),
    ] = None,
    weights: Annotated[
        Path | None,
        option("Model", "Of a release: file of the encoder's public weights, if it has some.", default="none"),
    ] = None,
) -> None:
    """Attack a run or a release, to test what it claims.

    Canaries test its mechanism and the run; with DATA, so does a membership attack. Writes audit.json and audit.svg
    into the folder and regenerates its card (of a run, also the report). Nothing is charged: canaries are synthetic, in
    simulated runs without data. Results about private images have no noise and are not for release: those of a run are
    written to operator/, those of a release to --operator.

    Example: `dpvision audit runs/first`, `dpvision audit runs/first digits --shadows 8`,
    or `dpvision audit releases/1 digits --operator attacked`
    """
    if runs < 100:
        raise ConfigError(f"--runs {runs}: fewer than 100 canaries show nothing. Usual: 10,000.")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: it must be from 0.5 to below 1, such as 0.95.")
    place = Path(os.path.abspath(folder))
    is_release = (place / "schema.json").exists()
    _require_fitting_options(is_release, data, shadows=shadows, operator=operator, weights=weights)
    if is_release:
        refuted = _audit_release(place, data, runs, confidence, operator, weights)
    else:
        refuted = _audit_run(place, data, runs, confidence, shadows)
    from dpvision.cli import screen

    if refuted:
        screen.say(
            "REFUTED: the audit shows more than the claim allows. With canaries in simulated runs this happens by "
            f"chance in one of {1 / (1 - confidence):.0f} audits of a true claim: audit again with more --runs. With "
            "canaries in the run itself it happens by chance in one of 20 runs, and another audit gives the same. If "
            "it stays, do not release the folder, and report it (SECURITY.md)."
        )
        raise SystemExit(4)
    screen.say("not refuted: no test here showed more than the claim allows.")


def _require_fitting_options(
    is_release: bool, data: str | None, *, shadows: int | None, operator: Path | None, weights: Path | None
) -> None:
    if is_release:
        if shadows is not None:
            raise ConfigError("--shadows: a release has no model to compare with. Fix: leave it out.")
        if (data is None) != (operator is None):
            raise ConfigError(
                "results about private images must not be in the folder of a release. Fix: give the data and "
                "--operator FOLDER, a folder elsewhere that is never released; or neither of them."
            )
    elif operator is not None or weights is not None:
        raise ConfigError("--operator and --weights are for releases: a run has its operator/ folder and its weights.")
    elif shadows is not None and data is None:
        raise ConfigError("--shadows needs the run's data: `dpvision audit RUN DATA --shadows 8`.")


def _audit_run(place: Path, data: str | None, canaries: int, confidence: float, shadows: int | None) -> bool:
    from dpvision.audit import run_audit
    from dpvision.cli import screen
    from dpvision.cli.report import write_report
    from dpvision.core.events import from_json
    from dpvision.released.report.cards import read_audits
    from dpvision.storage.run_folder import Run, fact

    folder = Run(place)
    config = folder.config()
    if "tuning" in folder.facts():
        raise ConfigError(f"{place}: is a tuning, and an audit is of one training. Fix: a run with the same settings.")
    if folder.facts().get("complete") is not True:
        raise ConfigError(f"{place}: the run is not finished. Fix: `dpvision resume {place}`.")
    event = from_json(fact(folder.facts(), "event", dict))
    carried = read_audits(place, event, config).get("one_run")  # a forged file is refused first
    planned = None
    if data is not None and shadows is not None:
        from dpvision.audit.shadow_models import plan_shadows

        planned = plan_shadows(folder, data, count=shadows)
    with screen.counting("scoring canaries") as progress:
        scores = run_audit.score_canaries(config, canaries=canaries, progress=progress)
    finding, allowed = _report_canaries(place, scores, event, delta=config.delta, confidence=confidence)
    if carried is not None:
        screen.say(
            f"canaries in this run: {carried['right']} of {carried['guesses']} guesses right; epsilon at least "
            f"{carried['epsilon_at_least']:.3f}"
        )
    if data is not None:
        from dpvision.released.model import load_model

        with screen.progress("computing losses"):
            losses = run_audit.attack_losses(place, data)
        _report_losses(folder.operator, losses, load_model(place).classes, allowed)
    if planned is not None:
        _attack_by_shadows(folder, planned, allowed)
    for path in write_report(folder):
        screen.say(f"wrote {path}")
    return finding.refuted or bool((carried or {}).get("refuted"))


def _audit_release(
    place: Path, data: str | None, canaries: int, confidence: float, operator: Path | None, weights: Path | None
) -> bool:
    from dpvision.audit import release_audit
    from dpvision.cli import screen
    from dpvision.released.folder import read_release
    from dpvision.released.report import rewrite_release
    from dpvision.released.report.cards import read_release_audits

    release = read_release(place)
    read_release_audits(place, release.event, release.settings.delta)  # a forged file is refused first
    if operator is not None and operator.resolve().is_relative_to(place.resolve()):
        raise ConfigError(f"--operator {operator}: is inside the release. Fix: a folder elsewhere.")
    if operator is not None and any((operator / name).exists() for name in ("schema.json", "config.toml")):
        raise ConfigError(f"--operator {operator}: is the folder of a release or a run. Fix: a folder of its own.")
    with screen.counting("scoring canaries") as progress:
        scores = release_audit.score_canaries(release, canaries=canaries, progress=progress)
    finding, allowed = _report_canaries(
        place, scores, release.event, delta=release.settings.delta, confidence=confidence
    )
    for path in rewrite_release(release):
        screen.say(f"wrote {path}")
    if data is not None and operator is not None:
        from dpvision.core import files

        files.make_folder(Path(os.path.abspath(operator)))
        with screen.progress("computing losses") as progress:
            losses = release_audit.attack_losses(release, data, weights=weights, progress=progress)
        _report_losses(operator, losses, release.classes, allowed)
        with screen.progress("inverting features"):
            inverted = release_audit.attack_rows(release, data, weights=weights)
        _report_inversion(operator, inverted)
    return finding.refuted


def _report_canaries(place: Path, scores: Any, event: Any, *, delta: float, confidence: float) -> tuple[Any, Any]:
    """Print the result of the canaries and write audit.json and audit.svg; return it with what the claim allows."""
    from dpvision.audit import audit_file, membership
    from dpvision.audit.bounds import ENOUGH_DRAWS, judge
    from dpvision.cli import screen
    from dpvision.core import accountant, files
    from dpvision.released.report.guarantee import most_true_positives

    finding, proved = judge(scores, delta=delta, confidence=confidence), accountant.epsilon(event, delta)
    audit_file.write_section(place, "mechanism", finding.as_section(proved=proved))
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    allowed = (rates, most_true_positives(scores.claimed, rates))
    curve = membership.roc_curve(scores.with_record, scores.without)
    picture = membership.plot_roc({"canaries": curve}, allowed=allowed, title="canaries in this mechanism")
    files.write(place / "audit.svg", picture, mode=0o644)
    mu, profile = finding.estimate, finding.profile
    shown = {
        "proved": f"epsilon at most {proved:.4f} at delta {finding.delta:g}",
        "shown": f"epsilon at least {finding.bound.epsilon:.4f}, with {finding.bound.confidence:.0%} confidence",
        "estimate": f"mu {mu.mu:.4f} ({mu.low:.4f} to {mu.high:.4f}); a true claim gives {finding.claimed_mu:.4f}",
        "whole curve": f"delta({profile.epsilon:.3f}) at least {profile.shown:.3g}, claimed {profile.claimed:.3g}",
    }
    if f"{finding.epsilon:.4f}" != f"{proved:.4f}":
        shown["tested"] = (
            f"only the last settings, which claim epsilon {finding.epsilon:.4f}; the run had others before"
        )
    if finding.draws < ENOUGH_DRAWS:
        shown["estimate"] += "; too few canaries were sampled to refute the claim by it"
    screen.table(
        shown, title=f"{len(scores.without) + len(scores.with_record):,} canaries in simulated runs of its mechanism"
    )
    return finding, allowed


def _report_losses(operator: Path, attack: Any, classes: tuple[str, ...], allowed: Any) -> None:
    """Write the membership attack by losses to the operator's folder, and print it."""
    from dpvision.audit import membership
    from dpvision.cli import screen

    result, scores = attack
    entry = result.as_json(classes)
    curves = {"losses": membership.roc_curve(scores["members"], scores["others"])}
    _write_for_operator(operator, "membership", entry, curves, allowed)
    worst = max(entry["by_class"].items(), key=lambda x: x[1], default=("none", 0.5))
    at_one_percent = f"{result.true_positive_rates[0.01]:.2%}"
    screen.say(
        f"losses of {result.members:,} members and {result.others:,} others (not for release): AUC {result.auc:.4f}, "
        f"worst class {worst[0]!r} {worst[1]:.4f}; {at_one_percent} of members are found at 1% false positives. In "
        f"{operator}: membership.json, membership.svg"
    )


def _attack_by_shadows(folder: Any, planned: Any, allowed: Any) -> None:
    """Train shadow models, write the LiRA attack to the operator's folder, and print it."""
    from dpvision.audit.shadow_models import WARNING, train_shadows_and_attack
    from dpvision.cli import screen

    with screen.counting("training shadow models, steps") as progress:
        lira = train_shadows_and_attack(planned, progress=progress)
    _write_for_operator(folder.operator, "lira", lira.as_json(), lira.curves, allowed)
    for name, one in (("this model", lira.this_model), ("shadow models in turn", lira.shadows_in_turn)):
        low, high = (f"{one.true_positive_rates[rate]:.2%}" for rate in (0.001, 0.01))
        screen.say(
            f"LiRA, {name}: {one.members:,} members and {one.others:,} others, AUC {one.auc:.4f}; {low} and {high} of "
            "members are found at 0.1% and 1% false positives"
        )
    screen.say(f"{WARNING} In {folder.operator}: lira.json, lira.svg")


def _write_for_operator(operator: Path, name: str, entry: Any, curves: Any, allowed: Any) -> None:
    import json

    from dpvision.audit import membership
    from dpvision.core import files

    files.write(operator / f"{name}.json", json.dumps(entry, indent=1) + "\n")
    picture = membership.plot_roc(curves, allowed=allowed, title="NOT FOR RELEASE")
    files.write(operator / f"{name}.svg", picture)


def _report_inversion(operator: Path, inverted: Any) -> None:
    """Write images reconstructed from released rows to the operator's folder, and print how good they are."""
    import io
    import json

    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.public.sheets import write_labelled_rows

    if isinstance(inverted, str):
        screen.say(f"no inversion: {inverted}.")
        return
    figures = {name: getattr(inverted, name) for name in ("alone", "members", "others", "compared")}
    files.write(operator / "inversion.json", json.dumps(figures, indent=1) + "\n")
    sheet = io.BytesIO()
    write_labelled_rows(sheet, inverted.lines)
    files.write(operator / "inversion.png", sheet.getvalue())
    screen.say(
        f"inversion (not for release): images reconstructed from released rows correlate {inverted.members:.3f} with "
        f"the nearest of {inverted.compared:,} training images, and {inverted.others:.3f} with the nearest of the same "
        f"number of test images. Reconstructed from single records without noise they correlate {inverted.alone:.3f} "
        "with the record; where that is low, the attack is weak and its failure shows nothing. "
        f"In {operator}: inversion.json, inversion.png"
    )
