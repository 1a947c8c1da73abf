"""The verbs images, pretrain and warm: random images, and weights trained on public images only."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import (
    CONSENT_FIX,
    Channels,
    Classes,
    Consented,
    Device,
    PublicImages,
    Size,
    SkipBroken,
    like,
    option,
    out_option,
    read,
    takes,
    verb,
)
from dpvision.public.settings import PretrainSettings, WarmUpSettings
from dpvision.settings.setting import class_list, declared


@verb
def images(
    process: Annotated[
        str | None,
        Parameter(help="Name of a random process; without a name, all processes are listed.", show_default=False),
    ] = None,
    /,
    *,
    count: Annotated[int, option("Output", "Number of images.")] = 96,
    size: Annotated[int, option("Output", "Pixels per side.")] = 64,
    seed: Annotated[int, option("Output", "Seed of the images.")] = 0,
    workers: Annotated[int, option("Output", "Number of processor cores to use.")] = 1,
    out: Annotated[Path | None, out_option("Folder to write.", default="the name of the process")] = None,
) -> None:
    """Generate images from a random process, without any photographs.

    Example: `dpvision images dead-leaves-mixed --count 1000 --out leaves`
    """
    from dpvision.cli import screen
    from dpvision.public.random import PROCESSES, write_gallery

    if process is None:
        rows = [[name, (draws.__doc__ or "").split("\n")[0]] for name, draws in PROCESSES.items()]
        screen.grid(["process", "description"], rows)
        return
    folder = out or Path(process)
    with screen.counting("generating images") as progress:
        write_gallery(process, folder, count=count, side=size, seed=seed, workers=workers, progress=progress)
    screen.say(f"wrote {folder}; look at {folder / 'contact_sheet.png'}")


@verb
@takes(PretrainSettings, common=False)
def pretrain(
    *,
    out: Annotated[Path, out_option("Folder to write the weights to; interrupted work in it is resumed.")],
    size: Annotated[int, like(declared(PretrainSettings)["side"], name="--size")] = PretrainSettings.side,
    count: Annotated[int, like(declared(PretrainSettings)["images"], name="--count")] = PretrainSettings.images,
    workers: Annotated[int, option("Optimisation", "Number of processor cores to generate images with.")] = 1,
    device: Device = "auto",
    **flags: Any,
) -> None:
    """Train a network on random images, for `train --pretrained`.

    It uses no labels and no private images. Press Ctrl-C to stop, and run the same command again to continue. A patches
    model is not trained: only its dictionary is computed, which takes a minute at 64 pixels per side (longer for larger
    images), and of the settings only --process, --size and --seed matter.

    Example: `dpvision pretrain --model wrn-10-1 --process dead-leaves-mixed --hidden 512 --steps 2000 --out prior`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device

    given = read(PretrainSettings, flags)
    model: str = given.get("model", PretrainSettings.model)
    if model.startswith("patches-"):
        process, seed = given.get("process", "dead-leaves-mixed"), given.get("seed", PretrainSettings.seed)
        _build_dictionary(model, out, process=process, size=size, seed=seed, device=device)
        return
    from dpvision.public.contrastive import load_trunk, retrieval_accuracy
    from dpvision.public.contrastive import pretrain as learn

    settings = PretrainSettings(**given, side=size, images=count)
    place = find_device(device, report=screen.say)
    with screen.counting("pretraining") as progress, screen.stoppable() as stop:
        done = learn(
            settings,
            out,
            workers=workers,
            device=place,
            progress=lambda at: progress(at.step, at.steps),
            stop=stop,
            report=screen.say,
        )
    if not done:
        screen.say(f"stopped; run the same command again to continue (its state is in {out})")
        sys.exit(130)
    first, last = (
        retrieval_accuracy(trunk.to(place), settings.process, side=size, first=count, seed=settings.seed, device=place)
        for trunk in (load_trunk(settings), load_trunk(settings, out))
    )
    screen.say(f"{last:.1%} of 200 new random images are recognised in another view ({first:.1%} before training)")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --model {model} --pretrained {weights} "
        "--probe-steps 96`"
    )


