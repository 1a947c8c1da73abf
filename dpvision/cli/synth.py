"""The verb synth: synthesise public images from text or from a few public images, and measure their quality."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import (
    CONSENT_FIX,
    Consented,
    Device,
    Json,
    PublicImages,
    Resize,
    Size,
    option,
    out_option,
    read,
    takes,
    verb_with_parts,
)
from dpvision.errors import ConfigError, DataError
from dpvision.public.settings import FitSettings, GuideSettings

synth = verb_with_parts("synth", "Generate synthetic images from text or from a few public images.")

Model = Annotated[Path, Parameter(help="Folder of a model fitted by `synth fit`.")]


@synth.command(help_epilogue="")
def words(
    *,
    model: Annotated[str, option("Model", "Text-to-image pipeline (diffusers): a folder, or its name on the hub.")],
    classes: Annotated[str, option("Data", "Comma-separated names of the classes.")],
    out: Annotated[Path, out_option("Folder of images to write, for `train --synthetic`.")],
    prompts: Annotated[
        str, option("Data", "Prompt for each image; {class} is replaced by the class.")
    ] = "a photo of a {class}",
    count: Annotated[int, option("Output", "Number of images per class.")] = 1000,
    size: Annotated[int, option("Output", "Pixels per side.")] = 32,
    steps: Annotated[int, option("Model", "Number of steps of the sampler.")] = 25,
    guidance: Annotated[float, option("Model", "Guidance scale: how closely the images follow the prompt.")] = 7.5,
    seed: Annotated[int, option("Output", "Seed of the images.")] = 0,
) -> None:
    """Generate images from text with a public text-to-image model.

    Example: `dpvision synth words --model sd-turbo --classes cat,dog --prompts "a photo of a {class}" --out synthetic`
    """
    from dpvision.cli import screen
    from dpvision.public.prompts import sample

    names = [name.strip() for name in classes.split(",") if name.strip()]
    with screen.counting("generating images") as progress:
        sample(
            model,
            out,
            classes=names,
            prompt=prompts,
            count=count,
            size=size,
            steps=steps,
            guidance=guidance,
            seed=seed,
            progress=progress,
        )
    screen.say(f"wrote {out}; use it with `dpvision train DATA --recipe dp-mix-diff --synthetic {out}`")


@synth.command(help_epilogue="")
@takes(FitSettings, common=False)
def fit(
    public: PublicImages,
    /,
    *,
    out: Annotated[Path, out_option("Folder to write the model to; interrupted work in it is resumed.")],
    size: Annotated[
        str, option("Model", "Size of the U-Net: tiny, small, medium or paper (56 million weights).")
    ] = "small",
    steps: Annotated[int | None, option("Optimisation", "Total number of steps.", default="none")] = None,
    minutes: Annotated[
        float | None, option("Optimisation", "Total minutes of training, instead of --steps.", default="none")
    ] = None,
    method: Annotated[Literal["edm", "ddpm"], option("Model", "Kind of diffusion model.")] = "edm",
    resize: Resize = None,
    device: Device = "auto",
    consented: Consented = False,
    **flags: Any,
) -> None:
    """Fit a diffusion model to a few PUBLIC images, to sample any number of new images of each class.

    Press Ctrl-C to stop, and run the same command again to continue; a larger --steps continues a finished model.
    Sheets of samples (grid-STEP.png) are written during training.

    Example: `dpvision synth fit parts/public.npz --steps 8000 --out edm`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public.diffusion.fit import fit as learn
    from dpvision.public.diffusion.model import ModelSpec
    from dpvision.public.trainer import Progress

    place = find_device(device, report=screen.say)
    data, record = _read_public(public, resize, consented=consented)
    height, width, channels = data.train.images.shape[1:]
    spec = ModelSpec((channels, height, width), data.classes, method=method, size=size)
    settings = FitSettings(**read(FitSettings, flags))
    with screen.progress(f"fitting {method}") as show, screen.stoppable() as stop:

        def watch(at: Progress) -> None:
            if minutes is None:
                show(f"fitting {method}", at.step, steps or 1)
            else:
                show(f"fitting {method}, per cent", round(100 * at.done), 100)

        done = learn(
            spec,
            settings,
            data.train.images,
            data.train.labels,
            out,
            steps=steps,
            minutes=minutes,
            provenance=record,
            device=place,
            progress=watch,
            stop=stop,
            report=screen.say,
        )
    if not done:
        _stop(out)
    screen.say(f"wrote {out}; sample from it with `dpvision synth sample {out} --count 50000 --out synthetic.npz`")


