"""A dictionary of patches: whitened patches of random images, computed in closed form in about a minute.

    C = sum over centred patches p of p p^T        second-order statistics of random images
    W = (E + floor * mean E)^(-1/2) V^T            with C = V E V^T
    dictionary = random W p with more than the median norm, scaled to norm 1

The result is a function of the settings; its last bits also depend on libraries and processor. This package cannot
import the code that reads private images.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.core import files
from dpvision.errors import ConfigError, DataError
from dpvision.models import Featured, Shape, build
from dpvision.models.device import find_device, fix_arithmetic
from dpvision.models.featured import apply_in_pieces
from dpvision.models.inputs import to_tensor
from dpvision.models.patches import CONSTANTS, WINDOWS, Bank, Patches, centre_rows
from dpvision.public.random import draw
from dpvision.public.random.feature_textures import one_thread
from dpvision.public.trainer import write_weights
from dpvision.storage import safetensors

FORMAT = "dpvision-dictionary-5"  # change it whenever the images or the computation change
BATCH = 250
CENTRE = "rest.0.centre"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DictionarySettings:
    """Settings of a dictionary."""

    model: str
    shape: Shape  # channels, height and width of the images it will be used on
    process: str = "dead-leaves-mixed"
    images: int = 4000  # for patches; half that number is added for the mean of the features
    patches: int = 40_000
    floor: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.images, self.patches) < 2 or not self.floor > 0 or not 0 <= self.seed < 1 << 63:
            raise ConfigError(
                "a dictionary needs at least 2 images and patches, a floor above 0 and a seed from 0 to 2^63 - 1."
            )

    @property
    def name(self) -> str:
        """The name of the cache folder: a hash of settings and constants."""
        return hashlib.blake2b(self.text.encode(), digest_size=12).hexdigest()

    @property
    def text(self) -> str:
        """The settings and constants as text: everything that determines the dictionary."""
        return json.dumps([FORMAT, CONSTANTS, asdict(self)])


def compute(
    settings: DictionarySettings, progress: Progress = lambda *_: None, *, device: torch.device | str = "cpu"
) -> Featured:
    """Compute the dictionaries, whitening and mean features of a model, which takes about a minute.

    The features for the mean take most of the time and are computed on `device`.
    """
    device = find_device(str(device))
    fix_arithmetic(device)
    model = _build(settings)
    patches, images = model.prefix, settings.images
    assert isinstance(patches, Patches)
    with torch.no_grad():
        banks = (*patches.banks, patches.first, patches.second)
        for_banks = images * sum(isinstance(bank, Bank) for bank in banks)
        total = for_banks + images // 2
        with one_thread():
            _fill_banks(patches, settings, lambda done: progress(done, total))
        features = []
        patches.to(device)
        for numbers, batch in draw_images(settings, range(images, images + images // 2)):
            size = model.piece or BATCH
            rows = apply_in_pieces(lambda x: torch.cat(patches.bank_features(x), 1), batch.to(device), size=size)
            features.append(rows.cpu())
            progress(for_banks + numbers.stop - images, total)
        patches.to("cpu")
        with one_thread():
            rows = torch.cat(features)
            patches.mean.copy_(rows.mean(0))
            widths = [2 * WINDOWS**2 * len(bank.dictionary) for bank in _feature_banks(patches)]
            parts = (rows - patches.mean).split(widths, dim=1)
            norms = [part.norm(dim=1).mean().expand(part.shape[1]) for part in parts]
            patches.scale.copy_(torch.cat(norms).reciprocal())
    return model


def _feature_banks(patches: Patches) -> list[Bank]:
    """Return the banks whose means are used as features."""
    return [bank for bank in (*patches.banks, patches.second) if isinstance(bank, Bank)]


def _fill_banks(patches: Patches, settings: DictionarySettings, progress: Callable[[int], None]) -> None:
    """Compute every bank's whitening and dictionary; progress is counted in images drawn."""
    done = 0

    def bank_progress(images: int) -> None:
        progress(done + images)

    for bank in (*patches.banks, patches.first):
        if isinstance(bank, Bank):
            rng = torch.Generator().manual_seed(settings.seed)
            sample = centre_rows(_draw_patches(bank, settings, rng, bank_progress))
            done += settings.images
            whitening, dictionary = _whiten(sample, bank, settings.floor, rng)
            bank.whitening.copy_(centre_rows(whitening))
            bank.dictionary.copy_(centre_rows(dictionary))
    if patches.first is not None and patches.second is not None:
        bank, rng = patches.second, torch.Generator().manual_seed(settings.seed)
        sample = _draw_patches(bank, settings, rng, bank_progress, patches.first.maps)
        bank.offset.copy_(sample.mean(0))
        whitening, dictionary = _whiten(sample - bank.offset, bank, settings.floor, rng)
        bank.whitening.copy_(whitening)
        bank.dictionary.copy_(dictionary)


