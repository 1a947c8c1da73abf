"""Names of tensors in published files, and the names that the same tensors have in the networks of this package.

A layout is a table from our name to theirs. Several of theirs are joined along the first axis, because one linear layer
here computes queries, keys and values. A tensor that no table names keeps its name, so that `load_public` refuses it.
Text towers and other tensors that no image needs are left out, by the prefixes listed here.

    function    layouts, by the first tensor that only they have
    dinov2      the original (Meta, timm), which is also ours; transformers (facebook/dinov2-...)
    clip        open_clip (timm/vit_base_..._clip_224.openai); transformers (openai/clip-vit-base-...)
    siglip      transformers (google/siglip-base-...)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Layout = Mapping[str, tuple[str, ...]]
BOTH = ("weight", "bias")
# Tensors of a whole model that its image tower does not need, by the beginnings of their names.
TEXT_TRANSFORMERS: tuple[str, ...] = (
    *("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias"),
    "embeddings.position_ids",
)
TEXT_OPEN_CLIP: tuple[str, ...] = (
    *("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection", "logit_scale"),
    *("visual.proj", "attn_mask", "context_length", "vocab_size", "input_resolution"),
)


def dinov2(tensors: Tensors, *, depth: int) -> Tensors:
    """DINOv2's tensors, in the original layout or that of transformers."""
    if "embeddings.cls_token" not in tensors:
        return tensors
    layout = {
        "cls_token": ("embeddings.cls_token",),
        "pos_embed": ("embeddings.position_embeddings",),
        **_pairs({"patch_embed.proj": "embeddings.patch_embeddings.projection", "norm": "layernorm"}),
    }
    for i in range(depth):
        ours, theirs = f"blocks.{i}", f"encoder.layer.{i}"
        layout |= _pairs(
            {
                f"{ours}.norm1": f"{theirs}.norm1",
                f"{ours}.attn.proj": f"{theirs}.attention.output.dense",
                f"{ours}.norm2": f"{theirs}.norm2",
                f"{ours}.mlp.fc1": f"{theirs}.mlp.fc1",
                f"{ours}.mlp.fc2": f"{theirs}.mlp.fc2",
            }
        )
        layout |= _join(f"{ours}.attn.qkv", [f"{theirs}.attention.attention.{n}" for n in ("query", "key", "value")])
        layout |= {f"{ours}.ls{j}.gamma": (f"{theirs}.layer_scale{j}.lambda1",) for j in (1, 2)}
    return _rename(tensors, layout, drop=("embeddings.mask_token",))


def clip(tensors: Tensors, *, depth: int) -> Tensors:
    """The tensors of CLIP's image tower, in the layout of open_clip or of transformers."""
    layout, drop = _open_clip(depth), TEXT_OPEN_CLIP
    if "visual.class_embedding" not in tensors:
        tensors, layout = _without("vision_model.", tensors), _clip_of_transformers(depth)
        drop = TEXT_TRANSFORMERS
    if not any(name in tensors for names in layout.values() for name in names):
        return tensors
    named = _rename(tensors, layout, drop=drop)
    return {name: _add_leading_axes(name, tensor) for name, tensor in named.items()}


def siglip(tensors: Tensors, *, depth: int) -> Tensors:
    """The tensors of SigLIP's image tower, in the layout of transformers."""
    tensors = _without("vision_model.", tensors)
    if "head.probe" not in tensors:
        return tensors
    layout = {
        "pos_embed": ("embeddings.position_embedding.weight",),
        "pool.query": ("head.probe",),
        **_pairs(
            {
                "patch_embed.proj": "embeddings.patch_embedding",
                "norm": "post_layernorm",
                "pool.proj": "head.attention.out_proj",
                "pool.norm": "head.layernorm",
                "pool.mlp.fc1": "head.mlp.fc1",
                "pool.mlp.fc2": "head.mlp.fc2",
            }
        ),
        **_layers_of_transformers(depth),
    }
    tensors = _split_attention(tensors, "head.attention.in_proj_", "pool.")
    named = _rename(tensors, layout, drop=TEXT_TRANSFORMERS)
    return {name: _add_leading_axes(name, tensor) for name, tensor in named.items()}


