"""Images from words: a public text-to-image model draws each class from a prompt. No private image is used.

The result is an ordinary image folder for `dpvision train --synthetic FOLDER`: train/CLASS/000001.png and so on, and
about.json with the settings. The model's weights are public, but the web images that it was trained on may include
images of the private data, which no account can rule out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from dpvision.core import files
from dpvision.errors import ConfigError
from dpvision.public.sheets import encode_png

Progress = Callable[[int, int], None]
AT_A_TIME = 8


def sample(
    model: str,
    out: Path,
    *,
    classes: Sequence[str],
    prompt: str = "a photo of a {class}",
    count: int,
    size: int,
    steps: int = 25,
    guidance: float = 7.5,
    seed: int = 0,
    progress: Progress = lambda *_: None,
) -> None:
    """Write `count` images of each class by the pipeline `model`: a folder, or a name on the hub.

    Images that are already there are kept, so a stopped run can be continued; every image has its own seed.
    """
    if "{class}" not in prompt:
        raise ConfigError(f"the prompt {prompt!r} has no place for the class. Fix: write {{class}} in it.")
    if count < 1 or size < 1 or not classes:
        raise ConfigError("synth needs at least one class, one image and one pixel.")
    for name in classes:
        if not re.fullmatch(r"[\w][\w .()+,-]{0,99}", name):
            raise ConfigError(f"the class {name!r} cannot be the name of a folder. Fix: letters, digits and spaces.")
    about = {"model": model, "prompt": prompt, "steps": steps, "guidance": guidance, "seed": seed, "size": size}
    _require_same(out / "about.json", about)
    pipe = load_pipeline(model)
    if not (out / "about.json").exists():
        out.mkdir(parents=True, exist_ok=True)
        files.write(out / "about.json", json.dumps(about, indent=1) + "\n", mode=0o644)
    total = count * len(classes)
    for number, name in enumerate(classes):
        folder = out / "train" / name
        folder.mkdir(parents=True, exist_ok=True)
        missing = [i for i in range(count) if not (folder / f"{i:06d}.png").exists()]
        progress(number * count + count - len(missing), total)
        for start in range(0, len(missing), AT_A_TIME):
            part = missing[start : start + AT_A_TIME]
            rng = [torch.Generator().manual_seed((seed * 1_000_003 + number) * 10_000_019 + i) for i in part]
            words = [prompt.replace("{class}", name)] * len(part)
            images = pipe(words, generator=rng, num_inference_steps=steps, guidance_scale=guidance).images
            for i, image in zip(part, images, strict=True):
                small = image.convert("RGB").resize((size, size), Image.Resampling.LANCZOS)
                files.write(folder / f"{i:06d}.png", encode_png(np.asarray(small)), mode=0o644)
            progress(number * count + count - len(missing) + start + len(part), total)


def load_pipeline(model: str) -> Any:
    """Load a text-to-image pipeline, from safetensors files only."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import diffusers
        import transformers
    except ImportError as exc:
        raise ConfigError(
            f"images from words need the packages diffusers and transformers ({exc}). Fix: pip install "
            "'dpvision[synth]', or use other images: `train --synthetic` takes any public folder or .npz."
        ) from exc
    local = Path(model).is_dir()
    if not local and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", model):
        raise ConfigError(f"{model}: there is no such folder. Fix: the folder of a downloaded pipeline.")
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    if local:
        _require_no_code(Path(model))
    try:
        pipe = diffusers.DiffusionPipeline.from_pretrained(
            model, local_files_only=local, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, AttributeError, TypeError) as exc:
        where = "in this folder" if local else "in the local cache or on the hub"
        raise ConfigError(
            f"{model}: there is no text-to-image pipeline in safetensors form {where}. "
            "Fix: the path of a downloaded pipeline, or a machine with access to the hub."
        ) from exc
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _require_no_code(folder: Path) -> None:
    """Refuse a folder with code: a pipeline consists of weights and settings for two known libraries."""
    code = next(folder.rglob("*.py"), None)
    if code is not None:
        raise ConfigError(f"{code}: code in the folder of a pipeline is never run. Fix: a pipeline without code.")
    index = folder / "model_index.json"
    parts = _read_object(index)
    if parts is None:
        raise ConfigError(f"{index}: cannot be read. Fix: the folder of a whole pipeline.")
    libraries = [part[0] for part in parts.values() if isinstance(part, list) and part]
    strange = [str(name) for name in libraries if name not in ("diffusers", "transformers", None)]
    if strange:
        raise ConfigError(
            f"{index}: needs code of {strange[0]!r}. Fix: a pipeline of diffusers and transformers alone."
        )


def _read_object(path: Path) -> dict[str, Any] | None:
    """The object in a small JSON file; None if it is anything else."""
    try:
        value = json.loads(files.read(path, most=1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _require_same(path: Path, about: dict[str, Any]) -> None:
    """Require a new folder, or one whose images were made with the same settings."""
    if path.exists():
        if _read_object(path) != about:
            raise ConfigError(f"{path.parent}: has images of other settings ({path}). Fix: another --out.")
        return
    if path.parent.exists() and any(path.parent.iterdir()):
        raise ConfigError(f"{path.parent}: is not empty. Fix: another --out.")