@synth.command(help_epilogue="")
@takes(GuideSettings, common=False)
def guide(
    model: Model,
    public: PublicImages,
    /,
    *,
    out: Annotated[Path, out_option("Folder to write the guide to; interrupted work in it is resumed.")],
    resize: Resize = None,
    device: Device = "auto",
    consented: Consented = False,
    **flags: Any,
) -> None:
    """Fit a discriminator between PUBLIC images and samples of a model, to make later samples more realistic.

    Press Ctrl-C to stop, and run the same command again to continue.

    Example: `dpvision synth guide edm parts/public.npz --out guide`, then
    `dpvision synth sample edm --guide guide --count 50000 --out guided.npz`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public.diffusion.guidance import fit_guide

    place = find_device(device, report=screen.say)
    data, record = _read_public(public, resize, consented=consented)
    settings = GuideSettings(**{"samples": len(data.train), **read(GuideSettings, flags)})
    arrays = data.train.images, data.train.labels
    with screen.progress("fitting the guide") as show, screen.stoppable() as stop:
        done = fit_guide(
            model, settings, *arrays, out, provenance=record, device=place, progress=show, stop=stop, report=screen.say
        )
    if not done:
        _stop(out)
    screen.say(
        f"wrote {out}; use it with `dpvision synth sample {model} --guide {out} --weight 1 --count 50000 "
        "--out guided.npz`"
    )


@synth.command(help_epilogue="")
def sample(
    model: Model,
    /,
    *,
    count: Annotated[int, option("Output", "Number of images in total; each class gets the same number.")],
    out: Annotated[Path, out_option("File to write (.npz); an interrupted one is resumed.")],
    sampler: Annotated[
        Literal["heun", "euler", "ancestral"] | None,
        option("Model", "Sampling method.", default="heun for edm, ancestral for ddpm"),
    ] = None,
    steps: Annotated[
        int | None, option("Model", "Number of steps of the sampler.", default="18 for edm, 1000 for ddpm")
    ] = None,
    guide: Annotated[
        Path | None,
        option(
            "Model", "Folder of a guide fitted by `synth guide`, which makes samples more realistic.", default="none"
        ),
    ] = None,
    weight: Annotated[float, option("Model", "Weight of the guide.")] = 1.0,
    batch: Annotated[int, option("Output", "Number of images to generate at once.")] = 250,
    seed: Annotated[int, option("Output", "Seed of the images.")] = 0,
    device: Device = "auto",
) -> None:
    """Sample new images from a model fitted by `synth fit`, the same number of each class.

    Press Ctrl-C to stop, and run the same command again to continue, even after a kill.

    Example: `dpvision synth sample edm --count 50000 --out synthetic.npz`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public.diffusion.guidance import load_guide
    from dpvision.public.diffusion.sample import SampleSettings
    from dpvision.public.diffusion.sample import sample as draw_all
    from dpvision.public.provenance import read_provenance

    place = find_device(device, report=screen.say)
    loaded, name = (None, "") if guide is None else load_guide(guide, model, weight=weight, device=place)
    sampling = SampleSettings(count=count, sampler=sampler, steps=steps, batch=batch, seed=seed)
    with screen.counting("generating images") as progress, screen.stoppable() as stop:
        done = draw_all(
            model,
            sampling,
            out,
            guide=loaded,
            guided_by=name,
            guide_provenance=read_provenance(guide / "weights.safetensors") if guide else "",
            device=place,
            progress=progress,
            stop=stop,
        )
    if not done:
        _stop(Path(f"{out}.parts"))
    screen.say(f"wrote {out} and {out.with_suffix('.png')}; use it with `dpvision train DATA --synthetic {out}`")


def _read_public(source: str, size: int | None, *, consented: bool) -> tuple[Any, Any]:
    """Return the public images and their provenance; refuse images of a private data set."""
    from dpvision import data
    from dpvision.cli import screen
    from dpvision.private.accounts.accounts import require_not_private
    from dpvision.public.provenance import provenance_of_source

    with screen.progress("reading images"):
        images = data.load(source, size=size, test_share=0)
        if not consented:
            require_not_private(source, [images.train], fix=CONSENT_FIX)
        return images, provenance_of_source(source, images.train)


