"""Images from words by a real but tiny pipeline with random weights, which the test writes and loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dpvision.data import load
from dpvision.errors import ConfigError
from dpvision.public.prompts import load_pipeline, sample
from tests.system.docs.examples import call, examples, words_of

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
EXAMPLES = examples()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text-to-image pipeline of the usual five parts: tokenizer, text encoder, network, decoder, scheduler."""
    place = tmp_path_factory.mktemp("pipeline")
    torch.manual_seed(0)
    channels: dict[str, Any] = {"block_out_channels": (8, 8), "norm_num_groups": 2}
    pipe = diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, **channels
        ),
        text_encoder=transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=60,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=77,
                bos_token_id=0,
                eos_token_id=1,
                pad_token_id=1,
            )
        ),
        tokenizer=_tokenizer(place),
        unet=diffusers.UNet2DConditionModel(
            sample_size=8,
            layers_per_block=1,
            in_channels=4,
            out_channels=4,
            cross_attention_dim=16,
            attention_head_dim=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            **channels,
        ),
        scheduler=diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.save_pretrained(place / "tiny", safe_serialization=True)
    return place / "tiny"


def _tokenizer(place: Path) -> Any:
    """Letters, in the middle and at the end of a word."""
    letters = [*"abcdefghijklmnopqrstuvwxyz{}"]
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{x}</w>" for x in letters)]
    (place / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer.from_pretrained(place, model_max_length=77)


def _pixels(path: Path) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(path))


def test_a_folder_of_classes_that_train_can_use(folder: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "made"
    sample(str(folder), out, classes=["cat", "dog"], count=3, size=16, steps=2, progress=lambda *p: seen.append(p))
    assert seen[-1] == (6, 6)
    loaded = load(str(out), classes=["cat", "dog"]).train
    assert loaded.images.shape == (6, 16, 16, 3) and loaded.labels.tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ConfigError, match="other settings"):
        sample(str(folder), out, classes=["cat", "dog"], count=3, size=16, steps=2, seed=1)
    first = {p: _pixels(p) for p in sorted(out.rglob("*.png"))}
    assert len({x.tobytes() for x in first.values()}) == 6  # every image has its own seed


def test_a_stopped_run_resumes_with_the_same_images(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"classes": ["cat"], "count": 3, "size": 16, "steps": 2}
    sample(str(folder), tmp_path / "whole", **options)
    sample(str(folder), tmp_path / "stopped", **options)
    lost = tmp_path / "stopped" / "train" / "cat" / "000001.png"
    lost.unlink()
    sample(str(folder), tmp_path / "stopped", **options)
    same = _pixels(tmp_path / "whole" / "train" / "cat" / "000001.png")
    assert np.abs(_pixels(lost).astype(int) - same.astype(int)).max() <= 1  # rounding depends on the batch size


def test_the_prompt_and_the_seed_matter(folder: Path, tmp_path: Path) -> None:
    made = []
    for number, (prompt, seed) in enumerate([("a {class}", 0), ("the {class}", 0), ("a {class}", 1)]):
        out = tmp_path / str(number)
        sample(str(folder), out, classes=["cat"], prompt=prompt, count=1, size=16, steps=2, seed=seed)
        made.append(_pixels(out / "train" / "cat" / "000000.png").tobytes())
    assert len(set(made)) == 3


def test_only_safetensors_weights_are_accepted(folder: Path) -> None:
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    moved = weights.rename(weights.with_suffix(".bin"))
    try:
        with pytest.raises(ConfigError, match="safetensors"):
            load_pipeline(str(folder))
    finally:
        moved.rename(weights)


def test_the_example_in_its_help(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sd-turbo").symlink_to(folder)
    for example in EXAMPLES["synth words"]:
        assert call(words_of(example, {"--count": "1", "--size": "8", "--steps": "1"}), monkeypatch) == 0
    assert load(str(tmp_path / "synthetic")).classes == ("cat", "dog")
