"""CLIP, SigLIP and DINOv2 compute what transformers computes, from the tensors that it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dpvision.errors import DataError
from dpvision.models import build, load_public, published_names
from dpvision.models.clip import ClipTower
from dpvision.models.siglip import SiglipTower
from dpvision.models.vit import Vit
from tests.models.sizes import size_of
from tests.private.engine.oracle import each_loss, verify

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 12, "patch_size": 4}
GRID = 3


def _ours(kind: str) -> nn.Module:
    size = {"patch": 4, "width": 32, "depth": 2, "heads": 4}
    torch.manual_seed(1)
    if kind == "dinov2":
        return Vit(3, 5, grid=(GRID, GRID), **size).eval()
    return {"clip": ClipTower, "siglip": SiglipTower}[kind](5, grid=GRID, **size).eval()


def _theirs(kind: str, *, whole: bool = False) -> nn.Module:
    """The image tower with random weights, none of them 0 or 1 any more; `whole` has the text tower too."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "dinov2":
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES))
    else:
        name, vision = {"clip": "CLIP", "siglip": "Siglip"}[kind], {**SIZES, "intermediate_size": 128}
        if whole:
            text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
            text |= {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "projection_size": 32}
            config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision)
            model = getattr(transformers, f"{name}Model")(config)
        else:
            config = getattr(transformers, f"{name}VisionConfig")(**vision)
            model = getattr(transformers, f"{name}VisionModel")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    return model.eval()


def _save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder / "model.safetensors"


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_outputs_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs, ours = _theirs(kind), _ours(kind)
    load_public(ours, _save(theirs, tmp_path))
    images = torch.randn(3, 3, 12, 12)
    with torch.no_grad():
        expected = theirs(pixel_values=images).pooler_output
        got = ours.features(images)  # type: ignore[operator]
    assert expected.shape == (3, 32) and float(expected.abs().mean()) > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_whole_model_gives_its_image_tower(kind: str, tmp_path: Path) -> None:
    """As in the published files, which have the text tower too."""
    theirs, ours = _theirs(kind, whole=True), _ours(kind)
    load_public(ours, _save(theirs, tmp_path))
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        expected = theirs.vision_model(pixel_values=images).pooler_output  # type: ignore[union-attr, operator]
        torch.testing.assert_close(ours.features(images), expected, rtol=1e-5, atol=1e-5)  # type: ignore[operator]


