"""Attention: torch's multi-head layer from its parts, and scaled dot products with the same bits at any position.

The kernel for scaled dot products rounds differently depending on the address of a head's vectors. Vectors are padded
with zeros to a multiple of 16 numbers, so that all are aligned alike; the zeros do not change the result.

On an accelerator, attention is computed as two products with a softmax between them, since not every fused kernel is
deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.errors import UnsafeLayer
from dpvision.private.engine.rules.linear import LANES, product_of_data
from dpvision.private.engine.trace import ALWAYS, Data, Pass, per_unit, plain, rule_for

ALWAYS |= {F.scaled_dot_product_attention}


@rule_for(F.scaled_dot_product_attention)
def dot_product_attention(
    current: Pass,
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Pad queries, keys and values that are all data; compute other combinations per unit."""
    if dropout_p > 0:
        raise UnsafeLayer("scaled_dot_product_attention with dropout_p > 0 draws at random. Fix: set dropout_p=0.")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    options = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    if attn_mask is not None or not all(isinstance(t, Data) for t in (query, key, value)):
        return per_unit(current, func, query, key, value, attn_mask, **options)
    if current.batched and not is_causal and not enable_gqa and query.dim() == key.dim() == value.dim() > 2:
        shares = torch.softmax(plain(product_of_data(current, query, key.mT)) * scale, dim=-1)
        return product_of_data(current, shares, value)
    width = value.shape[-1]
    padded = (_padded(plain(t)) for t in (query, key, value))
    return func(*padded, **options)[..., :width]


def _padded(vectors: Tensor) -> Tensor:
    missing = -vectors.shape[-1] % LANES
    return F.pad(vectors, (0, missing)) if missing else vectors


@rule_for(F.multi_head_attention_forward)
def attention(
    current: Pass,
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    use_separate_proj_weight: bool = False,
    **others: Any,
) -> Any:
    """Compute attention over the tokens of each image; inputs have torch's shape (tokens, images, width)."""
    unusual = [bias_k, bias_v, key_padding_mask, attn_mask, others.get("static_k"), others.get("static_v")]
    add_zero_attn = add_zero_attn or not others.get("average_attn_weights", True)
    if any(u is not None for u in unusual) or add_zero_attn or use_separate_proj_weight or (training and dropout_p):
        raise UnsafeLayer(
            "MultiheadAttention with masks, extra biases, dropout or separate projections has no rule. "
            "Fix: build it from Linear layers and F.scaled_dot_product_attention."
        )
    if query is key and key is value:
        projected = list(F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias).chunk(3, dim=-1))
    else:
        biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
        three = zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True)
        projected = [F.linear(tensor.transpose(0, 1), weight, bias) for tensor, weight, bias in three]
    q, k, v = (p.unflatten(-1, (num_heads, -1)).transpose(1, 2) for p in projected)
    shares = torch.softmax(q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5), dim=-1)
    mixed = (shares @ v).transpose(1, 2).flatten(2)
    out = F.linear(mixed, out_proj_weight, out_proj_bias).transpose(0, 1)
    return out, (shares.mean(1) if need_weights else None)
