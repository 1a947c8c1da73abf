"""images, pretrain and warm: random images, and weights that were trained on public images alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import verb
from dpvision.cli.options import (
    CONSENT_FIX,
    Channels,
    Classes,
    Consented,
    Device,
    PublicImages,
    Size,
    SkipBroken,
    flag,
    option,
    out_option,
)
from dpvision.settings.setting import class_list, word_list


@verb
def images(
    process: Annotated[
        str | None, Parameter(help="Name of a random process; without one, all are listed.", show_default=False)
    ] = None,
    /,
    *,
    count: Annotated[int, option("Output", "Number of images.")] = 96,
    size: Annotated[int, option("Output", "Pixels per side.")] = 64,
    seed: Annotated[int, option("Output", "Seed of the images.")] = 0,
    workers: Annotated[int, option("Output", "Number of processor cores to use.")] = 1,
    out: Annotated[Path | None, out_option("Folder to write.", default="the name of the process")] = None,
) -> None:
    """Draw images from a random process, without any photograph.

    Example: `dpvision images dead-leaves-mixed --count 1000 --out leaves`
    """
    from dpvision.cli import screen
    from dpvision.public.random import PROCESSES
    from dpvision.public.random.gallery import write_gallery

    if process is None:
        rows = [[name, (draws.__doc__ or "").split("\n")[0]] for name, draws in PROCESSES.items()]
        screen.grid(["process", "what"], rows)
        return
    folder = out or Path(process)
    with screen.counting("drawing images") as progress:
        write_gallery(process, folder, count=count, side=size, seed=seed, workers=workers, progress=progress)
    screen.say(f"wrote {folder}; look at {folder / 'contact_sheet.png'}")


@verb
def pretrain(
    *,
    out: Annotated[Path, out_option("Folder to write the weights to; an interrupted one is continued.")],
    process: Annotated[
        str | None,
        option(
            "Data",
            "Random process that draws the images; `dpvision images` lists them.",
            default="stylegan-oriented; for patches dead-leaves-mixed",
        ),
    ] = None,
    model: Annotated[str, option("Model", "Network to train, such as wrn-16-4.")] = "wrn-16-4",
    size: Annotated[int, option("Data", "Pixels per side of the images to train on.")] = 32,
    finer: Annotated[int, option("Data", "Images are drawn larger by this factor, and views are cut from them.")] = 2,
    count: Annotated[int, option("Data", "Number of different images.")] = 105_000,
    batch: Annotated[int, option("Optimisation", "Number of images per step.")] = 256,
    steps: Annotated[int, option("Optimisation", "Number of steps; 82,000 are 200 passes.")] = 82_000,
    lr: Annotated[
        float, option("Optimisation", "Learning rate at a batch of 256; scaled in proportion to the batch.")
    ] = 0.12,
    hidden: Annotated[int, option("Model", "Width of the projection head, which is discarded after training.")] = 4096,
    loss: Annotated[
        Literal["align-uniform", "info-nce"], option("Optimisation", "Contrastive loss.")
    ] = "align-uniform",
    seed: Annotated[int, option("Optimisation", "Seed of images and weights.")] = 0,
    workers: Annotated[int, option("Optimisation", "Number of processor cores that draw images.")] = 1,
) -> None:
    """Train a network on random images, for `train --pretrained`.

    No label and no private image is used. Ctrl-C stops it, and the same command continues it. A model on patches is not
    trained: its dictionary takes a minute at 64 pixels per side (longer for larger images), and only --process, --size
    and --seed matter.

    Example: `dpvision pretrain --model wrn-10-1 --process dead-leaves-mixed --hidden 512 --steps 2000 --out prior`
    """
    if model.startswith("patches-"):
        _build_dictionary(model, out, process=process or "dead-leaves-mixed", size=size, seed=seed)
        return
    process = process or "stylegan-oriented"
    from dpvision.cli import screen
    from dpvision.public.contrastive import PretrainSettings, load_trunk, retrieval_accuracy
    from dpvision.public.contrastive import pretrain as learn

    settings = PretrainSettings(
        process=process,
        model=model,
        side=size,
        finer=finer,
        images=count,
        batch=batch,
        steps=steps,
        lr=lr,
        hidden=hidden,
        loss=loss,
        seed=seed,
    )
    with screen.counting("pretraining") as progress, screen.stoppable() as stop:
        done = learn(settings, out, workers=workers, progress=lambda at: progress(at.step, at.steps), stop=stop)
    if not done:
        screen.say(f"stopped; the same command continues it (its state is in {out})")
        sys.exit(130)
    trunks = (load_trunk(settings), load_trunk(settings, out))
    first, last = (retrieval_accuracy(trunk, process, side=size, first=count, seed=seed) for trunk in trunks)
    screen.say(f"of 200 new random images {last:.1%} are recognised in another view; {first:.1%} before training")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --model {model} --pretrained {weights} "
        "--probe-steps 96`"
    )


def _build_dictionary(model: str, out: Path, *, process: str, size: int, seed: int) -> None:
    from dpvision.cli import screen
    from dpvision.public.contrastive import Pretraining
    from dpvision.public.dictionary import DictionarySettings, compute_and_write
    from dpvision.public.trainer import require_free

    require_free(out, Pretraining)
    with screen.counting("building the dictionary of patches") as progress:
        compute_and_write(DictionarySettings(model, (3, size, size), process=process, seed=seed), out, progress)
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --recipe patches --model {model} "
        f"--pretrained {weights}`"
    )


@verb
def warm(
    public: PublicImages,
    /,
    *,
    out: Annotated[Path, out_option("Folder to write the weights to; an interrupted one is continued.")],
    also: Annotated[
        list[str] | None,
        option(
            "Data", "More public images to train on, such as synthetic ones; repeat it for several.", default="none"
        ),
    ] = None,
    balance: Annotated[
        bool | None, flag("Data", "Repeat PUBLIC until it has the same number of images as --also.")
    ] = None,
    settings: Annotated[
        Literal["cifar-10", "cifar-100"],
        option("Model", "Settings to start from, those of Park et al. 2024; other options win over them."),
    ] = "cifar-10",
    model: Annotated[str | None, option("Model", "Network to train.", default="wrn-16-4")] = None,
    optimiser: Annotated[
        Literal["sgd", "sam", "asam", "pgd"] | None,
        option(
            "Optimisation",
            "Plain SGD, sharpness-aware (sam, asam), or adversarial training (pgd).",
            default="sam",
        ),
    ] = None,
    rho: Annotated[
        float | None, option("Optimisation", "Radius of sam and asam; 0.5 is usual for asam.", default="0.1")
    ] = None,
    radius: Annotated[
        float | None,
        option("Optimisation", "Radius of pgd, as a fraction of the range from black to white.", default="8/255"),
    ] = None,
    augment: Annotated[
        str | None,
        option(
            "Views",
            "Augmentations, with commas between: crop, flip, cutout, cutmix; or none. No flip for digits or letters.",
            default="crop,flip,cutout",
        ),
    ] = None,
    batch: Annotated[
        int | None, option("Optimisation", "Number of images per step.", default="100; 64 for cifar-100")
    ] = None,
    epochs: Annotated[
        int | None, option("Optimisation", "Number of passes over the images.", default="100; 200 for cifar-100")
    ] = None,
    steps: Annotated[
        int | None, option("Optimisation", "Number of steps, instead of --epochs.", default="none")
    ] = None,
    lr: Annotated[
        float | None, option("Optimisation", "Initial learning rate.", default="0.05; 0.1 for cifar-100")
    ] = None,
    momentum: Annotated[float | None, option("Optimisation", "Momentum of the optimiser.", default="0.9")] = None,
    decay: Annotated[float | None, option("Optimisation", "Weight decay.", default="5e-4")] = None,
    hold_out: Annotated[
        float | None, option("Data", "Fraction of PUBLIC to hold out, and to measure accuracy on.", default="0")
    ] = None,
    seed: Annotated[int | None, option("Optimisation", "Seed of weights, views and order.", default="0")] = None,
    save_every: Annotated[float, option("Output", "Seconds between checkpoints.")] = 60.0,
    device: Device = "cpu",
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    consented: Consented = False,
) -> None:
    """Train a network on public images, for `train --pretrained`.

    It costs no epsilon. Only PUBLIC and --also are read, and of these only the training images; their owners must have
    consented. Ctrl-C stops it, and the same command continues it. Accuracy on held-out images is too optimistic if
    --also was synthesised from all of PUBLIC.

    Example: `dpvision warm parts/public.npz --also synthetic.npz --balance --model wrn-10-1 --out warmed`
    """
    given = {k: v for k, v in locals().items() if v is not None}
    from dpvision.cli import screen
    from dpvision.public.trainer import require_free
    from dpvision.public.warmup import NAMED, WarmUp, WarmUpSettings, warm_up

    changes: dict[str, Any] = {k: v for k, v in given.items() if k in WarmUpSettings.__dataclass_fields__}
    if augment is not None:
        changes["augment"] = () if augment == "none" else tuple(word_list(augment))
    chosen = replace(NAMED[settings], **changes)
    require_free(out, WarmUp)
    options: dict[str, Any] = {"size": size, "channels": channels, "skip_broken": bool(skip_broken)}
    with screen.progress("reading images"):
        first, names = _read_public(public, consented, classes=class_list(classes), **options)
        height, width, depth = first.images.shape[1:]
        options |= {"size": (height, width), "channels": depth}
        more = [_read_public(source, consented, classes=list(names), **options)[0] for source in also or ()]
    with screen.counting("warm-up") as progress, screen.stoppable() as stop:
        done = warm_up(
            chosen,
            [first, *more],
            out,
            classes=names,
            device=device,
            save_every=save_every,
            progress=lambda at: progress(at.step, at.steps),
            stop=stop,
        )
    if not done:
        screen.say(f"stopped; the same command continues it (its state is in {out})")
        sys.exit(130)
    _show_warm_up(out, chosen.model)


def _read_public(source: str, consented: bool, **options: Any) -> tuple[Any, tuple[str, ...]]:
    """The training images and the classes of a public source; its test and validation images are not used."""
    from dpvision.data import identify, load
    from dpvision.private.accounts.accounts import require_not_private
    from dpvision.public.batches import Source
    from dpvision.public.provenance import provenance_of_source

    data = load(source, **options)
    train = data.train
    if not consented:
        require_not_private(source, [train], fix=CONSENT_FIX)
    record = provenance_of_source(source, train)
    return Source(data.name, train.images, train.labels, identify(train)[1], train.persons, record), data.classes


def _show_warm_up(out: Path, model: str) -> None:
    """Print what the card of a finished warm-up states."""
    import json

    from dpvision.cli import screen
    from dpvision.public.batches import repeats

    card = json.loads((out / "card.json").read_text())
    rows = {f"on {s['name']}, trained on": s for s in card["sources"]}
    rows |= {"held out": card["held_out"]} if card["held_out"] else {}
    screen.grid(
        ["images", "number", "loss", "accuracy"],
        [[name, f"{s['images']:,}", f"{s['loss']:.4f}", f"{s['accuracy']:.2%}"] for name, s in rows.items()],
    )
    missing = [name for name, count in zip(card["classes"], card["of_each_class"], strict=True) if not count]
    if missing:
        screen.say(f"note: there was no image of class {', '.join(missing)} to learn from.")
    first, *others = (source["images"] for source in card["sources"])
    repeated = f"; public images count {repeats(first, sum(others))} times" if card["balance"] else ""
    screen.say(f"by {card['optimiser']}, views by {', '.join(card['augment']) or 'nothing'}{repeated}")
    speed = card["images_seen"] / max(card["seconds"], 0.1)
    screen.say(f"{card['steps']:,} steps in {card['seconds']:.0f} s, {speed:,.0f} images/s")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train PRIVATE --epsilon EPSILON --model {model} "
        f"--pretrained {weights}`"
    )
