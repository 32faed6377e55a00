"""The attention function and the mask function that transformers calls under the name ``dfc``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.engines.transformers.layer import CachedKeys
from deepseek_flash_cache.engines.transformers.ragged import RaggedBatch, is_left_padded, require_tokens_in_order


def dfc_mask(
    *,
    kv_length: int,
    kv_offset: int = 0,
    q_length: int = 0,
    q_offset: int | Tensor = 0,
    cache_position: Tensor | None = None,  # transformers 4.x: the query's columns
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> Tensor | None:
    """The padding mask alone, bool [batch, kv_length], or None: causality and windows are the kernel's work.

    ValueError where transformers lays another pattern over the causal one (packed sequences, image blocks, ...), and
    for caches that hold columns past the query (static ones).
    """
    end = int(q_offset) + q_length if cache_position is None else int(cache_position[-1]) + 1
    if kv_offset + kv_length > end:
        raise ValueError(f"cache: holds {kv_length} columns for {end} tokens; static caches are not served by dfc")
    if not allow_is_causal_skip:
        raise ValueError("attention_mask: a pattern beyond causal, window and padding is not served by dfc; use sdpa")
    if attention_mask is None:
        return None
    padding = attention_mask[:, -kv_length:].bool()
    return None if padding.shape[1] == kv_length and bool(padding.all()) else padding


def dfc_attention(
    module: torch.nn.Module,
    query: Tensor,  # [B, H, Q, D]
    key: Tensor,  # [B, Hkv, K, D], or CachedKeys from a FlashCache
    value: Tensor,  # [B, Hkv, K, Dv]
    attention_mask: Tensor | None,  # bool [B, K], True = token
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,  # [H]
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over a `FlashCache`, or over plain K and V when there is none. Returns [B, Q, H, Dv] and None."""
    _check_call((query, key, value), attention_mask, dropout, kwargs)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options = {
        "softmax_scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "causal": causal,
        "window_left": -1 if sliding_window is None else sliding_window - 1,
        "softcap": softcap or 0.0,
        "sinks": s_aux,
    }
    if isinstance(key, CachedKeys):
        return key.layer.attend(query, key, value, attention_mask, kwargs.get("position_ids"), options), None
    return _attend_linear(query, key, value, attention_mask, options), None


def _check_call(
    states: tuple[Tensor | CachedKeys, ...], attention_mask: Tensor | None, dropout: float, kwargs: dict[str, Any]
) -> None:
    if attention_mask is not None and attention_mask.dim() != 2:
        shape = tuple(attention_mask.shape)
        raise ValueError(f"attention_mask: shape {shape} is not served by dfc; give a 2-D padding mask or use sdpa")
    if dropout:
        raise ValueError(f"dropout: {dropout} is not served by dfc, which is for inference; call model.eval()")
    tensors = (state.new if isinstance(state, CachedKeys) else state for state in states)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise ValueError("query, key, value: need gradients, and dfc is for inference; use torch.no_grad() or sdpa")
    if kwargs.get("output_attentions"):
        raise ValueError("output_attentions: True is not served by dfc; use attn_implementation='eager'")


def _attend_linear(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, options: dict[str, Any]
) -> Tensor:
    """Without our cache: attention over the K and V given, padding left out."""
    batch, _, kv_len, _ = key.shape
    mask = attention_mask if attention_mask is not None else key.new_ones(batch, kv_len, dtype=torch.bool)
    if mask.shape != (batch, kv_len):
        shape = tuple(mask.shape)
        raise ValueError(f"attention_mask: shape {shape} does not fit the keys; it must be {[batch, kv_len]}")
    if options["window_left"] >= 0:
        require_tokens_in_order(is_left_padded(mask))
    keys, queries = RaggedBatch(mask), RaggedBatch(mask[:, kv_len - query.shape[2] :])
    rows = queries.pack(query), keys.pack(key), keys.pack(value)
    return queries.unpack(ops.attend_linear(*rows, queries.cu_seqlens, keys.cu_seqlens, **options).out)
