"""Images from words: a text-to-image model is asked for each class by name, and nothing private is looked at.

The result is an ordinary image folder, train/CLASS/000001.png, with an about.json that says how it was made: for
`dpvision train --synthetic FOLDER`. The model's weights are public; the web images it learned from may show anything,
also images of the private data, which no account can rule out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dpvision.core import files
from dpvision.errors import ConfigError

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
    """`count` images of each class, `size` pixels a side, by the pipeline in folder `model` (or its name on the hub).

    Whatever is there already is kept, so that a run that was stopped can go on; every image has a seed of its own.
    """
    if "{class}" not in prompt:
        raise ConfigError(f"the prompt {prompt!r} does not say where the class goes. Fix: write {{class}} in it.")
    if count < 1 or size < 1 or not classes:
        raise ConfigError("synth needs at least one class, one image and one pixel.")
    for name in classes:
        if not re.fullmatch(r"[\w][\w .()+,-]{0,99}", name):
            raise ConfigError(f"the class {name!r} cannot be the name of a folder. Fix: letters, digits and spaces.")
    about = {"model": model, "prompt": prompt, "steps": steps, "guidance": guidance, "seed": seed, "size": size}
    _require_same(out / "about.json", about)
    pipe = pipeline(model)
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
            _make(pipe, prompt.replace("{class}", name), folder, part, (seed, number), size, steps, guidance)
            progress(number * count + count - len(missing) + start + len(part), total)


def pipeline(model: str) -> Any:
    """The text-to-image pipeline, from safetensors only."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import diffusers
        import transformers
    except ImportError as exc:
        raise ConfigError(
            f"images from words need the packages diffusers and transformers ({exc}). Fix: pip install "
            "'dpvision[synth]', or give images of your own: any public folder or .npz works with `train --synthetic`."
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
    """A pipeline is weights and settings of two known libraries; a folder that brings code of its own is refused."""
    code = next(folder.rglob("*.py"), None)
    if code is not None:
        raise ConfigError(f"{code}: code in the folder of a pipeline is never run. Fix: a pipeline without code.")
    index = folder / "model_index.json"
    parts = _table(index)
    if parts is None:
        raise ConfigError(f"{index}: cannot be read. Fix: the folder of a whole pipeline.")
    libraries = [part[0] for part in parts.values() if isinstance(part, list) and part]
    strange = [str(name) for name in libraries if name not in ("diffusers", "transformers", None)]
    if strange:
        raise ConfigError(f"{index}: asks for code of {strange[0]!r}. Fix: parts of diffusers and transformers only.")


def _make(
    pipe: Any,
    prompt: str,
    folder: Path,
    numbers: list[int],
    seed: tuple[int, int],
    size: int,
    steps: int,
    guidance: float,
) -> None:
    import io

    import torch
    from PIL import Image

    rng = [torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) * 10_000_019 + i) for i in numbers]
    made = pipe([prompt] * len(numbers), generator=rng, num_inference_steps=steps, guidance_scale=guidance).images
    for i, image in zip(numbers, made, strict=True):
        buffer = io.BytesIO()
        image.convert("RGB").resize((size, size), Image.Resampling.LANCZOS).save(buffer, format="PNG")
        files.write(folder / f"{i:06d}.png", buffer.getvalue(), mode=0o644)


def _table(path: Path) -> dict[str, Any] | None:
    """A small JSON file that holds a table; None, if it is anything else."""
    try:
        found = json.loads(files.read(path, most=1 << 20))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _require_same(path: Path, about: dict[str, Any]) -> None:
    """A folder holds images made in one way."""
    if path.exists():
        if _table(path) != about:
            raise ConfigError(f"{path.parent}: holds images that were made otherwise ({path}). Fix: another --out.")
        return
    if path.parent.exists() and any(path.parent.iterdir()):
        raise ConfigError(f"{path.parent}: is not empty. Fix: another --out.")