def _build_dictionary(model: str, out: Path, *, process: str, size: int, seed: int, device: str) -> None:
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public.contrastive import Pretraining
    from dpvision.public.dictionary import DictionarySettings, compute_and_write
    from dpvision.public.trainer import require_free

    require_free(out, Pretraining)
    settings = DictionarySettings(model, (3, size, size), process=process, seed=seed)
    place = find_device(device, report=screen.say)
    with screen.counting("building the dictionary of patches") as progress:
        compute_and_write(settings, out, progress, device=place)
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --recipe patches --model {model} "
        f"--pretrained {weights}`"
    )


@verb
@takes(WarmUpSettings, common=False)
def warm(
    public: PublicImages,
    /,
    *,
    out: Annotated[Path, out_option("Folder to write the weights to; interrupted work in it is resumed.")],
    also: Annotated[
        list[str] | None,
        option("Data", "More public images to train on, such as synthetic ones; may be repeated.", default="none"),
    ] = None,
    settings: Annotated[
        Literal["cifar-10", "cifar-100"],
        option("Model", "Settings of Park et al. 2024 to start from; other options override them."),
    ] = "cifar-10",
    save_every: Annotated[float, option("Output", "Seconds between checkpoints.")] = 60.0,
    device: Device = "auto",
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    consented: Consented = False,
    **flags: Any,
) -> None:
    """Train a network on public images, for `train --pretrained`.

    This costs no epsilon: only the training images of PUBLIC and --also are read, and their owners must have consented.
    Press Ctrl-C to stop, and run the same command again to continue. If --also was synthesised from all of PUBLIC, the
    accuracy on held-out images is too optimistic.

    Example: `dpvision warm parts/public.npz --also synthetic.npz --balance --model wrn-10-1 --out warmed`
    """
    from dpvision.cli import screen
    from dpvision.models.device import find_device
    from dpvision.public.trainer import require_free
    from dpvision.public.warmup import NAMED, WarmUp, warm_up

    chosen = replace(NAMED[settings], **read(WarmUpSettings, flags))
    require_free(out, WarmUp)
    place = find_device(device, report=screen.say)
    options: dict[str, Any] = {"size": size, "channels": channels, "skip_broken": bool(skip_broken), "test_share": 0}
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
            device=place,
            save_every=save_every,
            progress=lambda at: progress(at.step, at.steps),
            stop=stop,
            report=screen.say,
        )
    if not done:
        screen.say(f"stopped; run the same command again to continue (its state is in {out})")
        sys.exit(130)
    _show_warm_up(out, chosen.model)


def _read_public(source: str, consented: bool, **options: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the training images and the classes of a public source; its test and validation images are not used."""
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
    """Print the card of a finished warm-up."""
    import json

    from dpvision.cli import screen
    from dpvision.public.batches import repeats

    card = json.loads((out / "card.json").read_text())
    rows = {f"{s['name']} (trained on)": s for s in card["sources"]}
    rows |= {"held out": card["held_out"]} if card["held_out"] else {}
    screen.grid(
        ["images", "number", "loss", "accuracy"],
        [[name, f"{s['images']:,}", f"{s['loss']:.4f}", f"{s['accuracy']:.2%}"] for name, s in rows.items()],
    )
    missing = [name for name, count in zip(card["classes"], card["of_each_class"], strict=True) if not count]
    if missing:
        screen.say(f"note: there were no images of class {', '.join(missing)} to train on.")
    first, *others = (source["images"] for source in card["sources"])
    repeated = f"; each public image is repeated {repeats(first, sum(others))} times" if card["balance"] else ""
    screen.say(f"optimiser {card['optimiser']}, augmentation {', '.join(card['augment']) or 'none'}{repeated}")
    speed = card["images_seen"] / max(card["seconds"], 0.1)
    screen.say(f"{card['steps']:,} steps in {card['seconds']:.0f} s, {speed:,.0f} images/s")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train PRIVATE --epsilon EPSILON --model {model} "
        f"--pretrained {weights}`"
    )
