"""`flash_attn_with_kvcache` behind both signatures: append new keys in place, then attend.

Everything is checked before the first byte is written. A cache with a fixed length per sequence is treated as pages of
that length, one per sequence.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from deepseek_flash_cache.attention.arguments import Options, check_dims, last_contiguous
from deepseek_flash_cache.attention.cache_call import CacheCall
from deepseek_flash_cache.attention.core import flat, lse_of, unflat
from deepseek_flash_cache.attention.new_keys import NewRows, check_rows, check_start, new_rows, rows_of, write
from deepseek_flash_cache.attention.paged import attend_table, check_pair, rectangular
from deepseek_flash_cache.attention.rotary import Rotary
from deepseek_flash_cache.checks import require
from deepseek_flash_cache.spec import Attention
from deepseek_flash_cache.spec.values import checked_starts

NAMES = {"key": "k_cache", "value": "v_cache", "kv_lens": "cache_seqlens", "first_keys": "cache_leftpad"}


def with_kvcache(call: CacheCall, options: Options) -> tuple[Tensor, Tensor]:
    """out and LSE, in the shape of q: [B, S, H, Dv] and [B, H, S], or [T, H, Dv] and [H, T]."""
    names = {**NAMES, "block_table": "cache_batch_idx" if call.table is None else call.table_name}
    check_pair(call.k_cache, call.v_cache, names)
    table = call.pages()
    ragged = call.cu_seqlens_q is not None
    check_dims("q", call.q, *(("total_q",) if ragged else ("batch", "seqlen")), "nheads", "headdim")
    query = last_contiguous(call.q) if ragged else flat(call.q)
    starts = call.cu_seqlens_q if ragged else rectangular(call.q.shape[0], call.q.shape[1], call.q.device)
    assert starts is not None
    lengths = call.lengths(table)
    if call.k is not None or call.v is not None:
        query, lengths = _append(call, query, starts, table, lengths, options, names)
    else:
        unused = call.rotary_cos is None and call.rotary_sin is None
        require(unused, "rotary_cos", "tensor", "None without new keys k and v")
    result = _attend(call, query, starts, table, lengths, options, names)
    return (result.out, lse_of(result)) if ragged else unflat(result, call.q)


def _attend(
    call: CacheCall,
    query: Tensor,
    starts: Tensor,
    table: Tensor,
    lengths: Tensor,
    options: Options,
    names: dict[str, str],
) -> Attention:
    padding = call.cache_leftpad
    kv_lens = lengths if padding is None else lengths - padding
    return attend_table(query, call.k_cache, call.v_cache, table, starts, kv_lens, options, names, padding)


def _append(
    call: CacheCall,
    query: Tensor,
    starts: Tensor,
    table: Tensor,
    lengths: Tensor,
    options: Options,
    names: dict[str, str],
) -> tuple[Tensor, Tensor]:
    """The rotated queries, and the lengths with the new keys. A refused call leaves the cache as it was."""
    new = new_rows(call, lengths.shape[0])
    check_rows(call, new)
    totals = lengths + new.counts
    if call.cu_seqlens_q is not None:
        checked_starts("cu_seqlens_q", starts, query.shape[0], "query")
    names = {**names, "kv_lens": "cache_seqlens + new keys"}
    _attend(call, query[:0], torch.zeros_like(starts), table, totals, options, names)  # no queries: the checks alone
    check_start(lengths, call.cache_leftpad)
    query, new = _rotate(call, query, starts, lengths, new, options)
    write(call.k_cache, call.v_cache, table, lengths, new)
    return query, totals


def _rotate(
    call: CacheCall, query: Tensor, starts: Tensor, lengths: Tensor, new: NewRows, options: Options
) -> tuple[Tensor, NewRows]:
    """Queries and new keys at their positions; without a mask all queries of a sequence stand at its length."""
    if call.rotary_cos is None or call.rotary_sin is None:
        neither = call.rotary_cos is None and call.rotary_sin is None
        require(neither, "rotary_cos, rotary_sin", "one of them", "both or neither")
        return query, new
    rotary = Rotary(call.rotary_cos, call.rotary_sin, call.rotary_interleaved)
    rotary.check(query.shape[-1])
    base = (lengths if call.rotary_seqlens is None else call.rotary_seqlens).long()
    local = options["window_left"] >= 0 or options["window_right"] >= 0
    sequence, offset = rows_of(starts)
    places = base[sequence] + (offset if options["causal"] or local else 0)
    key_places = base[new.sequence] + new.offset
    rotary.check_positions(torch.cat((places, key_places.flatten())))
    rotated = query.clone()
    rotated[: len(places)] = rotary.apply(query[: len(places)], places)
    return rotated, replace(new, key=rotary.apply(new.key, key_places))