def _open_clip(depth: int) -> Layout:
    layout = {
        "cls_token": ("visual.class_embedding",),
        "pos_embed": ("visual.positional_embedding",),
        "patch_embed.weight": ("visual.conv1.weight",),
        **_pairs({"norm_pre": "visual.ln_pre", "norm": "visual.ln_post"}),
    }
    for i in range(depth):
        ours, theirs = f"blocks.{i}", f"visual.transformer.resblocks.{i}"
        layout |= {f"{ours}.attn.qkv.{kind}": (f"{theirs}.attn.in_proj_{kind}",) for kind in BOTH}
        layout |= _pairs(
            {
                f"{ours}.norm1": f"{theirs}.ln_1",
                f"{ours}.attn.proj": f"{theirs}.attn.out_proj",
                f"{ours}.norm2": f"{theirs}.ln_2",
                f"{ours}.mlp.fc1": f"{theirs}.mlp.c_fc",
                f"{ours}.mlp.fc2": f"{theirs}.mlp.c_proj",
            }
        )
    return layout


def _clip_of_transformers(depth: int) -> Layout:
    return {
        "cls_token": ("embeddings.class_embedding",),
        "pos_embed": ("embeddings.position_embedding.weight",),
        "patch_embed.weight": ("embeddings.patch_embedding.weight",),
        **_pairs({"norm_pre": "pre_layrnorm", "norm": "post_layernorm"}),  # their spelling
        **_layers_of_transformers(depth),
    }


def _layers_of_transformers(depth: int) -> Layout:
    layout: dict[str, tuple[str, ...]] = {}
    for i in range(depth):
        ours, theirs = f"blocks.{i}", f"encoder.layers.{i}"
        layout |= _join(f"{ours}.attn.qkv", [f"{theirs}.self_attn.{n}_proj" for n in "qkv"])
        layout |= _pairs(
            {
                f"{ours}.norm1": f"{theirs}.layer_norm1",
                f"{ours}.attn.proj": f"{theirs}.self_attn.out_proj",
                f"{ours}.norm2": f"{theirs}.layer_norm2",
                f"{ours}.mlp.fc1": f"{theirs}.mlp.fc1",
                f"{ours}.mlp.fc2": f"{theirs}.mlp.fc2",
            }
        )
    return layout


def _pairs(modules: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The weight and the bias of modules."""
    return {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in modules.items() for kind in BOTH}


def _join(ours: str, theirs: list[str]) -> dict[str, tuple[str, ...]]:
    return {f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs) for kind in BOTH}


def _rename(tensors: Tensors, layout: Layout, *, drop: tuple[str, ...]) -> Tensors:
    left = {name: tensor for name, tensor in tensors.items() if not name.startswith(drop)}
    named: Tensors = {}
    for ours, theirs in layout.items():
        parts = [left[name] for name in theirs if name in left]
        if len(parts) == len(theirs) and _can_join(parts):
            named[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
            for name in theirs:
                del left[name]
    return {**named, **left}


def _can_join(parts: list[Tensor]) -> bool:
    return len(parts) == 1 or (parts[0].dim() > 0 and len({(part.dtype, part.shape) for part in parts}) == 1)


def _without(prefix: str, tensors: Tensors) -> Tensors:
    """Remove a prefix from names; a name that would then be there twice keeps it."""
    return {
        (n if (short := n.removeprefix(prefix)) != n and short in tensors else short): t for n, t in tensors.items()
    }


def _split_attention(tensors: Tensors, theirs: str, ours: str) -> Tensors:
    """Split the joint projection of queries, keys and values into `q` and `kv`, if it can be divided by three."""
    out = dict(tensors)
    for kind in BOTH:
        joint = out.get(f"{theirs}{kind}")
        if joint is not None and joint.dim() > 0 and len(joint) % 3 == 0:
            del out[f"{theirs}{kind}"]
            third = len(joint) // 3
            out |= {f"{ours}q.{kind}": joint[:third], f"{ours}kv.{kind}": joint[third:]}
    return out


def _add_leading_axes(name: str, tensor: Tensor) -> Tensor:
    """Give class tokens and positions the leading axes that they have here, if only those are missing."""
    wanted = {"cls_token": 3, "pos_embed": 3}.get(name, tensor.dim())
    return tensor[(None,) * (wanted - tensor.dim())] if 0 < tensor.dim() < wanted else tensor
