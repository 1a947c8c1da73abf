"""geometry and study: the loss around a model's weights, and gradients before clipping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import DataSet, flag, option, out_option
from dpvision.errors import ConfigError
from dpvision.settings.setting import word_list


@verb
def geometry(
    weights: Annotated[Path, Parameter(help="Folder of a run, or a weights.safetensors file.")],
    data: DataSet,
    /,
    *,
    private: Annotated[
        bool, flag("Data", "The images are private: results stay in the run's operator folder, not for release.")
    ] = False,
    model: Annotated[
        str | None, option("Model", "Network of a file that does not name it, such as wrn-10-1.", default="in the file")
    ] = None,
    split: Annotated[Literal["train", "val", "test"], option("Data", "Which images to measure on.")] = "train",
    most: Annotated[int, option("Data", "Largest number of images to use.")] = 512,
    top: Annotated[int, option("Output", "Number of largest Hessian eigenvalues to compute.")] = 5,
    probes: Annotated[int, option("Output", "Number of random vectors to estimate the Hessian's trace with.")] = 32,
    pair: Annotated[
        str | None,
        option(
            "Data",
            "Two classes for the picture of gradients, with a comma between; one with --beside.",
            default="the two most frequent",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        option("Data", "A second data set to compare gradients with, instead of two classes of one.", default="none"),
    ] = None,
    seed: Annotated[int, option("Data", "Seed of the choice of images.")] = 0,
    out: Annotated[Path, out_option("Folder to write; it must be new.")] = Path("geometry"),
) -> None:
    """Measure how sharp the loss is at a model's weights.

    Also whether gradients of one class agree. Prints the largest eigenvalues of the Hessian and its trace; writes
    geometry.json, spectrum.svg and gradients.svg. Without --private the images are taken as public: nothing protects
    what the results reveal about them.

    Example: `dpvision geometry runs/first digits --private`, or, for public images,
    `dpvision geometry warmed/weights.safetensors parts/public.npz --model wrn-10-1`
    """
    from dpvision.audit import geometry as audit
    from dpvision.cli import screen

    where = audit.choose_output(weights, out, private=private)
    with screen.progress("reading images"):
        first, *others = (
            audit.load_subject(weights, source, private=private, model=model, split=split, most=most, seed=seed)
            for source in (data, beside)
            if source is not None
        )
    what = " and ".join(f"{s.facts['images']:,} images of {s.name}" for s in (first, *others))
    if private:
        screen.say(f"measuring on {what}, which are PRIVATE: no noise protects the results; not for release")
    else:
        screen.say(f"measuring on {what}, taken as PUBLIC: the results reveal them. If they are private: --private")
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
    ratio = "none: the last is not positive" if measured.curvature.ratio is None else f"{measured.curvature.ratio:.4g}"
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
        screen.say(f"note: the eigenvalues did not converge in {values.products} products; see their errors above")
    audit.save(where, first, measured)
    whose = "not for release" if private else "may be released wherever the weights may"
    screen.say(f"wrote {where.folder}: geometry.json, spectrum.svg, gradients.svg ({whose})")


@verb
def study(
    *folders: Annotated[Path, Parameter(help="Runs that were trained with --study.")],
    out: Annotated[
        Path | None, out_option("SVG file to write.", default="gradients.svg in the first run's operator folder")
    ] = None,
) -> None:
    """Plot gradients before clipping, of runs with --study.

    No noise protects them: not for release.

    Example: `dpvision train digits --epsilon 1 --study --out runs/looked`, then `dpvision study runs/looked`
    """
    from dpvision.cli import screen
    from dpvision.private.training.gradient_study import plot
    from dpvision.storage.run_folder import Run

    if not folders:
        raise ConfigError("study needs at least one run that was trained with --study.")
    runs = [Run(Path(os.path.abspath(f))) for f in folders]
    out = out or runs[0].operator / "gradients.svg"
    for name, deviation in plot(runs, out).items():
        screen.say(f"{name}: standard deviation over the weights {deviation:.4g}")
    screen.say(f"wrote {out} (not for release)")
