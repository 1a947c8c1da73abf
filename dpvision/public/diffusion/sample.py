"""Sample a data set from a fitted diffusion model. Sampling can be killed at any time and resumed.

Batch number b depends only on (model, seed, b), up to the rounding of the device. Batches are stored in FILE.npz.parts
until all are drawn. Then they are joined into one .npz with train_images and train_labels, which `dpvision train
--synthetic` reads. FILE.png shows some images of each class, and FILE.json records the model and the settings.
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
from dpvision.models.device import find_device, fix_arithmetic, keep_freed_memory
from dpvision.public.diffusion.methods import METHODS, SAMPLERS, Guide
from dpvision.public.diffusion.model import ModelSpec, draw_sheet, load_diffusion, to_bytes
from dpvision.public.diffusion.unet import UNet
from dpvision.public.provenance import ENTRY, merge_provenance, read_provenance
from dpvision.public.trainer import mix_seed
from dpvision.storage import safetensors

SHEET_COLUMNS, SHEET_ROWS = 10, 20
MAX_COUNT = 10_000_000


@dataclass(frozen=True)
class SampleSettings:
    """Settings of sampling. The default sampler and steps depend on the method: heun 18, or ancestral 1000."""

    count: int = 50_000
    sampler: str | None = None
    steps: int | None = None
    batch: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT or self.batch < 1:
            raise ConfigError(
                f"cannot draw {self.count:,} images in batches of {self.batch:,}. Fix: use 1 to {MAX_COUNT:,} images."
            )
        if self.sampler is not None and self.sampler not in SAMPLERS:
            raise ConfigError(f"there is no sampler named {self.sampler!r}. There are: {', '.join(SAMPLERS)}.")
        if not 0 <= self.seed < 1 << 62:
            raise ConfigError(f"seed is {self.seed}: it must be at least 0 and below 2^62.")

    @property
    def batches(self) -> int:
        return -(-self.count // self.batch)

    def labels(self, number: int, classes: int) -> torch.Tensor:
        """Return the labels of a batch. Classes take turns, so that their counts differ by at most one."""
        return torch.arange(number * self.batch, min((number + 1) * self.batch, self.count)) % classes


def sample(
    folder: Path,
    settings: SampleSettings,
    out: Path,
    *,
    guide: Guide | None = None,
    guided_by: str = "",
    guide_provenance: str = "",
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Draw the samples and write `out`, or resume; return False if stopped earlier.

    `guided_by` names the guide and its weight; `guide_provenance` is the record of the images it was trained on.
    """
    if out.suffix != ".npz":
        raise ConfigError(f"{out}: samples are written as an .npz file. Fix: use --out {out}.npz")
    parts = out.with_name(out.name + ".parts")
    companions = [out.with_suffix(".json"), out.with_suffix(".png")]
    for path in [out] if parts.exists() else [out, *companions]:  # if parts exist, the companions belong to them
        if path.exists():
            raise ConfigError(f"{path}: already exists. Fix: use another --out.")
    device = find_device(str(device))
    keep_freed_memory()
    fix_arithmetic(device)
    spec, network, digest = load_diffusion(folder, device=device)
    header = {"draw": json.dumps({**asdict(settings), "model": digest, "guided_by": guided_by})}
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with files.locked(parts / "lock", wait=False):
            for number in range(settings.batches):
                if stop():
                    return False
                part = parts / f"{number:06d}.safetensors"
                if not part.exists():
                    pixels = draw_batch(spec, network, settings, number, guide=guide, device=device)
                    files.write(part, safetensors.dump({"images": torch.from_numpy(pixels)}, header), mode=0o644)
                progress(min((number + 1) * settings.batch, settings.count), settings.count)
            provenance = merge_provenance((read_provenance(folder / "weights.safetensors"), guide_provenance))
            _join_parts(spec, settings, parts, header, out, provenance=provenance)
            shutil.rmtree(parts)
    except BlockingIOError as exc:
        raise ConfigError(f"{out}: another process is drawing it. Fix: wait, or another --out.") from exc
    return True


@torch.no_grad()
def draw_batch(
    spec: ModelSpec,
    network: UNet,
    settings: SampleSettings,
    number: int,
    *,
    guide: Guide | None = None,
    device: str | torch.device = "cpu",
) -> np.ndarray:
    """Draw batch `number` as (B, H, W, C) uint8."""
    method = METHODS[spec.method]
    labels = settings.labels(number, len(spec.classes)).to(device)
    rng = torch.Generator().manual_seed(mix_seed("sample", settings.seed, number))  # on the CPU, whatever the device
    noise = torch.randn(len(labels), *spec.shape, dtype=torch.float64, generator=rng).to(device)
    sampler = SAMPLERS[settings.sampler] if settings.sampler else method.sampler
    sigmas = method.sigmas(settings.steps or method.steps)
    return to_bytes(sampler(spec.denoiser(network), noise, labels, sigmas=sigmas, guide=guide, rng=rng))


def _join_parts(
    spec: ModelSpec, settings: SampleSettings, parts: Path, header: dict[str, str], out: Path, *, provenance: str
) -> None:
    """Join all parts into one file, written atomically, with a sheet and a card."""
    channels, height, width = spec.shape
    images = np.empty((settings.count, height, width, channels), dtype=np.uint8)
    for number in range(settings.batches):
        path = parts / f"{number:06d}.safetensors"
        rows = images[number * settings.batch : (number + 1) * settings.batch]
        like = {"images": torch.empty(rows.shape, dtype=torch.uint8, device="meta")}
        tensors, part_header = safetensors.load(path, like)
        if part_header.get("draw") != header["draw"]:
            raise DataError(f"{path}: was drawn with other settings. Fix: remove {parts}, or another --out.")
        rows[:] = tensors["images"].numpy()
    labels = (np.arange(settings.count) % len(spec.classes)).astype(np.int64)
    file = io.BytesIO()
    np.savez_compressed(file, train_images=images, train_labels=labels)
    sheet = [images[labels == c][:SHEET_COLUMNS] for c in range(min(len(spec.classes), SHEET_ROWS))]
    if all(len(row) == SHEET_COLUMNS for row in sheet):
        files.write(out.with_suffix(".png"), draw_sheet(np.concatenate(sheet), columns=SHEET_COLUMNS), mode=0o644)
    card = {"dpvision": __version__, **json.loads(spec.header()["model"]), **json.loads(header["draw"])}
    card[ENTRY] = provenance
    files.write(out.with_suffix(".json"), json.dumps(card, indent=1) + "\n", mode=0o644)
    files.write(out, file.getvalue(), mode=0o644)
