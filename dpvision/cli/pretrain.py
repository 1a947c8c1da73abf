"""pretrain: learn to see from images that no camera took."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import app


@app.command
def pretrain(
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="folder of the prior; one that was begun goes on")],
    process: Annotated[
        str | None, Parameter(help="see `dpvision images`: stylegan-oriented; for patches dead-leaves-mixed")
    ] = None,
    model: Annotated[str, Parameter(help="the network whose trunk learns, such as wrn-16-4")] = "wrn-16-4",
    size: Annotated[int, Parameter(help="pixels a side")] = 32,
    finer: Annotated[int, Parameter(help="images are drawn so many times larger before a part is taken")] = 2,
    count: Annotated[int, Parameter(help="how many different images")] = 105_000,
    batch: int = 256,
    steps: Annotated[int, Parameter(help="82,000 are 200 passes")] = 82_000,
    lr: Annotated[float, Parameter(help="at a batch of 256; in proportion otherwise")] = 0.12,
    hidden: Annotated[int, Parameter(help="width of the projection, which is thrown away afterwards")] = 4096,
    loss: Literal["align-uniform", "info-nce"] = "align-uniform",
    seed: int = 0,
    workers: Annotated[int, Parameter(help="processor cores that draw images")] = 1,
) -> None:
    """Learn to see from random images, with no label and no private image: weights for `train --pretrained`.

    It can be stopped with Ctrl-C and goes on by the same command. A model on patches is not trained: its dictionary is
    made in a minute at 64 pixels a side (longer for larger images), with --process, --size and --seed.

    Example: `dpvision pretrain --model wrn-10-1 --process dead-leaves-mixed --hidden 512 --steps 2000 --out prior`
    """
    if model.startswith("patches-"):
        _dictionary(model, out, process=process or "dead-leaves-mixed", size=size, seed=seed)
        return
    process = process or "stylegan-oriented"
    from dpvision.cli import screen
    from dpvision.public.contrastive import Settings, learned, recognised
    from dpvision.public.contrastive import pretrain as learn
    from dpvision.public.trainer import Progress

    settings = Settings(
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
    with screen.counting_bar("pretraining") as bar, screen.stoppable() as stop:

        def watch(at: Progress) -> None:
            bar(at.step, at.steps)

        done = learn(settings, out, workers=workers, watch=watch, stop=stop)
    if not done:
        screen.say(f"stopped; go on with the same command (its state is in {out})")
        sys.exit(130)
    trunks = (learned(settings), learned(settings, out))
    first, last = (recognised(trunk, process, side=size, first=count, seed=seed) for trunk in trunks)
    screen.say(f"of 200 new random images {last:.1%} are known again in another view, and {first:.1%} before learning")
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --model {model} --pretrained {weights} "
        "--probe-steps 96`"
    )


def _dictionary(model: str, out: Path, *, process: str, size: int, seed: int) -> None:
    from dpvision.cli import screen
    from dpvision.public.contrastive import Prior
    from dpvision.public.dictionary import Settings, save
    from dpvision.public.trainer import require_free

    require_free(out, Prior)
    with screen.counting_bar("dictionary") as progress:
        save(Settings(model, (3, size, size), process=process, seed=seed), out, progress)
    weights = out / "weights.safetensors"
    screen.say(
        f"wrote {weights}; use it with `dpvision train DATA --epsilon EPSILON --recipe patches --model {model} "
        f"--pretrained {weights}`"
    )
