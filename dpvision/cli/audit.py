"""The verbs audit, geometry and study: attacks on runs and releases, loss curvature, gradients before clipping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dpvision.cli import screen
from dpvision.cli.app import DataSet, Device, EncoderWeights, existing, flag, option, out_option, verb
from dpvision.cli.model import choose_device
from dpvision.errors import ConfigError
from dpvision.settings.setting import word_list

if TYPE_CHECKING:
    import torch


@verb
def audit(
    folder: Annotated[Path, existing("Folder of a finished run or a release.")],
    data: Annotated[
        str | None,
        existing("Its data set, for a membership attack too; results not for release.", show_default=False),
    ] = None,
    /,
    *,
    runs: Annotated[
        int, option("Privacy", "Number of canaries to score; half of them are in the simulated data.")
    ] = 10_000,
    confidence: Annotated[float, option("Privacy", "Confidence of every bound.")] = 0.95,
    shadows: Annotated[
        int | None,
        option(
            "Privacy", "For a run, with DATA: number of shadow models for a LiRA attack, such as 8.", default="none"
        ),
    ] = None,
    operator: Annotated[
        Path | None,
        option("Output", "For a release, with DATA: folder for results that are not for release.", default="none"),
    ] = None,
    weights: EncoderWeights = None,
    device: Device = "auto",
) -> None:
    """Attack a run or a release to test its privacy claim.

    Canaries test its mechanism and the run; with DATA, so does a membership attack. Writes audit.json and audit.svg
    into the folder and regenerates its card (of a run, also the report). Nothing is charged: the mechanism runs on
    synthetic records only. Results about private images have no noise and are not for release: those of a run are
    written to operator/, those of a release to --operator.

    Example: `dpvision audit runs/first`, `dpvision audit runs/first digits --shadows 8`,
    or `dpvision audit releases/1 digits --operator attacked`
    """
    if runs < 100:
        raise ConfigError(f"--runs {runs}: fewer than 100 canaries show nothing. Fix: use --runs 10000.")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence {confidence}: it must be at least 0.5 and below 1, such as 0.95.")
    place = Path(os.path.abspath(folder))
    is_release = (place / "schema.json").exists()
    _require_fitting_options(is_release, data, shadows=shadows, operator=operator, weights=weights)
    if is_release:
        refuted = _audit_release(place, data, runs, confidence, operator, weights, choose_device(device))
    else:
        refuted = _audit_run(place, data, runs, confidence, shadows, device)

    if refuted:
        screen.say(
            "REFUTED: the audit shows more than the claim allows. With canaries in runs on synthetic records, this "
            f"happens by chance in one of {1 / (1 - confidence):.0f} audits of a true claim: audit again with more "
            "--runs. With canaries in the run itself, it happens by chance in one of 20 runs, and another audit has "
            "the same result. If the claim is refuted again, do not release the folder, and report it (SECURITY.md)."
        )
        raise SystemExit(4)
    screen.say("not refuted: no test showed more than the claim allows.")


def _require_fitting_options(
    is_release: bool, data: str | None, *, shadows: int | None, operator: Path | None, weights: Path | None
) -> None:
    if is_release:
        if shadows is not None:
            raise ConfigError("--shadows: a release has no model to compare with shadow models. Fix: leave it out.")
        if (data is None) != (operator is None):
            raise ConfigError(
                "results about private images must not be in the folder of a release. Fix: give both the data and "
                "--operator FOLDER, another folder that is never released; or neither."
            )
    elif operator is not None or weights is not None:
        raise ConfigError(
            "--operator and --weights are for releases; a run has its own operator/ and weights. Fix: leave them out."
        )
    elif shadows is not None and data is None:
        raise ConfigError("--shadows needs the data of the run. Fix: give its data set after the folder of the run.")


def _audit_run(
    place: Path, data: str | None, canaries: int, confidence: float, shadows: int | None, device_name: str
) -> bool:
    from dpvision.audit import membership, training_canaries
    from dpvision.cli.train import find_account
    from dpvision.core.events import from_json
    from dpvision.released.report import card, write
    from dpvision.released.report.cards import read_audits
    from dpvision.settings.figures import lower
    from dpvision.storage.run_folder import Run, fact

    folder = Run(place)
    config = folder.config()
    if "tuning" in folder.facts():
        raise ConfigError(
            f"{place}: is a tuning run, but an audit needs a single run. Fix: audit a run with the chosen settings."
        )
    if folder.facts().get("complete") is not True:
        raise ConfigError(f"{place}: the run is not finished. Fix: {folder.advise()}.")
    event = from_json(fact(folder.facts(), "event", dict))
    one_run = read_audits(place, event, config).get("one_run")
    # Whatever a card would refuse is refused before anything is computed or written.
    account = find_account(folder, required=True)
    card(folder, account)
    # The attack is on the mechanism as it ran: on the run's own device, unless another one is named.
    device = choose_device(config.device if device_name == "auto" else device_name, config.precision)
    planned = None
    if data is not None and shadows is not None:
        from dpvision.audit.shadow_models import plan_shadows

        planned = plan_shadows(folder, data, count=shadows, device=device)
    losses = None
    if data is not None:  # unusable data are refused before anything is written
        with screen.progress("computing losses"):
            losses = membership.attack_run(place, data, device=device)
    with screen.counting("scoring canaries") as progress:
        scores = training_canaries.score_canaries(config, canaries=canaries, device=device, progress=progress)
    finding, allowed = _report_canaries(place, scores, event, delta=config.delta, confidence=confidence)
    if one_run is not None:
        screen.say(
            f"Attack with the {one_run['canaries']:,} canaries of this run: it guessed for {one_run['guesses']:,} of "
            f"them whether they were in the data, and was right {one_run['right']:,} times, so epsilon is at least "
            f"{lower(one_run['epsilon_at_least'])} with {one_run['confidence']:.0%} confidence (0.00: no evidence)."
        )
    if losses is not None:
        from dpvision.released.model import load_model

        _report_losses(folder.operator, losses, load_model(place).classes, allowed)
    if planned is not None:
        _attack_by_shadows(folder, planned, allowed)
    _say_written(place, write(folder, account))
    return finding.refuted or bool((one_run or {}).get("refuted"))


def _audit_release(
    place: Path,
    data: str | None,
    canaries: int,
    confidence: float,
    operator: Path | None,
    weights: Path | None,
    device: torch.device,
) -> bool:
    from dpvision.audit import inversion, membership, release_canaries
    from dpvision.released.folder import read_release
    from dpvision.released.report import rewrite_release
    from dpvision.released.report.cards import read_release_audits

    release = read_release(place)
    read_release_audits(
        place, release.event, release.settings.delta
    )  # refuses a forged audit.json before it is overwritten
    if operator is not None and operator.resolve().is_relative_to(place.resolve()):
        raise ConfigError(f"--operator {operator}: is inside the release. Fix: use a folder outside of it.")
    if operator is not None and any((operator / name).exists() for name in ("schema.json", "config.toml")):
        raise ConfigError(f"--operator {operator}: is the folder of a release or a run. Fix: use a separate folder.")
    losses = None
    if data is not None:  # unusable data are refused before anything is written
        with screen.progress("computing losses") as show:
            losses = membership.attack_release(release, data, weights=weights, progress=show)
    with screen.counting("scoring canaries") as progress:
        scores = release_canaries.score_canaries(release, canaries=canaries, progress=progress)
    finding, allowed = _report_canaries(
        place, scores, release.event, delta=release.settings.delta, confidence=confidence
    )
    _say_written(place, rewrite_release(release))
    if data is not None and operator is not None:
        from dpvision.core import files

        files.make_folder(Path(os.path.abspath(operator)))
        _report_losses(operator, losses, release.classes, allowed)
        with screen.progress("inverting features"):
            inverted = inversion.attack_rows(release, data, weights=weights, device=device)
        _report_inversion(operator, inverted)
    return finding.refuted


def _say_written(place: Path, regenerated: list[Path]) -> None:
    for path in (place / "audit.json", place / "audit.svg", *regenerated):
        screen.say(f"wrote {path}")


def _report_canaries(place: Path, scores: Any, event: Any, *, delta: float, confidence: float) -> tuple[Any, Any]:
    """Print the result of the canaries, write audit.json and audit.svg, and return the result and the allowed rates."""
    from dpvision.audit import audit_file, membership, pictures
    from dpvision.audit.bounds import ENOUGH_DRAWS, judge
    from dpvision.core import accountant, files
    from dpvision.settings.figures import lower, upper
    from dpvision.settings.meaning import attack_success

    finding, proved = judge(scores, delta=delta, confidence=confidence), accountant.epsilon(event, delta)
    audit_file.write_section(place, "mechanism", finding.as_section(proved=proved))
    rates = [10 ** (-4 + 4 * i / 200) for i in range(201)]
    allowed = (rates, attack_success(scores.claimed, rates))
    curve = membership.roc_curve(scores.with_record, scores.without)
    picture = pictures.plot_roc({"canaries": curve}, allowed=allowed, title="canaries in this mechanism")
    files.write(place / "audit.svg", picture, mode=0o644)
    mu, profile, least, most = finding.estimate, finding.profile, lower(finding.bound.epsilon), upper(proved)
    count, sure = len(scores.without) + len(scores.with_record), f"{finding.bound.confidence:.0%} confidence"
    shown = {
        "guaranteed": f"epsilon at most {most} at delta {finding.delta:g}, as on the card",
        "shown": f"epsilon at least {least} by this attack, with {sure}",
        "separation": f"mu {mu.mu:.4f} ({mu.low:.4f} to {mu.high:.4f}): distance between the mean scores of canaries "
        f"in and out of the data, in standard deviations; at most {finding.claimed_mu:.4f} by the guarantee",
        "whole curve": f"at epsilon {profile.epsilon:.3f}, the attack shows a delta of at least {profile.shown:.3g}; "
        f"at most {profile.claimed:.3g} by the guarantee",
    }
    if f"{finding.epsilon:.4f}" != f"{proved:.4f}":
        shown["tested"] = (
            f"only the last settings, with a claimed epsilon of {upper(finding.epsilon)}; the run had others before"
        )
    if finding.draws < ENOUGH_DRAWS:
        shown["separation"] += "; too few canaries were sampled to refute the claim by it"
    if finding.refuted:
        screen.say(f"The attack found MORE than the guarantee allows, which is an epsilon of at most {most}.")
    else:
        screen.say(
            f"The attack found no more than the guarantee allows: it shows an epsilon of at least {least}, and the "
            f"guarantee is an epsilon of at most {most}."
        )
    screen.say(
        f"It used {count:,} canaries, synthetic records that are as easy to detect as any record can be: the "
        "mechanism ran on synthetic records only, half of the canaries were in its data, and an attacker who sees "
        "every noisy result gave each canary a score."
    )
    screen.table(shown)
    screen.say(
        f"What this means: the true epsilon is at most {most} by proof and at least {least} by this attack. The proof "
        "would be refuted by a lower bound above the upper bound, by an interval of mu that lies above the value for "
        "a guarantee that holds, or by a delta above the guaranteed one. A lower bound far below the upper bound is "
        "usual, and does not show that less is revealed."
    )
    return finding, allowed


def _report_losses(operator: Path, attack: Any, classes: tuple[str, ...], allowed: Any) -> None:
    """Write the results of the loss-based membership attack to the operator's folder, and print them."""
    from dpvision.audit import membership

    result, scores = attack
    entry = result.as_json(classes)
    curves = {"losses": membership.roc_curve(scores["members"], scores["others"])}
    _write_for_operator(operator, "membership", entry, curves, allowed)
    worst = max(entry["by_class"].items(), key=lambda x: x[1], default=("none", 0.5))
    at_one_percent = f"{result.true_positive_rates[0.01]:.2%}"
    screen.say(
        f"Membership attack by the losses of {result.members:,} members and {result.others:,} others (not for "
        f"release): AUC {result.auc:.4f}, where 0.5 is guessing; highest AUC of a class {worst[1]:.4f} ({worst[0]!r}); "
        f"{at_one_percent} of members are found at 1% false positives. In {operator}: membership.json, membership.svg"
    )