def _stop(state: Path) -> None:
    from dpvision.cli import screen

    screen.say(f"stopped; run the same command again to continue (its state is in {state})")
    sys.exit(130)


@synth.command(help_epilogue="")
def quality(
    synthetic: Annotated[str, Parameter(help="Synthetic images: an .npz, or a folder train/CLASS/x.png.")],
    real: Annotated[
        str, Parameter(help="Real images to compare with; if they are private, the results are not for release.")
    ],
    /,
    *,
    out: Annotated[Path, out_option("JSON file to write; it must be new. A picture is written next to it.")],
    network: Annotated[
        Literal["inception", "dinov2", "scattering", "classifier"], option("Model", "Features used to compare images.")
    ] = "scattering",
    weights: Annotated[
        Path | None, option("Model", "Weights of inception or dinov2 (.safetensors), or dinov2-vits14.", default="none")
    ] = None,
    split: Annotated[Literal["train", "val", "test"], option("Data", "Split of the real images.")] = "train",
    most: Annotated[
        int | None, option("Data", "Maximum number of real and of synthetic images, chosen at random.", default="all")
    ] = None,
    neighbours: Annotated[int, option("Model", "Number of nearest neighbours for precision and recall.")] = 3,
    cas: Annotated[
        bool,
        option(
            "Model", "Classification accuracy score: train on synthetic images, test on real ones.", negative="--no-cas"
        ),
    ] = True,
    model: Annotated[
        str | None,
        option("Model", "Network of the CAS classifier.", default="resnet-9-small; small-cnn below 16 pixels"),
    ] = None,
    steps: Annotated[int, option("Model", "Number of training steps of the CAS classifier.")] = 400,
    size: Size = None,
    seed: Annotated[int, option("Data", "Seed for choosing the images and for the CAS classifier.")] = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure synthetic images: FID, precision, recall, Inception score, CAS, and whether they are copies.

    No noise protects the figures: if the real images are private, the figures are not for release. The distance is
    called FID only if it is computed with the Inception network; `python -m benchmarks.inception_weights` converts its
    weights.

    Example: `dpvision synth quality synthetic.npz parts/public.npz --network scattering --out quality.json`
    """
    from json import dumps

    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.exists():
            raise ConfigError(f"{path}: already exists. Fix: use another --out.")
    if picture == out:
        raise ConfigError(f"{out}: this name is needed for the picture. Fix: use --out quality.json.")
    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.data import Split, load
    from dpvision.models.device import find_device
    from dpvision.public.quality.classifier import ClassifierSettings, LabelledImages
    from dpvision.public.quality.evaluation import evaluate
    from dpvision.storage.weights import resolve

    place = find_device(device, report=screen.say)

    def pictures(name: str, of: Split) -> LabelledImages:
        return LabelledImages(name, of.images, of.labels)

    with screen.progress("reading images") as progress:
        data = load(real, size=size)
        splits: dict[str, Split | None] = {"train": data.train, "val": data.val, "test": data.test}
        reference = splits[split]
        if reference is None:
            raise DataError(f"{real}: has no {split} split. Fix: use --split train.")
        drawn = load(synthetic, classes=list(data.classes), size=size, test_share=0).train
        model = model or ("resnet-9-small" if min(reference.images.shape[1:3]) >= 16 else "small-cnn")
        measured = evaluate(
            pictures(synthetic, drawn),
            pictures(f"{real} ({split})", reference),
            network=network,
            weights=None if weights is None else resolve(weights),
            classes=data.classes,
            test=None if data.test is None else pictures(f"{real} (test)", data.test),
            cas=cas,
            settings=ClassifierSettings(model=model, steps=steps, seed=seed),
            neighbours=neighbours,
            max_images=most,
            seed=seed,
            device=place,
            progress=progress,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(picture, measured.picture())
    files.write(out, dumps(measured.json(), indent=1, allow_nan=False) + "\n")
    if json:
        screen.as_json(measured.json())
        return
    figures = {name: f"{value:.4g}" for name, value in measured.figures.items()}
    screen.table(figures, title=f"{synthetic} against {real}")
    for note in measured.notes:
        screen.say(f"  note: {note}")
    screen.say(f"wrote {out}; {picture} shows synthetic images above their nearest real images")
