"""A prior without training: whitening and patches of random images, in closed form, in a minute.

    C = sum over patches p of p p^T, less their means        what random images look like, to second order
    W = (E + floor * mean E)^(-1/2) V^T                      with C = V E V^T
    dictionary = some W p of more than median length, scaled to length 1

The result is a function of the settings (its last bits, of libraries and processor too). No private image is within
reach: this package cannot import what reads them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models import Featured, Shape, build
from dpvision.models.featured import apply_in_pieces
from dpvision.models.inputs import to_tensor
from dpvision.models.patches import CONSTANTS, WINDOWS, Bank, Patches, centre_rows
from dpvision.public.random import draw
from dpvision.public.trainer import write_weights
from dpvision.storage import safetensors

FORMAT = "dpvision-dictionary-4"  # to be raised with every change of what is drawn or computed
AT_A_TIME = 250
CENTRE = "rest.0.centre"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """Of one dictionary."""

    model: str
    shape: Shape  # channels, height, width of the images that it is for
    process: str = "dead-leaves-mixed"
    images: int = 4000  # for patches, and half as many others for the mean of the features
    patches: int = 40_000
    floor: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.images, self.patches) < 2 or not self.floor > 0 or not 0 <= self.seed < 1 << 63:
            raise ConfigError("a dictionary needs 2 images and 2 patches at least, a floor above 0, a seed below 2^63.")

    @property
    def name(self) -> str:
        """Of the file: other constants make another dictionary."""
        return hashlib.blake2b(self.text.encode(), digest_size=12).hexdigest()

    @property
    def text(self) -> str:
        return json.dumps([FORMAT, CONSTANTS, asdict(self)])


def learn(settings: Settings, progress: Progress = lambda *_: None) -> Featured:
    """The model with its dictionary, whitening and mean."""
    model = _blank(settings)
    patches, images = model.prefix, settings.images
    assert isinstance(patches, Patches)
    with torch.no_grad():
        every = (*patches.banks, patches.first, patches.second)
        filling = images * sum(isinstance(bank, Bank) for bank in every)
        total = filling + images // 2
        with _one_thread():
            _fill(patches, settings, lambda done: progress(done, total))
        seen = []
        for numbers, part in drawn(settings, range(images, images + images // 2)):
            size = model.piece or AT_A_TIME
            seen.append(apply_in_pieces(lambda x: torch.cat(patches.bank_features(x), 1), part, size=size))
            progress(filling + numbers.stop - images, total)
        with _one_thread():
            rows = torch.cat(seen)
            patches.mean.copy_(rows.mean(0))
            widths = [2 * WINDOWS**2 * len(bank.dictionary) for bank in _banks(patches)]
            parts = (rows - patches.mean).split(widths, dim=1)
            lengths = [part.norm(dim=1).mean().expand(part.shape[1]) for part in parts]
            patches.scale.copy_(torch.cat(lengths).reciprocal())
    return model


def _banks(patches: Patches) -> list[Bank]:
    """Those whose means are features."""
    return [bank for bank in (*patches.banks, patches.second) if isinstance(bank, Bank)]


def _fill(patches: Patches, settings: Settings, progress: Callable[[int], None]) -> None:
    """Every bank's whitening and dictionary; progress in images drawn."""
    done = 0

    def watch(drawn_of_this: int) -> None:
        progress(done + drawn_of_this)

    for bank in (*patches.banks, patches.first):
        if isinstance(bank, Bank):
            rng = torch.Generator().manual_seed(settings.seed)
            found = centre_rows(_some(bank, settings, rng, watch))
            done += settings.images
            whitening, dictionary = _white(found, bank, settings.floor, rng)
            bank.whitening.copy_(centre_rows(whitening))
            bank.dictionary.copy_(centre_rows(dictionary))
    if patches.first is not None and patches.second is not None:
        bank, rng = patches.second, torch.Generator().manual_seed(settings.seed)
        found = _some(bank, settings, rng, watch, patches.first.maps)
        bank.offset.copy_(found.mean(0))
        whitening, dictionary = _white(found - bank.offset, bank, settings.floor, rng)
        bank.whitening.copy_(whitening)
        bank.dictionary.copy_(dictionary)


