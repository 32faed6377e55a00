"""`flash_attn_varlen_func` as vLLM's fork of flash-attention has it: other order of arguments, and a block table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deepseek_flash_cache.attention import arguments, core
from deepseek_flash_cache.attention.arguments import descale, only
from deepseek_flash_cache.attention.paged import Cache, PagedKV
from deepseek_flash_cache.checks import require

DEFAULT_FA_VERSION = 2


def flash_attn_varlen_func(
    q: Tensor,  # [total_q, nheads, headdim]
    k: Cache,  # [total_k, nheads_k, headdim]; with a block_table [blocks, page, nheads_k, headdim] or a PagedKV
    v: Cache | None,
    max_seqlen_q: int,
    cu_seqlens_q: Tensor,
    max_seqlen_k: int,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    q_v: Tensor | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    return_softmax_lse: bool = False,
    out: Tensor | None = None,
    scheduler_metadata: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    num_splits: int = 0,
    output_scale: Tensor | None = None,
    fa_version: int = DEFAULT_FA_VERSION,
    s_aux: Tensor | None = None,
    cp_world_size: int = 1,
    cp_rank: int = 0,
    cp_tot_seqused_k: Tensor | None = None,
    mask_mod: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of ragged lengths. Returns out, or (out, softmax_lse [nheads, total_q]). `s_aux` are sinks [nheads]."""
    only("q_v", q_v, None, "no second query")
    only("dropout_p", dropout_p, 0.0, "inference only")
    only("alibi_slopes", alibi_slopes, None, "no position biases")
    only("q_descale", q_descale, None, "queries are float32, float16 or bfloat16")
    only("output_scale", output_scale, None, "the result is not quantised")
    only("mask_mod", mask_mod, None, "no user-defined mask")
    only("cp_world_size", cp_world_size, 1, "no context parallelism")
    only("cp_rank", cp_rank, 0, "no context parallelism")
    only("cp_tot_seqused_k", cp_tot_seqused_k, None, "no context parallelism")
    one = (cu_seqlens_k is None) != (seqused_k is None) and (block_table is None) == (seqused_k is None)
    given = [name for name, value in (("cu_seqlens_k", cu_seqlens_k), ("seqused_k", seqused_k)) if value is not None]
    require(one, "cu_seqlens_k, seqused_k", given, "seqused_k with a block_table, cu_seqlens_k without one")
    options = arguments.options(q, softmax_scale, causal, window_size, softcap, s_aux)
    for part, tensor, factor in (("k", k, k_descale), ("v", v, v_descale)):
        if isinstance(tensor, Tensor):
            options[f"{part}_scale"] = descale(f"{part}_descale", factor, tensor)
        else:
            only(f"{part}_descale", factor, None, "a PagedKV has scales of its own")
    result = core.varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, block_table, options, out)
    return (result.out, core.lse_of(result)) if return_softmax_lse else result.out


__all__ = ["PagedKV", "flash_attn_varlen_func"]