def _as_open_clip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names of open_clip, as public code that converts such files has them, and a text tower next to them."""
    names = {
        "embeddings.class_embedding": "class_embedding",
        "embeddings.position_embedding.weight": "positional_embedding",
        "embeddings.patch_embedding.weight": "conv1.weight",
    }
    parts = {
        "layer_norm1": "ln_1",
        "layer_norm2": "ln_2",
        "self_attn.out_proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
    }
    for kind in ("weight", "bias"):
        names |= {f"pre_layrnorm.{kind}": f"ln_pre.{kind}", f"post_layernorm.{kind}": f"ln_post.{kind}"}
        for i in range(2):
            ours, theirs = f"encoder.layers.{i}", f"transformer.resblocks.{i}"
            names |= {f"{ours}.{a}.{kind}": f"{theirs}.{b}.{kind}" for a, b in parts.items()}
    out = {f"visual.{names[n]}": t for n, t in tensors.items() if n in names}
    for i in range(2):
        for kind in ("weight", "bias"):
            joint = torch.cat([tensors[f"encoder.layers.{i}.self_attn.{n}_proj.{kind}"] for n in "qkv"])
            out[f"visual.transformer.resblocks.{i}.attn.in_proj_{kind}"] = joint
    text = ("positional_embedding", "text_projection", "visual.proj", "token_embedding.weight", "ln_final.weight")
    return {
        **out,
        **{name: torch.zeros(4, 32) for name in (*text, "transformer.resblocks.0.attn.in_proj_weight")},
        "logit_scale": torch.tensor(1.0),
    }


def test_the_layout_of_open_clip_is_read(tmp_path: Path) -> None:
    theirs, ours = _theirs("clip"), _ours("clip")
    tensors = load_file(_save(theirs, tmp_path))
    save_file({n: t.contiguous() for n, t in _as_open_clip(tensors).items()}, tmp_path / "open_clip.safetensors")
    load_public(ours, tmp_path / "open_clip.safetensors")
    images = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        expected = theirs(pixel_values=images).pooler_output
        torch.testing.assert_close(ours.features(images), expected, rtol=1e-5, atol=1e-5)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_our_own_names_are_read_too(kind: str, tmp_path: Path) -> None:
    """As a trained model is written."""
    one, other = _ours(kind), _ours(kind)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter += torch.randn(parameter.shape)
    save_file(one.state_dict(), tmp_path / "own.safetensors")
    load_public(other, tmp_path / "own.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def _cut(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {n: t[:-1].clone() if n == name else t for n, t in tensors.items()}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("dinov2", lambda t: {n: v for n, v in t.items() if "1.attention.attention.key.bias" not in n}, "qkv.bias"),
        ("dinov2", lambda t: _cut(t, "encoder.layer.0.attention.attention.query.weight"), "qkv.weight"),
        (
            "dinov2",
            lambda t: {**t, "encoder.layer.2.norm1.weight": torch.ones(32)},
            "encoder.layer.2.*not in the model",
        ),
        ("clip", lambda t: {**t, "embeddings.another": torch.ones(32)}, "embeddings.another.*not in the model"),
        ("clip", lambda t: _cut(t, "embeddings.class_embedding"), "cls_token"),
        ("clip", lambda t: {**t, "embeddings.class_embedding": torch.tensor(0.5)}, "cls_token"),
        ("siglip", lambda t: _cut(t, "head.attention.in_proj_weight"), "in_proj_weight"),
        ("siglip", lambda t: {**t, "head.attention.in_proj_bias": torch.tensor(0.5)}, "in_proj_bias"),
        ("siglip", lambda t: {n: v for n, v in t.items() if n != "head.probe"}, "not in the model|missing"),
    ],
)
def test_other_tensors_are_refused_by_name(
    kind: str, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], reason: str, tmp_path: Path
) -> None:
    ours, path = _ours(kind), tmp_path / "changed.safetensors"
    before = {n: t.clone() for n, t in ours.state_dict().items()}
    save_file(change(load_file(_save(_theirs(kind), tmp_path))), path)
    with pytest.raises(DataError, match=reason):
        load_public(ours, path)
    assert all(torch.equal(t, before[n]) for n, t in ours.state_dict().items())


def test_a_prefix_never_hides_a_tensor() -> None:
    tensors = {"vision_model.a": torch.zeros(1), "a": torch.ones(1)}
    assert published_names._without("vision_model.", tensors) == tensors


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # As published for the image encoders: 86,580,480 of DINOv2 without its mask token; 87,849,216 and 86,192,640 of
        # CLIP with projections of 768 x 512; 92,884,224 of SigLIP.
        ("dinov2-vitb14", 86_580_480 - 768),
        ("clip-vit-b32", 87_849_216 - 768 * 512),
        ("clip-vit-b16", 86_192_640 - 768 * 512),
        ("siglip-b16", 92_884_224),
    ],
)
def test_numbers_of_weights_are_the_published_ones(name: str, weights: int) -> None:
    assert size_of(name, (3, 32, 32)) == weights + 769 * 10


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_are_treated_alone(kind: str) -> None:
    verify(_ours(kind).train(), each_loss, (3, 12, 12), 5)


@pytest.mark.parametrize(("name", "size"), [("clip-vit-b32", (224, 224)), ("siglip-b16", (224, 224))])
def test_images_of_any_shape_get_the_size_of_the_network(name: str, size: tuple[int, int]) -> None:
    for shape in ((1, 28, 28), (3, 20, 40), (3, 300, 224)):
        with torch.device("meta"):
            prepare = build(name, shape, classes=2, seed=0).prepare
        assert prepare.size == size and prepare.channels == shape[0]


def test_dinov2_keeps_the_aspect_ratio() -> None:
    with torch.device("meta"):
        assert build("dinov2-vitb14", (3, 20, 40), classes=2, seed=0).prepare.size == (224, 448)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_normalisation_is_that_of_the_published_processor(kind: str) -> None:
    transformers: Any = pytest.importorskip("transformers")
    from dpvision.models import clip, siglip

    ours = {"CLIP": (clip.MEAN, clip.STD), "Siglip": (siglip.MEAN, siglip.STD)}[kind]
    constants = transformers.image_utils
    theirs = {
        "CLIP": (constants.OPENAI_CLIP_MEAN, constants.OPENAI_CLIP_STD),
        "Siglip": (constants.IMAGENET_STANDARD_MEAN, constants.IMAGENET_STANDARD_STD),
    }[kind]
    assert tuple(map(tuple, theirs)) == ours