def _white(found: Tensor, bank: Bank, floor: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """W, of as many directions as the bank has, and its patches d as d^T W."""
    variances, directions = torch.linalg.eigh(found.T @ found / len(found))
    whitening = (variances + floor * variances.mean()).rsqrt().unsqueeze(1) * directions.T
    whitening = whitening[-len(bank.whitening) :]
    white = found @ whitening.T
    length = white.norm(dim=1)
    white, count = F.normalize(white[length > length.median()], dim=1), len(bank.dictionary)
    if len(white) < count:
        raise ConfigError(f"{count} patches were asked for, and there are {len(white)}.")
    return whitening, white[torch.randperm(len(white), generator=rng)[:count]] @ whitening


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of sums, so the last bits, depend on the number of threads."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


def save(settings: Settings, folder: Path, progress: Progress = lambda *_: None) -> None:
    """weights.safetensors, for `dpvision train --pretrained`, and card.json, which says where they come from."""
    began = time.monotonic()
    weights = _released(learn(settings, progress))
    header = {"format": FORMAT, "settings": settings.text, "process": settings.process, "seed": str(settings.seed)}
    seen = settings.images + settings.images // 2
    card = {**asdict(settings), "images_seen": seen, "seconds": round(time.monotonic() - began, 1)}
    write_weights(folder, weights, header, card)


def kept(settings: Settings, folder: Path, progress: Progress = lambda *_: None) -> Path:
    """The weights' file in `folder`, made there the first time; one that is there must be whole, and say that
    it is what it is named for."""
    path = folder / settings.name / "weights.safetensors"
    like = _released(_blank(settings))
    files.make_folder(folder)
    with files.locked(folder / f"{settings.name}.lock"):
        if not path.exists():
            save(settings, path.parent, progress)
    try:
        tensors, header = safetensors.load(path, like)
    except DataError as exc:
        raise DataError(f"{exc} Fix: remove the file: it is of random images, and is made again.") from exc
    if header.get("settings") != settings.text or bool(tensors[CENTRE].any()):
        raise DataError(f"{path}: is not the dictionary of random images that it is named for. Fix: remove the file.")
    return path


def _blank(settings: Settings) -> Featured:
    model = build(settings.model, settings.shape, classes=2, seed=settings.seed)
    if not isinstance(model, Featured) or not isinstance(model.prefix, Patches):
        raise ConfigError(f"{settings.model}: only a model on patches has a dictionary. Fix: patches-1024.")
    return model


def _released(model: Featured) -> dict[str, Tensor]:
    """All but the head."""
    return {n: t for n, t in model.state_dict().items() if not n.startswith("rest.1.")}


def drawn(settings: Settings, indices: range) -> Iterator[tuple[range, Tensor]]:
    """Random images as a network sees them, of the shape that is wanted, some at a time with their numbers."""
    channels, height, width = settings.shape
    side = max(height, width)
    for start in range(0, len(indices), AT_A_TIME):
        part = indices[start : start + AT_A_TIME]
        pixels = draw(settings.process, part, side=side, seed=settings.seed)[:, :height, :width]
        images = to_tensor(pixels)
        yield part, images if channels == 3 else images.mean(1, keepdim=True).expand(-1, channels, -1, -1)


def _some(
    bank: Bank,
    settings: Settings,
    rng: torch.Generator,
    watch: Callable[[int], None],
    maps_of: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """(settings.patches, C patch^2) from places drawn at random."""
    high = (settings.images, *bank.positions)
    which, down, right = (torch.randint(h, (settings.patches,), generator=rng) for h in high)
    found = torch.empty(settings.patches, len(bank.offset))
    for part, images in drawn(settings, range(settings.images)):
        maps, size = maps_of(images), bank.patch
        for number in ((which >= part.start) & (which < part.stop)).nonzero().flatten().tolist():
            i, a, b = int(which[number]) - part.start, int(down[number]), int(right[number])
            found[number] = maps[i, :, a : a + size, b : b + size].flatten()
        watch(part.stop)
    return found
