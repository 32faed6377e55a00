"""What a pool holds: writing, reading, packing and copying rows."""

from __future__ import annotations

import torch
from torch import Tensor

from deepseek_flash_cache.checks import (
    FP8_DTYPES,
    check_append,
    check_cache,
    check_copy_blocks,
    check_key_value,
    check_length,
    check_scales,
    require,
)
from deepseek_flash_cache.layout import Layout, Part

# Integer types for moving stored elements without reading them as numbers: fp8 has no indexing everywhere.
RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def append(
    key: Tensor,  # [T, Hkv, D]
    value: Tensor,  # [T, Hkv, Dv]
    cache: Tensor,  # [num_blocks, Hkv, tiles, block_size, tile_columns], written
    slot_mapping: Tensor,  # int64 [S], S <= T
    layout: Layout,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write row i of `key` and `value` into token slot `slot_mapping[i]`.

    Slot = block * page_tokens + offset; -1 skips the row; rows past S are not stored. fp8 storage holds
    row / scale, saturated to the largest finite value.

    Raises
    ------
    ValueError
        Wrong shape, dtype or device, a slot below -1 or past the pool, a scale that is not positive and finite.
        Nothing is written then.
    """
    check_append(key, value, cache, slot_mapping, layout)
    check_scales(layout.dtype, k_scale=k_scale, v_scale=v_scale)
    slots = slot_mapping.tolist()
    num_slots = cache.shape[0] * layout.page_tokens
    for index, slot in enumerate(slots):
        require(-1 <= slot < num_slots, f"slot_mapping[{index}]", slot, f"-1 or in [0, {num_slots})")
    row_of_slot = {slot: row for row, slot in enumerate(slots) if slot >= 0}  # the last row of a slot wins
    if not row_of_slot:
        return
    written = torch.tensor(list(row_of_slot), device=cache.device)
    rows = torch.tensor(list(row_of_slot.values()), device=cache.device)
    block, token = written // layout.page_tokens, written % layout.page_tokens
    _write_rows(cache, layout, "k", block, token, stored(key[rows], layout.dtype, k_scale))
    _write_rows(cache, layout, "v", block, token, stored(value[rows], layout.dtype, v_scale))


def stored(rows: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """`rows` as they are stored: unchanged, or row / scale saturated to fp8. NaN stays NaN."""
    if dtype not in FP8_DTYPES:
        return rows.to(dtype)
    limit = torch.finfo(dtype).max
    return (rows.float() / scale).clamp(-limit, limit).to(dtype)


def _raw_runs(cache: Tensor, layout: Layout) -> Tensor:
    """The pool as [num_blocks, Hkv, elements of a head's run] of plain integers."""
    return cache.view(RAW[cache.element_size()]).view(cache.shape[0], layout.num_kv_heads, layout.head_elements)


def _write_rows(cache: Tensor, layout: Layout, part: Part, block: Tensor, token: Tensor, rows: Tensor) -> None:
    heads = torch.arange(layout.num_kv_heads, device=cache.device)[None, :, None]
    columns = layout.head_index(part, cache.device)[token][:, None, :]
    _raw_runs(cache, layout)[block[:, None, None], heads, columns] = rows.contiguous().view(RAW[rows.element_size()])


def gather(
    cache: Tensor, block_row: Tensor, length: int, layout: Layout, k_scale: float = 1.0, v_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """K [length, Hkv, D] and V [length, Hkv, Dv] in fp32 of the sequence in `block_row`. Reads no other slot."""
    runs = _raw_runs(cache, layout)[block_row[: -(-length // layout.page_tokens)].long()]
    key = _linear_rows(runs, layout, "k")[:length].float() * k_scale
    value = _linear_rows(runs, layout, "v")[:length].float() * v_scale
    return key, value


def _linear_rows(runs: Tensor, layout: Layout, part: Part) -> Tensor:
    """Raw runs [n, Hkv, elements] of n pages -> [n * P, Hkv, columns] in storage dtype."""
    rows = runs[:, :, layout.head_index(part, runs.device)].transpose(1, 2).flatten(0, 1)
    return rows.contiguous().view(layout.dtype)


def pack(key: Tensor, value: Tensor, layout: Layout, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """Reorder a linear cache, key [L, Hkv, D] and value [L, Hkv, Dv], into ceil(L / P) new pages.

    Slots past L hold zeros. With `layout.whole(L)` the whole cache is one page, in Z-order over its tile grid.
    """
    check_key_value(key, value, layout, key.device)
    pages = layout.cache_shape(-(-key.shape[0] // layout.page_tokens))
    cache = torch.zeros(pages, dtype=RAW[layout.dtype.itemsize], device=key.device).view(layout.dtype)
    append(key, value, cache, torch.arange(key.shape[0], device=key.device), layout, k_scale, v_scale)
    return cache


def unpack(pages: Tensor, length: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The first `length` tokens of consecutive pages as linear key [L, Hkv, D] and value [L, Hkv, Dv], as stored.

    The inverse of `pack` up to fp8 rounding; scales are not applied.
    """
    check_cache(pages, layout, "pages")
    check_length(length, pages, layout)
    runs = _raw_runs(pages, layout)
    return _linear_rows(runs, layout, "k")[:length], _linear_rows(runs, layout, "v")[:length]


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor, layout: Layout) -> None:
    """Copy whole pages: page `pairs[i, 0]` of `source` to page `pairs[i, 1]` of `target` (may be the same pool).

    All pages are read before any is written. Raises ValueError, with nothing written, for an id outside its pool or
    a target page named twice.
    """
    check_copy_blocks(source, target, pairs, layout)
    for name, cache, ids in (("source", source, pairs[:, 0]), ("target", target, pairs[:, 1])):
        for index, block in enumerate(ids.tolist()):
            inside = 0 <= block < cache.shape[0]
            require(inside, f"pairs[{index}] {name} block", block, f"in [0, {cache.shape[0]}), the {name} pool")
    targets = pairs[:, 1].tolist()
    require(len(set(targets)) == len(targets), "pairs target blocks", targets, "distinct")
    _raw_runs(target, layout)[pairs[:, 1]] = _raw_runs(source, layout)[pairs[:, 0]]
