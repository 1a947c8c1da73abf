"""audit: lower bounds on what a run tells, beside the epsilon that is proved."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dpvision.cli.app import app
from dpvision.errors import ConfigError


@app.command
def audit(
    run: Annotated[Path, Parameter(help="the folder of a finished run")],
    source: Annotated[
        str | None, Parameter(help="its data: also try who was in, by losses; for your eyes only")
    ] = None,
    /,
    *,
    runs: Annotated[int, Parameter(help="canaries that are scored, half of them in the data")] = 10_000,
    confidence: Annotated[float, Parameter(help="of every bound")] = 0.95,
) -> None:
    """Attack a run: canaries in its mechanism, those that it carries, and, with its data, its losses.

    Writes audit.json and audit.svg into the run folder, and the card and the report anew. What is found from private
    images goes to operator/. Nothing is charged: the canaries are no one's, in runs of a mechanism without data.

    Example: `dpvision audit runs/first`, or `dpvision audit runs/first digits --runs 40000`
    """
    if runs < 100:
        raise ConfigError(f"--runs {runs}: fewer than 100 canaries show nothing. Usual: 10,000.")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: it must be from 0.5 to below 1, such as 0.95.")
    from dpvision import atomic, console
    from dpvision.audit import auditing, findings, membership
    from dpvision.audit.profile import verdict
    from dpvision.cli.reporting import write_report
    from dpvision.report.attack import most_true_positives
    from dpvision.runs import Run, read_json

    folder = Run(Path(os.path.abspath(run)))
    config = folder.config()
    if folder.facts().get("complete") is not True:
        raise ConfigError(f"{run}: the run is not finished. Fix: `dpvision resume {run}`.")
    if "tuning" in folder.facts():
        raise ConfigError(f"{run}: is a tuning, and an audit is of one training. Fix: a run with the same settings.")
    with console.counting_bar("canaries") as progress:
        scores = auditing.canary_scores(config, canaries=runs, progress=progress)
    found = verdict(scores, delta=config.delta, confidence=confidence)
    findings.record(folder, "mechanism", findings.of_mechanism(found))
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    allowed = (rates, most_true_positives(scores.claimed, rates))
    curve = membership.roc(scores.with_record, scores.without)
    picture = membership.draw({"canaries": curve}, allowed=allowed, title="canaries in this mechanism")
    atomic.write(folder.folder / "audit.svg", picture, mode=0o644)
    console.table(_shown(found), title=f"{len(scores.without) + len(scores.with_record):,} canaries in its mechanism")
    carried = read_json(folder.folder / findings.FILE).get("one_run")
    if carried is not None:
        console.say(
            f"canaries in this run: {carried['right']} of {carried['guesses']} guesses right; epsilon at least "
            f"{carried['epsilon_at_least']:.3f}"
        )
    if source is not None:
        _losses(folder, source, allowed)
    for path in write_report(folder):
        console.say(f"wrote {path}")
    if found.refuted or (carried or {}).get("refuted"):
        console.say(
            "REFUTED: what was found is more than the claim allows. Once in "
            f"{1 / (1 - confidence):.0f} audits of a true claim that is chance: audit again with more --runs. If it "
            "stays, do not release the run, and report it (SECURITY.md)."
        )
        raise SystemExit(4)
    console.say("not refuted: no test here showed more than the claim allows.")


def _shown(found: Any) -> dict[str, str]:
    mu, profile = found.estimate, found.profile
    return {
        "proved": f"epsilon at most {found.epsilon:.4f} at delta {found.delta:g}",
        "shown": f"epsilon at least {found.bound.epsilon:.4f}, with {found.bound.confidence:.0%} confidence",
        "estimate": f"mu {mu.mu:.4f} ({mu.low:.4f} to {mu.high:.4f}); a true claim gives {found.claimed_mu:.4f}",
        "whole curve": f"delta({profile.epsilon:.3f}) at least {profile.shown:.3g}, claimed {profile.claimed:.3g}",
    }


def _losses(folder: Any, source: str, allowed: Any) -> None:
    """Who was in, by the model's losses: into operator/."""
    import json

    from dpvision import atomic, console
    from dpvision.audit import auditing, membership
    from dpvision.inference import released

    found, scores = auditing.losses_of(folder.folder, source)
    told = auditing.of_membership(found, released(folder.folder).classes)
    atomic.write(folder.operator / "membership.json", json.dumps(told, indent=1) + "\n")
    curve = membership.roc(scores["members"], scores["others"])
    picture = membership.draw({"losses": curve}, allowed=allowed, title="FOR THE OPERATOR'S EYES ONLY")
    atomic.write(folder.operator / "membership.svg", picture)
    worst = max(told["by_class"].items(), key=lambda x: x[1], default=("none", 0.5))
    console.say(
        f"losses of {found.members:,} members and {found.others:,} others (for your eyes only): AUC {found.auc:.4f}, "
        f"worst class {worst[0]!r} {worst[1]:.4f}; at 1% wrongly reported, {found.found[0.01]:.2%} are found. In "
        f"{folder.operator}: membership.json, membership.svg"
    )