def _attack_by_shadows(folder: Any, planned: Any, allowed: Any) -> None:
    """Train shadow models, write the results of the LiRA attack to the operator's folder, and print them."""
    from dpvision.audit.shadow_models import WARNING, train_shadows_and_attack

    with screen.counting("training shadow models, steps") as progress:
        lira = train_shadows_and_attack(planned, progress=progress)
    _write_for_operator(folder.operator, "lira", lira.as_json(), lira.curves, allowed)
    for name, one in (("this model", lira.this_model), ("each shadow model in turn", lira.shadows_in_turn)):
        low, high = (f"{one.true_positive_rates[rate]:.2%}" for rate in (0.001, 0.01))
        screen.say(
            f"LiRA, {name}: {one.members:,} members and {one.others:,} others, AUC {one.auc:.4f}, where 0.5 is "
            f"guessing; {low} and {high} of members are found at 0.1% and 1% false positives"
        )
    screen.say(f"{WARNING} Wrote lira.json and lira.svg to {folder.operator}")


def _write_for_operator(operator: Path, name: str, entry: Any, curves: Any, allowed: Any) -> None:
    import json

    from dpvision.audit import pictures
    from dpvision.core import files

    files.write(operator / f"{name}.json", json.dumps(entry, indent=1) + "\n")
    picture = pictures.plot_roc(curves, allowed=allowed, title="NOT FOR RELEASE")
    files.write(operator / f"{name}.svg", picture)


