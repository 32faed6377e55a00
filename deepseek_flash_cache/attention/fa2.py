"""The functions of flash-attention 2 (`flash_attn`), with its parameter lists, for inference.

What each argument means is FlashAttention's; what is refused, and why, is in docs/attention.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deepseek_flash_cache.attention import arguments, core
from deepseek_flash_cache.attention.arguments import Options, check_dims, only
from deepseek_flash_cache.attention.cache_call import CacheCall
from deepseek_flash_cache.attention.kvcache import with_kvcache
from deepseek_flash_cache.attention.paged import Cache
from deepseek_flash_cache.checks import require

Result = Tensor | tuple[Tensor, Tensor, None]


def _options(
    q: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: Sequence[int],
    softcap: float,
    alibi_slopes: Any,
) -> Options:
    only("dropout_p", dropout_p, 0.0, "inference only")
    only("alibi_slopes", alibi_slopes, None, "no position biases")
    return arguments.options(q, softmax_scale, causal, window_size, softcap)


def flash_attn_func(
    q: Tensor,  # [batch, seqlen, nheads, headdim]
    k: Tensor,  # [batch, seqlen_k, nheads_k, headdim]
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Attention of fixed lengths. Returns out, or (out, softmax_lse [batch, nheads, seqlen], None)."""
    options = _options(q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    out, lse = core.fixed(q, k, v, options)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,  # [batch, seqlen_k, 2, nheads_k, headdim]
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_func` with k and v in one tensor, which is read where it is."""
    check_dims("kv", kv, "batch", "seqlen", "2", "nheads_k", "headdim")
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    k, v = unpacked("kv", kv, 2)
    return flash_attn_func(q, k, v, *rest)


def flash_attn_qkvpacked_func(
    qkv: Tensor,  # [batch, seqlen, 3, nheads, headdim]
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_func` with q, k and v in one tensor, which is read where it is."""
    check_dims("qkv", qkv, "batch", "seqlen", "3", "nheads", "headdim")
    rest = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    q, k, v = unpacked("qkv", qkv, 3)
    return flash_attn_func(q, k, v, *rest)


def flash_attn_varlen_func(
    q: Tensor,  # [total_q, nheads, headdim]
    k: Cache,  # [total_k, nheads_k, headdim]; with a block_table [blocks, page, nheads_k, headdim] or a PagedKV
    v: Cache | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Attention of ragged lengths. Returns out, or (out, softmax_lse [nheads, total_q], None)."""
    options = _options(q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    result = core.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, None, block_table, options)
    return (result.out, core.lse_of(result), None) if return_attn_probs else result.out


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,  # [total_k, 2, nheads_k, headdim]
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_varlen_func` with k and v in one tensor, which is read where it is."""
    check_dims("kv", kv, "total_k", "2", "nheads_k", "headdim")
    rest = (
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip
    k, v = unpacked("kv", kv, 2)
    return flash_attn_varlen_func(q, k, v, *rest)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,  # [total, 3, nheads, headdim]
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """`flash_attn_varlen_func` with q, k and v in one tensor, which is read where it is."""
    check_dims("qkv", qkv, "total", "3", "nheads", "headdim")
    rest = (
        cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p,
        softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip
    q, k, v = unpacked("qkv", qkv, 3)
    return flash_attn_varlen_func(q, k, v, *rest)


def flash_attn_with_kvcache(
    q: Tensor,  # [batch, seqlen, nheads, headdim]
    k_cache: Cache,  # [batch_cache, seqlen_cache, nheads_k, headdim]; with a block_table pages or a PagedKV
    v_cache: Cache | None,
    k: Tensor | None = None,  # [batch, seqlen_new, nheads_k, headdim], appended in place at cache_seqlens
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,  # [positions, rotary_dim / 2]
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Append new keys if given, then attend over the cache.

    Returns out, or (out, softmax_lse [batch, nheads, seqlen]).
    """
    options = _options(q, 0.0, softmax_scale, causal, window_size, softcap, alibi_slopes)
    call = CacheCall(
        q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, "block_table",
        rotary_cos, rotary_sin, rotary_interleaved,
    )  # fmt: skip
    out, lse = with_kvcache(call, options)
    return (out, lse) if return_softmax_lse else out


def unpacked(name: str, packed: Tensor, parts: int) -> tuple[Tensor, ...]:
    """The parts of [..., parts, nheads, headdim]."""
    right = packed.shape[-3] == parts
    require(right, f"{name} shape", tuple(packed.shape), f"[..., {parts}, nheads, headdim]")
    return tuple(packed.unbind(dim=-3))
