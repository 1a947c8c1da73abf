"""Draws a data set from a fitted diffusion model: it can be killed at any moment and goes on where it was.

Batch number b is a function of (model, seed, b) alone. Each is kept in FILE.npz.parts until all are there; then one
.npz is written, with train_images and train_labels as `dpvision train --synthetic` reads them; beside it FILE.png
shows some of each class, and FILE.json says from which model they are and how they were drawn.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from dpvision import __version__
from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models.device import keep_freed_memory
from dpvision.public import provenance
from dpvision.public.diffusion.model import METHODS, Kind, load, sheet, to_bytes
from dpvision.public.diffusion.sampler import SAMPLERS, Guide
from dpvision.public.diffusion.unet import UNet
from dpvision.public.trainer import mixed
from dpvision.storage import safetensors

SHEET_COLUMNS, SHEET_ROWS = 10, 20
MOST = 10_000_000


@dataclass(frozen=True)
class Draw:
    """What is drawn. The default of sampler and steps is the method's: heun with 18, or ancestral with 1000."""

    count: int = 50_000
    sampler: str | None = None
    steps: int | None = None
    batch: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST or self.batch < 1:
            raise ConfigError(f"{self.count:,} images in batches of {self.batch:,} cannot be drawn: 1 to {MOST:,} can.")
        if self.sampler is not None and self.sampler not in SAMPLERS:
            raise ConfigError(f"there is no sampler {self.sampler!r}. There are: {', '.join(SAMPLERS)}.")
        if not 0 <= self.seed < 1 << 62:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^62.")

    @property
    def batches(self) -> int:
        return -(-self.count // self.batch)

    def labels(self, number: int, classes: int) -> torch.Tensor:
        """Class after class, so that the counts of two classes differ by one at most."""
        return torch.arange(number * self.batch, min((number + 1) * self.batch, self.count)) % classes


def sample(
    folder: Path,
    draw: Draw,
    out: Path,
    *,
    guide: Guide | None = None,
    guided_by: str = "",
    guide_learned_from: str = "",
    device: str | torch.device = "cpu",
    watch: Callable[[int, int], None] = lambda _done, _of: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Write `out`, or go on with it; False if stopped before. `guided_by` names the guide and its weight,
    `guide_learned_from` the images that it learned from (provenance.py)."""
    if out.suffix != ".npz":
        raise ConfigError(f"{out}: samples are written as an .npz file. Fix: --out {out}.npz")
    parts = out.with_name(out.name + ".parts")
    beside = [out.with_suffix(".json"), out.with_suffix(".png")]
    for path in [out] if parts.exists() else [out, *beside]:  # with parts there, those beside are of this drawing
        if path.exists():
            raise ConfigError(f"{path}: is there. Fix: another --out.")
    kind, network, digest = load(folder, device=device)
    keep_freed_memory()
    header = {"draw": json.dumps({**asdict(draw), "model": digest, "guided_by": guided_by})}
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with files.locked(parts / "lock", wait=False):
            for number in range(draw.batches):
                if stop():
                    return False
                part = parts / f"{number:06d}.safetensors"
                if not part.exists():
                    pixels = drawn(kind, network, draw, number, guide=guide, device=device)
                    files.write(part, safetensors.dump({"images": torch.from_numpy(pixels)}, header), mode=0o644)
                watch(min((number + 1) * draw.batch, draw.count), draw.count)
            learned_from = provenance.joined(
                (provenance.of_weights(folder / "weights.safetensors"), guide_learned_from)
            )
            _join(kind, draw, parts, header, out, learned_from=learned_from)
            shutil.rmtree(parts)
    except BlockingIOError as exc:
        raise ConfigError(f"{out}: another process draws it now. Fix: wait, or another --out.") from exc
    return True


@torch.no_grad()
def drawn(
    kind: Kind,
    network: UNet,
    draw: Draw,
    number: int,
    *,
    guide: Guide | None = None,
    device: str | torch.device = "cpu",
) -> np.ndarray:
    """Batch `number` as (B, H, W, C) uint8."""
    method = METHODS[kind.method]
    labels = draw.labels(number, len(kind.classes)).to(device)
    rng = torch.Generator(device).manual_seed(mixed("sample", draw.seed, number))
    noise = torch.randn(len(labels), *kind.shape, dtype=torch.float64, device=device, generator=rng)
    sampler = SAMPLERS[draw.sampler] if draw.sampler else method.sampler
    sigmas = method.sigmas(draw.steps or method.steps)
    return to_bytes(sampler(kind.denoiser(network), noise, labels, sigmas=sigmas, guide=guide, rng=rng))


def _join(kind: Kind, draw: Draw, parts: Path, header: dict[str, str], out: Path, *, learned_from: str) -> None:
    """All parts as one file, written whole or not at all."""
    channels, height, width = kind.shape
    images = np.empty((draw.count, height, width, channels), dtype=np.uint8)
    for number in range(draw.batches):
        path = parts / f"{number:06d}.safetensors"
        rows = images[number * draw.batch : (number + 1) * draw.batch]
        tensors, found = safetensors.load(path, {"images": torch.empty(rows.shape, dtype=torch.uint8, device="meta")})
        if found.get("draw") != header["draw"]:
            raise DataError(f"{path}: was drawn with other settings. Fix: remove {parts}, or another --out.")
        rows[:] = tensors["images"].numpy()
    labels = (np.arange(draw.count) % len(kind.classes)).astype(np.int64)
    file = io.BytesIO()
    np.savez_compressed(file, train_images=images, train_labels=labels)
    rows_of_sheet = min(len(kind.classes), SHEET_ROWS)
    shown = [images[labels == c][:SHEET_COLUMNS] for c in range(rows_of_sheet)]
    if all(len(each) == SHEET_COLUMNS for each in shown):
        files.write(out.with_suffix(".png"), sheet(np.concatenate(shown), columns=SHEET_COLUMNS), mode=0o644)
    card = {"dpvision": __version__, **json.loads(kind.header()["model"]), **json.loads(header["draw"])}
    card["learned_from"] = learned_from
    files.write(out.with_suffix(".json"), json.dumps(card, indent=1) + "\n", mode=0o644)
    files.write(out, file.getvalue(), mode=0o644)
