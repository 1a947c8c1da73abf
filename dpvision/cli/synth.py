"""synth: public images, from words or from a few public images. Nothing private is looked at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dpvision.cli.app import PUBLISHED, Consented, app

synth = App(name="synth", help="Make public images: from words, or from a few public images. Nothing private is read.")
app.command(synth)

Public = Annotated[str, Parameter(help="public images: digits, an .npz, an image folder, a .csv or a packed store")]
Device = Annotated[str, Parameter(help="cpu, or cuda")]


@synth.command
def words(
    *,
    model: Annotated[str, Parameter(help="folder of a text-to-image pipeline (diffusers), or its name on the hub")],
    classes: Annotated[str, Parameter(help="names with commas between")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="image folder, for `train --synthetic`")],
    prompts: Annotated[str, Parameter(help="what is asked for; {class} is the class")] = "a photo of a {class}",
    count: Annotated[int, Parameter(help="images of each class")] = 1000,
    size: Annotated[int, Parameter(help="pixels a side")] = 32,
    steps: Annotated[int, Parameter(help="steps of the sampler")] = 25,
    guidance: float = 7.5,
    seed: int = 0,
) -> None:
    """Images from words, by a public text-to-image model. Nothing private is looked at.

    Example: `dpvision synth words --model sd-turbo --classes cat,dog --prompts "a photo of a {class}" --out synthetic`
    """
    from dpvision.cli import screen
    from dpvision.public.prompts import sample

    names = [name.strip() for name in classes.split(",") if name.strip()]
    with screen.counting_bar("synthesising") as progress:
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


@synth.command
def fit(
    public: Public,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the model; one that was begun goes on")],
    size: Annotated[str, Parameter(help="of the U-Net: tiny, small, medium or paper (56 million weights)")] = "small",
    steps: Annotated[int | None, Parameter(help="end after so many steps in all")] = None,
    minutes: Annotated[float | None, Parameter(help="end after so many minutes of fitting in all")] = None,
    method: Literal["edm", "ddpm"] = "edm",
    batch: Annotated[int, Parameter(help="images a step; the paper's is 512")] = 64,
    lr: Annotated[float, Parameter(help="the paper's is 0.001")] = 2e-3,
    warm: Annotated[int, Parameter(help="images until lr is reached; the paper's is 10 million")] = 10_000,
    pieces: Annotated[int, Parameter(help="compute a batch in so many, where it does not fit into memory")] = 1,
    augment: Annotated[
        float, Parameter(help="chance of each change of an image (turn, shift, ...); 0.12 in the paper")
    ] = 0.0,
    flip: Annotated[
        bool, Parameter(negative="", help="learn from mirrored images, too: not for digits or letters")
    ] = False,
    resize: Annotated[int | None, Parameter(help="resize image files to this many pixels a side")] = None,
    seed: int = 0,
    device: Device = "cpu",
    consented: Consented = False,
) -> None:
    """Fit a diffusion model to a few PUBLIC images, so that it can draw as many new ones of each class as asked for.

    It can be stopped with Ctrl-C and goes on by the same command; with a later end it goes on after its end, too.
    Sheets of samples (grid-STEP.png) appear in the folder while it learns.

    Example: `dpvision synth fit parts/public.npz --steps 8000 --out edm`
    """
    from dpvision import data
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.private.accounts.taken_as_public import require_not_private
    from dpvision.public import provenance
    from dpvision.public.diffusion.fit import Settings
    from dpvision.public.diffusion.fit import fit as learn
    from dpvision.public.diffusion.model import Kind
    from dpvision.public.trainer import Progress

    find_device(device)
    found = data.load(public, size=resize)
    if not consented:
        require_not_private(public, [found.train], fix=PUBLISHED)
    height, width, channels = found.train.images.shape[1:]
    kind = Kind((channels, height, width), found.classes, method=method, size=size)
    settings = Settings(batch=batch, lr=lr, warm=warm, pieces=pieces, augment=augment, flip=flip, seed=seed)
    with screen.named_bars() as bar, screen.stoppable() as stop:

        def watch(at: Progress) -> None:
            if minutes is None:
                bar(f"fitting {method}", at.step, steps or 1)
            else:
                bar(f"fitting {method}, per cent", round(100 * at.done), 100)

        arrays = found.train.images, found.train.labels
        done = learn(
            kind,
            settings,
            *arrays,
            out,
            steps=steps,
            minutes=minutes,
            learned_from=provenance.of_source(public, found.train),
            device=device,
            watch=watch,
            stop=stop,
        )
    if not done:
        screen.say(f"stopped; go on with the same command (its state is in {out})")
        sys.exit(130)
    screen.say(f"wrote {out}; draw from it with `dpvision synth sample {out} --count 50000 --out synthetic.npz`")


@synth.command
def guide(
    model: Annotated[Path, Parameter(help="folder of `synth fit`")],
    public: Public,
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the guide; one that was begun goes on")],
    samples: Annotated[int | None, Parameter(help="drawn to compare with; as many as public images by default")] = None,
    extractor_steps: Annotated[int, Parameter(help="of learning to name public images")] = 1000,
    steps: Annotated[int, Parameter(help="of learning to tell public images from samples")] = 1000,
    batch: int = 64,
    lr: float = 3e-4,
    width: Annotated[int, Parameter(help="channels of the two networks")] = 32,
    resize: Annotated[int | None, Parameter(help="resize image files to this many pixels a side")] = None,
    seed: int = 0,
    device: Device = "cpu",
    consented: Consented = False,
) -> None:
    """Fit a discriminator that tells PUBLIC images from samples of a model, to lead `synth sample` to the former.

    It can be stopped with Ctrl-C and goes on by the same command.

    Example: `dpvision synth guide edm parts/public.npz --out guide`, then
    `dpvision synth sample edm --guide guide --count 50000 --out guided.npz`
    """
    from dpvision import data
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.private.accounts.taken_as_public import require_not_private
    from dpvision.public import provenance
    from dpvision.public.diffusion.guide import Settings, fit_guide

    find_device(device)
    found = data.load(public, size=resize)
    if not consented:
        require_not_private(public, [found.train], fix=PUBLISHED)
    settings = Settings(
        samples=len(found.train) if samples is None else samples,
        extractor_steps=extractor_steps,
        steps=steps,
        batch=batch,
        lr=lr,
        width=width,
        seed=seed,
    )
    arrays = found.train.images, found.train.labels
    with screen.named_bars() as bar, screen.stoppable() as stop:
        note = provenance.of_source(public, found.train)
        done = fit_guide(model, settings, *arrays, out, learned_from=note, device=device, watch=bar, stop=stop)
    if not done:
        screen.say(f"stopped; go on with the same command (its state is in {out})")
        sys.exit(130)
    screen.say(
        f"wrote {out}; use it with `dpvision synth sample {model} --guide {out} --weight 1 --count 50000 "
        "--out guided.npz`"
    )


@synth.command
def sample(
    model: Annotated[Path, Parameter(help="folder of `synth fit`")],
    /,
    *,
    count: Annotated[int, Parameter(help="images in all, as many of each class")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help=".npz file; one that was begun goes on")],
    sampler: Literal["heun", "euler", "ancestral"] | None = None,
    steps: Annotated[int | None, Parameter(help="of the sampler: 18 for edm, 1000 for ddpm")] = None,
    guide: Annotated[Path | None, Parameter(help="folder of `synth guide`, to lead samples to real images")] = None,
    weight: Annotated[float, Parameter(help="of the guide")] = 1.0,
    batch: Annotated[int, Parameter(help="images drawn at once")] = 250,
    seed: int = 0,
    device: Device = "cpu",
) -> None:
    """Draw new images of every class, as many of each, from a model that `synth fit` made.

    It can be stopped with Ctrl-C, or killed, and goes on by the same command.

    Example: `dpvision synth sample edm --count 50000 --out synthetic.npz`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public import provenance
    from dpvision.public.diffusion.guide import load_guide
    from dpvision.public.diffusion.sample import Draw
    from dpvision.public.diffusion.sample import sample as draw_all

    find_device(device)
    led, name = (None, "") if guide is None else load_guide(guide, model, weight=weight, device=device)
    draw = Draw(count=count, sampler=sampler, steps=steps, batch=batch, seed=seed)
    with screen.named_bars() as bar, screen.stoppable() as stop:
        done = draw_all(
            model,
            draw,
            out,
            guide=led,
            guided_by=name,
            guide_learned_from=provenance.of_weights(guide / "weights.safetensors") if guide else "",
            device=device,
            watch=lambda at, of: bar("drawing", at, of),
            stop=stop,
        )
    if not done:
        screen.say(f"stopped; go on with the same command (what is drawn is in {out}.parts)")
        sys.exit(130)
    screen.say(f"wrote {out} and {out.with_suffix('.png')}; use it with `dpvision train DATA --synthetic {out}`")
