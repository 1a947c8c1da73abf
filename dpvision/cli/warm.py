"""warm: train on public images before the private ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from dpvision.cli.app import PUBLISHED, Channels, Classes, Consented, Size, SkipBroken, app
from dpvision.settings.setting import class_list, word_list


@app.command
def warm(
    public: Annotated[
        str, Parameter(help="PUBLIC images: an .npz (such as of `data split`), a folder, a .csv, a store")
    ],
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the weights; one that was begun goes on")],
    also: Annotated[
        list[str] | None, Parameter(negative="", help="more images to train on, such as synthetic ones; may repeat")
    ] = None,
    balance: Annotated[
        bool | None, Parameter(negative="", help="repeat PUBLIC until its images are as many as those of --also")
    ] = None,
    settings: Annotated[
        Literal["cifar-10", "cifar-100"], Parameter(help="of Park et al. 2024; what is given beside them wins")
    ] = "cifar-10",
    model: Annotated[str | None, Parameter(help="the network; wrn-16-4")] = None,
    optimiser: Annotated[
        Literal["sgd", "sam", "asam", "pgd"] | None, Parameter(help="plain, by flatness, or on adversarial images; sam")
    ] = None,
    rho: Annotated[float | None, Parameter(help="radius of sam, and of asam, for which 0.5 is usual; 0.1")] = None,
    radius: Annotated[float | None, Parameter(help="of pgd, of the range from black to white; 8/255")] = None,
    augment: Annotated[
        str | None,
        Parameter(help="such as crop or crop,flip,cutmix; none for digits, letters; crop,flip,cutout"),
    ] = None,
    batch: Annotated[int | None, Parameter(help="100, and 64 for cifar-100")] = None,
    epochs: Annotated[int | None, Parameter(help="passes: 100, and 200 for cifar-100")] = None,
    steps: Annotated[int | None, Parameter(help="instead of epochs")] = None,
    lr: Annotated[float | None, Parameter(help="at the start; 0.05, and 0.1 for cifar-100")] = None,
    momentum: float | None = None,
    decay: Annotated[float | None, Parameter(help="weight decay; 5e-4")] = None,
    hold_out: Annotated[float | None, Parameter(help="share of PUBLIC kept aside, to tell accuracy on")] = None,
    seed: int | None = None,
    save_every: Annotated[float, Parameter(help="seconds between saved states")] = 60.0,
    device: Annotated[str, Parameter(help="cpu or cuda")] = "cpu",
    classes: Classes = None,
    size: Size = None,
    channels: Channels = None,
    skip_broken: SkipBroken = None,
    consented: Consented = False,
) -> None:
    """Train on public images, without privacy: weights for `train --pretrained`, at no epsilon.

    Nothing but PUBLIC and --also is read, and of these only the images to train on; their owners must have consented.
    It can be stopped with Ctrl-C and goes on by the same command. Accuracy on held-out images is told too high where
    --also was synthesised from all of PUBLIC.

    Example: `dpvision warm parts/public.npz --also synthetic.npz --balance --model wrn-10-1 --out warmed`
    """
    given = {k: v for k, v in locals().items() if v is not None}
    from dpvision.cli import screen
    from dpvision.public.trainer import Progress, require_free
    from dpvision.public.warmup import NAMED, Settings, WarmUp, warm_up

    named = NAMED[settings]
    changes: dict[str, Any] = {k: v for k, v in given.items() if k in Settings.__dataclass_fields__}
    if augment is not None:
        changes["augment"] = () if augment == "none" else tuple(word_list(augment))
    chosen = replace(named, **changes)
    require_free(out, WarmUp)
    options: dict[str, Any] = {"size": size, "channels": channels, "skip_broken": bool(skip_broken)}
    first, names = _read(public, consented, classes=class_list(classes), **options)
    height, width, depth = first.images.shape[1:]
    options |= {"size": (height, width), "channels": depth}
    sources = [first, *(_read(source, consented, classes=list(names), **options)[0] for source in also or ())]
    with screen.named_bars() as bar, screen.stoppable() as stop:

        def watch(at: Progress) -> None:
            bar("warm-up", at.step, at.steps)

        done = warm_up(
            chosen, sources, out, classes=names, device=device, save_every=save_every, watch=watch, stop=stop
        )
    if not done:
        screen.say(f"stopped; go on with the same command (its state is in {out})")
        sys.exit(130)
    _tell(out, chosen.model)


def _read(source: str, consented: bool, **options: Any) -> tuple[Any, tuple[str, ...]]:
    """The images to train on, and the classes; test and validation images of a source are not looked at."""
    from dpvision.data import identify, load
    from dpvision.private.accounts.taken_as_public import require_not_private
    from dpvision.public import provenance
    from dpvision.public.batches import Source

    data = load(source, **options)
    train = data.train
    if not consented:
        require_not_private(source, [train], fix=PUBLISHED)
    note = provenance.of_source(source, train)
    return Source(data.name, train.images, train.labels, identify(train)[1], train.persons, note), data.classes


def _repeated(card: dict[str, Any]) -> str:
    from dpvision.public.batches import times

    first, *others = (source["images"] for source in card["sources"])
    return f"; public images count {times(first, sum(others))} times" if card["balance"] else ""


def _tell(out: Path, model: str) -> None:
    import json

    from dpvision.cli import screen

    card = json.loads((out / "card.json").read_text())
    rows = {f"on {s['name']}, trained on": s for s in card["sources"]}
    rows |= {"held out": card["held_out"]} if card["held_out"] else {}
    screen.grid(
        ["images", "number", "loss", "accuracy"],
        [[name, f"{s['images']:,}", f"{s['loss']:.4f}", f"{s['accuracy']:.2%}"] for name, s in rows.items()],
    )
    missing = [name for name, count in zip(card["classes"], card["of_each_class"], strict=True) if not count]
    if missing:
        screen.say(f"note: no image of class {', '.join(missing)} was there to learn from.")
    speed = card["images_seen"] / max(card["seconds"], 0.1)
    screen.say(f"by {card['optimiser']}, views by {', '.join(card['augment']) or 'nothing'}{_repeated(card)}")
    screen.say(f"{card['steps']:,} steps in {card['seconds']:.0f} s, {speed:,.0f} images/s")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train PRIVATE --epsilon EPSILON --model {model} "
        f"--pretrained {weights}`"
    )
