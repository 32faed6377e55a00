"""New keys and values of `flash_attn_with_kvcache`: which positions they take, and writing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.attention.arguments import check_dims, last_contiguous, renamed
from deepseek_flash_cache.attention.cache_call import CacheCall
from deepseek_flash_cache.attention.paged import Cache, PagedKV, page_size
from deepseek_flash_cache.checks import check_key_value, require
from deepseek_flash_cache.spec.values import checked_starts

_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # fp8 cannot be indexed everywhere


@dataclass(frozen=True)
class NewRows:
    """Rows to append, [batch, seqlen_new] or ragged [total_k_new]; `sequence` and `offset` broadcast to those."""

    key: Tensor  # [..., Hkv, D]
    value: Tensor
    sequence: Tensor  # int64
    offset: Tensor  # int64, within the sequence's new rows
    counts: Tensor | int  # of each sequence


def new_rows(call: CacheCall, batch: int) -> NewRows:
    leading = ("batch", "seqlen_new") if call.cu_seqlens_k_new is None else ("total_k_new",)
    for name, rows in (("k", call.k), ("v", call.v)):
        check_dims(name, rows, *leading, "nheads_k", "headdim")
    assert call.k is not None and call.v is not None
    key, value, device = last_contiguous(call.k), last_contiguous(call.v), call.k.device
    if call.cu_seqlens_k_new is None:
        require(key.shape[0] == batch, "k batch", key.shape[0], f"{batch}, as q has")
        offset = torch.arange(key.shape[1], device=device)
        return NewRows(key, value, torch.arange(batch, device=device)[:, None], offset, key.shape[1])
    starts = checked_starts("cu_seqlens_k_new", call.cu_seqlens_k_new, key.shape[0], "key")
    require(len(starts) == batch + 1, "cu_seqlens_k_new length", len(starts), f"{batch + 1}, the batch plus 1")
    end = starts[-1]
    return NewRows(key[:end], value[:end], *rows_of(call.cu_seqlens_k_new), call.cu_seqlens_k_new.diff())


def rows_of(starts: Tensor) -> tuple[Tensor, Tensor]:
    """Sequence and index within it of every row that cu_seqlens `starts` cuts up."""
    sequence = torch.repeat_interleave(torch.arange(len(starts) - 1, device=starts.device), starts.diff().long())
    return sequence, torch.arange(len(sequence), device=starts.device) - starts.long()[sequence]


def check_rows(call: CacheCall, new: NewRows) -> None:
    """The new rows suit the cache."""
    cache = call.k_cache
    if isinstance(cache, PagedKV):
        with renamed({"key": "k", "value": "v"}):
            check_key_value(new.key.flatten(0, -3), new.value.flatten(0, -3), cache.layout, cache.tensor.device)
        return
    for name, rows, old in (("k", new.key, cache), ("v", new.value, call.v_cache)):
        fits = rows.shape[-2:] == old.shape[2:] and rows.shape[:-2] == new.key.shape[:-2]
        accepted = f"[..., {old.shape[2]}, {old.shape[3]}] with as many tokens as k"
        require(fits, f"{name} shape", tuple(rows.shape), accepted)
        require(rows.dtype == old.dtype, f"{name} dtype", rows.dtype, f"{old.dtype}, as the cache has")


def check_start(lengths: Tensor, leftpad: Tensor | None) -> None:
    """New keys follow keys: no length is negative or inside the padding."""
    first = 0 if leftpad is None else leftpad
    wrong = (lengths < first).tolist()
    if any(wrong):
        b = wrong.index(True)
        least = 0 if leftpad is None else int(leftpad[b])
        require(False, f"cache_seqlens[{b}]", int(lengths[b]), f"at least {least}")


def write(k_cache: Cache, v_cache: Any, table: Tensor, lengths: Tensor, new: NewRows) -> None:
    size = page_size(k_cache)
    position = lengths.long()[new.sequence] + new.offset
    page, row = table[new.sequence, position // size].long(), position % size
    if isinstance(k_cache, PagedKV):
        key, value, slots = new.key.flatten(0, -3), new.value.flatten(0, -3), (page * size + row).flatten()
        ops.append(key, value, k_cache.tensor, slots, k_cache.layout, k_cache.k_scale, k_cache.v_scale)
        return
    for cache, rows in ((k_cache, new.key), (v_cache, new.value)):
        raw = _RAW[cache.element_size()]
        cache.view(raw)[page, row] = rows.view(raw)