def _whiten(patches: Tensor, bank: Bank, floor: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return W with the bank's number of directions, and the bank's whitened patches d as d^T W."""
    variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    whitening = (variances + floor * variances.mean()).rsqrt().unsqueeze(1) * directions.T
    whitening = whitening[-len(bank.whitening) :]
    white = patches @ whitening.T
    norms = white.norm(dim=1)
    white, count = F.normalize(white[norms > norms.median()], dim=1), len(bank.dictionary)
    if len(white) < count:
        raise ConfigError(f"a bank of {count} patches cannot be filled with {len(white)}. Fix: use more patches.")
    return whitening, white[torch.randperm(len(white), generator=rng)[:count]] @ whitening


def compute_and_write(
    settings: DictionarySettings,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    device: torch.device | str = "cpu",
) -> None:
    """Compute a dictionary and write weights.safetensors, for `dpvision train --pretrained`, and card.json."""
    began = time.monotonic()
    weights = _without_head(compute(settings, progress, device=device))
    header = {"format": FORMAT, "settings": settings.text, "process": settings.process, "seed": str(settings.seed)}
    seen = settings.images + settings.images // 2
    card = {**asdict(settings), "images_seen": seen, "seconds": round(time.monotonic() - began, 1)}
    write_weights(folder, weights, header, card)


def load_or_compute(
    settings: DictionarySettings,
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    device: torch.device | str = "cpu",
) -> Path:
    """Return the path of the weights in the cache `folder`; the first time, compute them on `device`.

    A cached file must be intact, and its header must have these settings.
    """
    path = folder / settings.name / "weights.safetensors"
    like = _without_head(_build(settings))
    files.make_folder(folder)
    with files.locked(folder / f"{settings.name}.lock"):
        if not path.exists():
            compute_and_write(settings, path.parent, progress, device=device)
    try:
        tensors, header = safetensors.load(path, like)
    except DataError as exc:
        raise DataError(f"{exc} Fix: remove the file; it will be recomputed from random images.") from exc
    if header.get("settings") != settings.text or bool(tensors[CENTRE].any()):
        raise DataError(f"{path}: its contents do not match its name. Fix: remove the file; it will be recomputed.")
    return path


def _build(settings: DictionarySettings) -> Featured:
    model = build(settings.model, settings.shape, classes=2, seed=settings.seed)
    if not isinstance(model, Featured) or not isinstance(model.prefix, Patches):
        raise ConfigError(f"{settings.model}: only patch models have a dictionary. Fix: use patches-1024.")
    return model


def _without_head(model: Featured) -> dict[str, Tensor]:
    """Return all tensors except those of the head."""
    return {n: t for n, t in model.state_dict().items() if not n.startswith("rest.1.")}


def draw_images(settings: DictionarySettings, indices: range) -> Iterator[tuple[range, Tensor]]:
    """Yield batches of random images in [-1, 1], of the shape in the settings, with their indices."""
    channels, height, width = settings.shape
    side = max(height, width)
    for start in range(0, len(indices), BATCH):
        batch = indices[start : start + BATCH]
        pixels = draw(settings.process, batch, side=side, seed=settings.seed)[:, :height, :width]
        images = to_tensor(pixels)
        yield batch, images if channels == 3 else images.mean(1, keepdim=True).expand(-1, channels, -1, -1)


def _draw_patches(
    bank: Bank,
    settings: DictionarySettings,
    rng: torch.Generator,
    progress: Callable[[int], None],
    to_maps: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """Draw patches (settings.patches, C patch^2) at random positions of random images or of their maps."""
    limits = (settings.images, *bank.positions)
    index, down, right = (torch.randint(limit, (settings.patches,), generator=rng) for limit in limits)
    patches = torch.empty(settings.patches, len(bank.offset))
    for batch, images in draw_images(settings, range(settings.images)):
        maps, size = bank.reduce(to_maps(images)), bank.patch
        for number in ((index >= batch.start) & (index < batch.stop)).nonzero().flatten().tolist():
            i, a, b = int(index[number]) - batch.start, *(bank.stride * int(at[number]) for at in (down, right))
            patches[number] = maps[i, :, a : a + size, b : b + size].flatten()
        progress(batch.stop)
    return patches
