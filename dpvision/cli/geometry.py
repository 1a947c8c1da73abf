"""geometry: how the loss lies around a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import Data, app
from dpvision.settings.setting import word_list


@app.command
def geometry(
    weights: Annotated[Path, Parameter(help="the folder of a run, or a weights.safetensors file")],
    source: Data,
    /,
    *,
    private: Annotated[
        bool, Parameter(negative="", help="the images are private: results stay in the run's operator folder")
    ] = False,
    model: Annotated[
        str | None, Parameter(help="the network, for a file that does not say it, such as wrn-10-1")
    ] = None,
    split: Literal["train", "val", "test"] = "train",
    most: Annotated[int, Parameter(help="how many images are looked at")] = 512,
    top: Annotated[int, Parameter(help="how many of the largest eigenvalues")] = 5,
    probes: Annotated[int, Parameter(help="random vectors for the trace")] = 32,
    pair: Annotated[
        str | None, Parameter(help="two classes for the gradient plane, with a comma between; with --beside, one")
    ] = None,
    beside: Annotated[
        str | None, Parameter(help="another data set: the plane is of the two sets and not of two classes")
    ] = None,
    seed: Annotated[int, Parameter(help="of the choice of images")] = 0,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="new folder")] = Path("geometry"),
) -> None:
    """Sharpness of the loss at a model's weights, and whether gradients of a class point one way.

    Prints the largest eigenvalues of the Hessian and its trace; writes geometry.json, spectrum.svg and gradients.svg.
    Without --private the images are taken as public: nothing protects what is told about them.

    Example: `dpvision geometry runs/first digits --private`, or, for images that anybody may see,
    `dpvision geometry warmed/weights.safetensors parts/public.npz --model wrn-10-1`
    """
    from dpvision.audit import geometry as audit
    from dpvision.cli import screen

    where = audit.choose_output(weights, out, private=private)
    looked, *others = (
        audit.load_subject(weights, data, private=private, model=model, split=split, most=most, seed=seed)
        for data in (source, beside)
        if data is not None
    )
    what = " and ".join(f"{s.facts['images']:,} images of {s.name}" for s in (looked, *others))
    if private:
        screen.say(f"measuring on {what}, which are PRIVATE: no noise protects any of this; for your eyes only")
    else:
        screen.say(f"measuring on {what}, taken as PUBLIC: figures and pictures tell about them. If not: --private")
    with screen.named_bars() as bars:
        found = audit.measure(
            looked,
            top=top,
            probes=probes,
            pair=word_list(pair or ""),
            other=others[0] if others else None,
            progress=bars,
        )
    values, trace, plane = found.curvature.eigenvalues, found.curvature.trace, found.plane
    first, second = found.groups
    ratio = "none: the last is not positive" if found.curvature.ratio is None else f"{found.curvature.ratio:.4g}"
    named = {1: "lambda_1", top: f"lambda_{top}"}
    screen.table(
        {
            "loss, accuracy": f"{found.summary.loss:.4g}, {found.summary.accuracy:.2%}",
            **{name: f"{values.values[i - 1]:.5g} +- {values.errors[i - 1]:.1g}" for i, name in named.items()},
            f"lambda_1/lambda_{top}": ratio,
            "trace": f"{trace.value:.5g} +- {trace.error:.2g} (standard error, {trace.probes} probes)",
            "lowest": f"{values.lowest:.4g} +- {values.lowest_error:.1g}",
            "mean cosine": f"within {first!r} {plane.first.within:.3f}, within {second!r} {plane.second.within:.3f}, "
            f"between {plane.between:.3f}",
        },
        title=f"mean loss, {found.curvature.weights:,} weights",
    )
    if not values.converged:
        screen.say(f"note: after {values.products} products the eigenvalues are known no better than the errors say")
    audit.save(where, looked, found)
    whose = "for your eyes only: never release it" if private else "may be released wherever the weights may"
    screen.say(f"wrote {where.folder}: geometry.json, spectrum.svg, gradients.svg ({whose})")
