"""synth quality: how good synthetic images are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dpvision.cli.app import Json, Size
from dpvision.cli.synth import synth


@synth.command
def quality(
    synthetic: Annotated[str, Parameter(help="synthetic images: an .npz, or a folder train/CLASS/x.png")],
    real: Annotated[str, Parameter(help="real images to measure against; public ones, or for your eyes only")],
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="file of the figures, new; a picture goes beside it")],
    network: Annotated[
        Literal["inception", "dinov2", "scattering", "classifier"], Parameter(help="what images are seen through")
    ] = "scattering",
    weights: Annotated[Path | None, Parameter(help="of inception or dinov2, as safetensors")] = None,
    split: Annotated[Literal["train", "val", "test"], Parameter(help="of the real images")] = "train",
    most: Annotated[int | None, Parameter(help="at most so many images of each kind, at random")] = None,
    neighbours: Annotated[int, Parameter(help="of precision and recall")] = 3,
    cas: Annotated[bool, Parameter(help="train a classifier on the synthetic images, test it on real ones")] = True,
    model: Annotated[
        str | None, Parameter(help="the classifier's network: resnet-9-small; below 16 pixels small-cnn")
    ] = None,
    steps: Annotated[int, Parameter(help="of the classifier's training, however many images there are")] = 400,
    size: Size = None,
    seed: int = 0,
    device: Annotated[str, Parameter(help="cpu, or an accelerator such as cuda")] = "cpu",
    json: Json = False,
) -> None:
    """How good synthetic images are: FID, precision, recall, Inception score, CAS, and whether they are copies.

    No noise protects the figures: against private images they are for your eyes. A distance is called FID only if it
    was seen through the network that FID is defined with; make its weights by `python -m benchmarks.inception_weights`.

    Example: `dpvision synth quality synthetic.npz parts/public.npz --network scattering --out quality.json`
    """
    from json import dumps

    from dpvision.errors import ConfigError, DataError

    picture = out.with_suffix(".png")
    for path in (out, picture):
        if path.exists():
            raise ConfigError(f"{path}: is there already. Fix: another --out.")
    if picture == out:
        raise ConfigError(f"{out}: is the name of the picture; the figures are JSON. Fix: --out quality.json.")
    from dpvision.cli import screen
    from dpvision.core import files
    from dpvision.data import Split, load
    from dpvision.public.quality.classifier import Training
    from dpvision.public.quality.measuring import measure
    from dpvision.public.quality.pictures import Pictures

    data = load(real, size=size)
    parts: dict[str, Split | None] = {"train": data.train, "val": data.val, "test": data.test}
    reference = parts[split]
    if reference is None:
        raise DataError(f"{real}: has no {split} split. Fix: --split train.")
    drawn = load(synthetic, classes=list(data.classes), size=size).train

    model = model or ("resnet-9-small" if min(reference.images.shape[1:3]) >= 16 else "small-cnn")

    def pictures(name: str, of: Split) -> Pictures:
        return Pictures(name, of.images, of.labels)

    with screen.named_bars() as progress:
        found = measure(
            pictures(synthetic, drawn),
            pictures(f"{real} ({split})", reference),
            through=network,
            weights=weights,
            classes=data.classes,
            test=None if data.test is None else pictures(f"{real} (test)", data.test),
            cas=cas,
            training=Training(model=model, steps=steps, seed=seed),
            neighbours=neighbours,
            most=most,
            seed=seed,
            device=device,
            progress=progress,
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(picture, found.picture())
    files.write(out, dumps(found.json(), indent=1, allow_nan=False) + "\n")
    if json:
        screen.as_json(found.json())
        return
    screen.table({name: f"{value:.4g}" for name, value in found.figures.items()}, title=f"{synthetic} against {real}")
    for note in found.notes:
        screen.say(f"  note: {note}")
    screen.say(f"wrote {out}; {picture} shows synthetic images above their nearest real ones")