def _report_inversion(operator: Path, inverted: Any) -> None:
    """Write images reconstructed from released rows to the operator's folder, and print how similar they are."""
    import io
    import json

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
        f"inversion (not for release): images reconstructed from released rows have a correlation of "
        f"{inverted.members:.3f} with the nearest of {inverted.compared:,} training images, and of "
        f"{inverted.others:.3f} with the nearest of the same number of test images. Reconstructions of single records "
        f"without noise have a correlation of {inverted.alone:.3f} with the record; if this is low, the attack is weak "
        f"and its failure shows nothing. Wrote inversion.json and inversion.png to {operator}"
    )


@verb
def geometry(
    weights: Annotated[Path, existing("Folder of a run, or a weights.safetensors file.")],
    data: DataSet,
    /,
    *,
    private: Annotated[
        bool, flag("Data", "The images are private: write the results to the run's operator folder, not for release.")
    ] = False,
    model: Annotated[
        str | None, option("Model", "Network, if the file does not name it, such as wrn-10-1.", default="from the file")
    ] = None,
    split: Annotated[Literal["train", "val", "test"], option("Data", "Split to measure on.")] = "train",
    most: Annotated[int, option("Data", "Maximum number of images to use.")] = 512,
    top: Annotated[int, option("Output", "Number of largest Hessian eigenvalues to compute.")] = 5,
    probes: Annotated[int, option("Output", "Number of random vectors for estimating the trace of the Hessian.")] = 32,
    pair: Annotated[
        str | None,
        option(
            "Data",
            "Two classes to compare the gradients of, comma-separated; with --beside, a single class.",
            default="the two most frequent",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        option(
            "Data", "Second data set: compare gradients between data sets instead of between classes.", default="none"
        ),
    ] = None,
    seed: Annotated[int, option("Data", "Seed for choosing the images.")] = 0,
    out: Annotated[Path, out_option("Folder to write; it must be new.")] = Path("geometry"),
    device: Device = "auto",
) -> None:
    """Measure the sharpness of the loss at a model's weights.

    It also measures how well the gradients within a class agree. It prints the largest eigenvalues and the trace of the
    Hessian, and writes geometry.json, spectrum.svg and gradients.svg. Without --private, the images are assumed to be
    public: nothing protects what the results reveal about them.

    Example: `dpvision geometry runs/first digits --private`, or, for public images,
    `dpvision geometry warmed/weights.safetensors parts/public.npz --model wrn-10-1`
    """
    from dpvision.audit import geometry as audit

    where, chosen = audit.choose_output(weights, out, private=private), choose_device(device)
    options: dict[str, Any] = {"private": private, "model": model, "split": split, "most": most, "seed": seed}
    with screen.progress("reading images"):
        sources = (data,) if beside is None else (data, beside)
        first, *others = (audit.load_subject(weights, source, device=chosen, **options) for source in sources)
    what = " and ".join(f"{s.facts['images']:,} images of {s.name}" for s in (first, *others))
    if private:
        screen.say(f"measuring on {what}, which are PRIVATE: the results have no noise and are not for release")
    else:
        screen.say(
            f"measuring on {what}, assumed to be PUBLIC: the results may reveal them. If they are private: --private"
        )
    with screen.progress("gradients") as progress:
        measured = audit.measure(
            first,
            top=top,
            probes=probes,
            pair=word_list(pair or ""),
            other=others[0] if others else None,
            progress=progress,
        )
    values, trace, plane = measured.curvature.eigenvalues, measured.curvature.trace, measured.plane
    one, two = measured.groups
    ratio = (
        "none, since the last one is not positive"
        if measured.curvature.ratio is None
        else f"{measured.curvature.ratio:.4g}"
    )
    named = {1: "lambda_1", top: f"lambda_{top}"}
    screen.table(
        {
            "loss, accuracy": f"{measured.summary.loss:.4g}, {measured.summary.accuracy:.2%}",
            **{name: f"{values.values[i - 1]:.5g} +- {values.errors[i - 1]:.1g}" for i, name in named.items()},
            f"lambda_1/lambda_{top}": ratio,
            "trace": f"{trace.value:.5g} +- {trace.error:.2g} (standard error, {trace.probes} probes)",
            "lowest": f"{values.lowest:.4g} +- {values.lowest_error:.1g}",
            "mean cosine": f"within {one!r} {plane.first.within:.3f}, within {two!r} {plane.second.within:.3f}, "
            f"between {plane.between:.3f}",
        },
        title=f"mean loss, {measured.curvature.weights:,} weights",
    )
    if not values.converged:
        screen.say(
            f"note: the eigenvalues did not converge in {values.products} Hessian products; see their errors above"
        )
    audit.save(where, first, measured)
    whose = "not for release" if private else "may be released if the weights may be released"
    screen.say(f"wrote {where.folder}: geometry.json, spectrum.svg, gradients.svg ({whose})")


@verb
def study(
    *folders: Annotated[Path, existing("Folders of runs trained with --study.")],
    out: Annotated[
        Path | None, out_option("SVG file to write.", default="gradients.svg in the first run's operator folder")
    ] = None,
) -> None:
    """Plot gradients before clipping, for runs trained with --study.

    No noise protects the gradients, so the plot is not for release.

    Example: `dpvision train digits --epsilon 1 --study --out runs/study`, then `dpvision study runs/study`
    """
    from dpvision.private.training.gradient_study import plot
    from dpvision.storage.run_folder import Run

    if not folders:
        raise ConfigError("study needs a run that was trained with --study. Fix: run `dpvision study RUN`.")
    runs = [Run(Path(os.path.abspath(f))) for f in folders]
    out = out or runs[0].operator / "gradients.svg"
    for name, deviation in plot(runs, out).items():
        screen.say(f"{name}: the standard deviation over the weights is {deviation:.4g}")
    screen.say(f"wrote {out} (not for release)")
