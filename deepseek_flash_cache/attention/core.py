"""The attention behind every signature: fixed lengths, ragged lengths, with and without pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.attention.arguments import Options, check_dims, last_contiguous, renamed
from deepseek_flash_cache.attention.paged import PagedKV, attend_table, rectangular
from deepseek_flash_cache.checks import require
from deepseek_flash_cache.spec import Attention

KV = {"key": "k", "value": "v"}


def fixed(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """q [B, S, H, D], k [B, Sk, Hkv, D], v [B, Sk, Hkv, Dv] -> out [B, S, H, Dv], LSE [B, H, S].

    k and v stay where they are, whatever their strides: each sequence is a page. q is copied if its batch and sequence
    cannot be one dimension.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_dims(name, tensor, "batch", "seqlen", "nheads", "headdim")
    batch, seqlen = q.shape[:2]
    require(k.shape[0] == batch, "k batch", k.shape[0], f"{batch}, as q has")
    if k.shape[1] == 0:  # a page holds at least one token
        k, v = (tensor.new_zeros(batch, 1, *tensor.shape[2:]) for tensor in (k, v))
        kv_lens = torch.zeros(batch, dtype=torch.int32, device=q.device)
    else:
        kv_lens = torch.full((batch,), k.shape[1], dtype=torch.int32, device=q.device)
    table = torch.arange(batch, dtype=torch.int32, device=q.device)[:, None]
    k, v = last_contiguous(k), last_contiguous(v)
    starts = rectangular(batch, seqlen, q.device)
    result = attend_table(flat(q), k, v, table, starts, kv_lens, options, KV)
    return unflat(result, q)


def varlen(
    q: Tensor,  # [T, H, D]
    k: Any,  # [Tk, Hkv, D]; with a block_table pages, or a PagedKV
    v: Any,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None,
    block_table: Tensor | None,
    options: Options,
    out: Tensor | None = None,
) -> Attention:
    """Ragged attention. With a block_table the lengths are `seqused_k`, else the differences of `cu_seqlens_k`."""
    check_dims("q", q, "total_q", "nheads", "headdim")
    q = last_contiguous(q)
    names = {**KV, "kv_lens": "cu_seqlens_k" if seqused_k is None else "seqused_k"}
    if block_table is not None:
        if seqused_k is None:
            check_dims("cu_seqlens_k", cu_seqlens_k, "batch + 1")
            assert cu_seqlens_k is not None
            seqused_k = cu_seqlens_k.diff()
        return attend_table(q, k, v, block_table, cu_seqlens_q, seqused_k, options, names, out=out)
    for name, tensor in (("k", k), ("v", v)):
        pool = isinstance(tensor, PagedKV)
        require(not pool, name, "PagedKV", "a tensor where there is no block_table")
        check_dims(name, tensor, "total_k", "nheads_k", "headdim")
    check_dims("cu_seqlens_k", cu_seqlens_k, "batch + 1")
    assert cu_seqlens_k is not None
    k, v = last_contiguous(k), last_contiguous(v)
    with renamed({"query": "q", **names}):
        tensors = q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k
        return ops.attend_linear(*tensors, **options, out=out, return_lse=True)


def flat(q: Tensor) -> Tensor:
    """[B, S, H, D] -> [B * S, H, D]."""
    return last_contiguous(q).flatten(0, 1)  # type: ignore[no-any-return]


def unflat(result: Attention, q: Tensor) -> tuple[Tensor, Tensor]:
    """out [B, S, H, Dv] and LSE [B, H, S] of the results of `flat(q)`."""
    batch, seqlen, heads = q.shape[:3]
    lse = lse_of(result).view(heads, batch, seqlen).transpose(0, 1).contiguous()
    return result.out.view(batch, seqlen, heads, result.out.shape[2]), lse


def lse_of(result: Attention) -> Tensor:
    assert result.lse is not None
    return result.lse
