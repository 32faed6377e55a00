"""The functions of flash-attention 3 (`hopper/flash_attn_interface.py`), with its parameter lists, for inference.

What each argument means is FlashAttention's; what is refused, and why, is in docs/attention.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache.attention import arguments, core
from deepseek_flash_cache.attention.arguments import Options, check_dims, descale, only
from deepseek_flash_cache.attention.cache_call import CacheCall
from deepseek_flash_cache.attention.fa2 import unpacked
from deepseek_flash_cache.attention.kvcache import with_kvcache
from deepseek_flash_cache.attention.paged import Cache, PagedKV
from deepseek_flash_cache.checks import require

Result = Tensor | tuple[Tensor, Tensor]


def _options(
    q: Tensor,
    kv: tuple[Any, Any],
    qv: Any,
    descales: tuple[Any, Any, Any],
    softmax_scale: float | None,
    causal: bool,
    window_size: Sequence[int],
    attention_chunk: int,
    softcap: float,
) -> Options:
    only("qv", qv, None, "no second query")
    only("q_descale", descales[0], None, "queries are float32, float16 or bfloat16")
    only("attention_chunk", attention_chunk, 0, "no chunked attention")
    options = arguments.options(q, softmax_scale, causal, window_size, softcap)
    for part, tensor, factor in zip("kv", kv, descales[1:], strict=True):
        if isinstance(tensor, Tensor):
            options[f"{part}_scale"] = descale(f"{part}_descale", factor, tensor)
        else:
            only(f"{part}_descale", factor, None, "a PagedKV has scales of its own")
    return options


def flash_attn_func(
    q: Tensor,  # [batch, seqlen, nheads, headdim]
    k: Tensor,  # [batch, seqlen_k, nheads_k, headdim]
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Attention of fixed lengths. Returns out, or (out, softmax_lse [batch, nheads, seqlen])."""
    descales = q_descale, k_descale, v_descale
    options = _options(q, (k, v), qv, descales, softmax_scale, causal, window_size, attention_chunk, softcap)
    out, lse = core.fixed(q, k, v, options)
    return (out, lse) if return_attn_probs else out


def flash_attn_qkvpacked_func(
    qkv: Tensor,  # [batch, seqlen, 3, nheads, headdim], or [batch, seqlen, nheads + 2 nheads_k, headdim]
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_func` with q, k and v in one tensor, which is read where it is."""
    q, k, v = _split(qkv, num_heads_q)
    descales = q_descale, k_descale, v_descale
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, *descales, window_size, attention_chunk, softcap,
        return_attn_probs=return_attn_probs,
    )  # fmt: skip


def _split(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, ...]:
    if qkv.dim() == 5:
        return unpacked("qkv", qkv, 3)
    check_dims("qkv", qkv, "batch", "seqlen", "nheads + 2 nheads_k", "headdim")
    rest = qkv.shape[2] - (num_heads_q or 0)
    accepted = f"a number of heads that leaves an even number of the {qkv.shape[2]}"
    require(num_heads_q is not None and num_heads_q > 0 < rest and rest % 2 == 0, "num_heads_q", num_heads_q, accepted)
    assert num_heads_q is not None
    return tuple(qkv.split([num_heads_q, rest // 2, rest // 2], dim=2))


def flash_attn_varlen_func(
    q: Tensor,  # [total_q, nheads, headdim]
    k: Tensor,  # [total_k, nheads_k, headdim]
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Result:
    """Attention of ragged lengths. Returns out, or (out, softmax_lse [nheads, total_q]). FA3 has no page table here."""
    only("seqused_q", seqused_q, None, "every row that cu_seqlens_q gives a sequence is a query")
    descales = q_descale, k_descale, v_descale
    options = _options(q, (k, v), qv, descales, softmax_scale, causal, window_size, attention_chunk, softcap)
    result = core.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, None, options)
    return (result.out, core.lse_of(result)) if return_attn_probs else result.out


def flash_attn_with_kvcache(
    q: Tensor,  # [batch, seqlen, nheads, headdim]; with cu_seqlens_q [total_q, nheads, headdim]
    k_cache: Cache,  # [batch_cache, seqlen_cache, nheads_k, headdim]; with a page_table pages or a PagedKV
    v_cache: Cache | None,
    k: Tensor | None = None,  # appended in place at cache_seqlens
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,  # [positions, rotary_dim / 2]
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Result:
    """Append new keys if given, then attend over the cache. Returns out, or (out, softmax_lse)."""
    descales, caches = (q_descale, k_descale, v_descale), (k_cache, v_cache)
    options = _options(q, caches, qv, descales, softmax_scale, causal, window_size, attention_chunk, softcap)
    call = CacheCall(
        q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, cache_leftpad, page_table, "page_table",
        rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens, cu_seqlens_q, cu_seqlens_k_new,
    )  # fmt: skip
    out, lse = with_kvcache(call, options)
    return (out, lse) if return_softmax_lse else out


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> None:
    """None: work is planned in each call, so there is nothing to prepare."""
    return


__all__ = [
    "PagedKV",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]
