"""Checks shared by every implementation of the operations: shapes, dtypes and devices, before anything is written.

Values (slots, table entries, lengths) are checked by the implementation that reads them: `spec` with torch,
`csrc/cpu` in C++. Each failure is a ValueError that names the argument, its value and what is accepted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.layout.page import MAX_HEAD_SIZE

COMPUTE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LEAST, MOST = 1e-30, 1e30  # of scales: their products with data stay finite and non-zero in fp32
LEAST_SOFTCAP, MOST_SOFTCAP = 1e-3, 1e6
# Texts of checks on the decode path, worded once: formatting them costs as much as the check
_FINITE = f"finite, in (-{MOST}, {MOST})"
_SOFTCAPS = f"0 (off) or in [{LEAST_SOFTCAP}, {MOST_SOFTCAP}]"
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
LAST_CONTIGUOUS = "contiguous in the last dimension"


def require(condition: bool, argument: str, value: object, accepted: str) -> None:
    if not condition:
        raise ValueError(f"{argument}: {value} is not accepted; it must be {accepted}")


def check_cache(cache: Tensor, layout: Layout, name: str = "cache") -> None:
    """`cache` is a contiguous pool of `layout`."""
    expected = layout.cache_shape(cache.shape[0] if cache.dim() else 0)
    require(tuple(cache.shape) == expected, f"{name} shape", tuple(cache.shape), f"{expected} for layout {layout.id}")
    require(cache.dtype == layout.dtype, f"{name} dtype", cache.dtype, f"{layout.dtype} for layout {layout.id}")
    require(cache.is_contiguous(), f"{name} strides", cache.stride(), "contiguous")


def check_scales(dtype: torch.dtype, **scales: float) -> None:
    """Scales are positive and finite, and 1 unless the storage is fp8."""
    for name, scale in scales.items():
        if scale == 1.0:
            continue
        require(LEAST < scale < MOST, name, scale, f"positive and finite, in ({LEAST}, {MOST})")
        require(dtype in FP8_DTYPES, name, scale, f"1.0 for {dtype} storage; scales belong to fp8")


def check_rows(name: str, rows: Tensor, heads: int, columns: int, device: torch.device) -> None:
    """`rows` is [tokens, heads, columns] of a compute dtype with contiguous columns."""
    shape_fits = rows.dim() == 3 and rows.shape[1:] == (heads, columns)
    require(shape_fits, f"{name} shape", tuple(rows.shape), f"[tokens, {heads}, {columns}]")
    require(rows.dtype in COMPUTE_DTYPES, f"{name} dtype", rows.dtype, f"one of {COMPUTE_DTYPES}")
    require(rows.device == device, f"{name} device", rows.device, f"{device}, where the cache is")
    require(rows.stride(2) == 1 or columns == 1, f"{name} strides", rows.stride(), LAST_CONTIGUOUS)


def check_key_value(key: Tensor, value: Tensor, layout: Layout, device: torch.device) -> None:
    check_rows("key", key, layout.num_kv_heads, layout.head_size, device)
    check_rows("value", value, layout.num_kv_heads, layout.head_size_v, device)
    require(value.shape[0] == key.shape[0], "value tokens", value.shape[0], f"{key.shape[0]}, as key has")
    require(value.dtype == key.dtype, "value dtype", value.dtype, f"{key.dtype}, as key has")
    if layout.dtype not in FP8_DTYPES:
        require(key.dtype == layout.dtype, "key dtype", key.dtype, f"{layout.dtype}, as layout {layout.id} stores")


def check_index(name: str, index: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...], like: Tensor) -> None:
    """`index` is an integer tensor on the device of `like`; None in `shape` accepts any size."""
    text = ", ".join("any" if size is None else str(size) for size in shape)
    fits = index.dim() == len(shape) and all(want in (None, got) for want, got in zip(shape, index.shape, strict=True))
    require(fits, f"{name} shape", tuple(index.shape), f"[{text}]")
    require(index.dtype == dtype, f"{name} dtype", index.dtype, str(dtype))
    require(index.device == like.device, f"{name} device", index.device, f"{like.device}, where the cache is")


def check_append(key: Tensor, value: Tensor, cache: Tensor, slot_mapping: Tensor, layout: Layout) -> None:
    check_cache(cache, layout)
    check_key_value(key, value, layout, cache.device)
    check_index("slot_mapping", slot_mapping, torch.int64, (None,), cache)
    enough = slot_mapping.shape[0] <= key.shape[0]
    require(enough, "slot_mapping length", slot_mapping.shape[0], f"at most {key.shape[0]}, the rows of key")


def check_length(length: int, pages: Tensor, layout: Layout) -> None:
    capacity = pages.shape[0] * layout.page_tokens
    require(0 <= length <= capacity, "length", length, f"in [0, {capacity}], what the pages hold")


def check_copy_blocks(source: Tensor, target: Tensor, pairs: Tensor, layout: Layout) -> None:
    check_cache(source, layout, "source")
    check_cache(target, layout, "target")
    check_index("pairs", pairs, torch.int64, (None, 2), source)
    check_index("pairs", pairs, torch.int64, (None, 2), target)


def check_attend(
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    sinks: Tensor | None,
    layout: Layout,
) -> None:
    check_cache(cache, layout)
    _check_query(query, layout.num_kv_heads, layout.head_size, cache)
    batch = _check_sequences(query, cu_seqlens_q, kv_lens, sinks, cache)
    _check_table(block_table, batch, cache)


def check_attend_linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    kv_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _check_plain(key, value, ("tokens",))
    _check_query(query, key.shape[-2], key.shape[-1], key)
    batch = _check_sequences(query, cu_seqlens_q, kv_lens, sinks, key)
    check_index("cu_seqlens_k", cu_seqlens_k, torch.int32, (batch + 1,), key)


def check_attend_pages(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    first_keys: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _check_plain(key, value, ("blocks", "page_size"))
    require(key.shape[1] > 0, "key page_size", key.shape[1], "at least 1")
    _check_query(query, key.shape[-2], key.shape[-1], key)
    batch = _check_sequences(query, cu_seqlens_q, kv_lens, sinks, key)
    _check_table(block_table, batch, key)
    if first_keys is not None:
        check_index("first_keys", first_keys, torch.int32, (batch,), key)


def _check_plain(key: Tensor, value: Tensor, leading: tuple[str, ...]) -> None:
    """`key` and `value` are rows outside a pool: [*leading, kv_heads, columns] with contiguous columns."""
    for name, rows in (("key", key), ("value", value)):
        columns = rows.shape[-1] if rows.dim() else 0
        right = rows.dim() == len(leading) + 2 and 0 < columns <= MAX_HEAD_SIZE and rows.shape[-2] > 0
        accepted = f"[{', '.join(leading)}, kv_heads, 1 to {MAX_HEAD_SIZE}]"
        require(right, f"{name} shape", tuple(rows.shape), accepted)
        accepted_dtypes = (*COMPUTE_DTYPES, *FP8_DTYPES)
        require(rows.dtype in accepted_dtypes, f"{name} dtype", rows.dtype, f"one of {accepted_dtypes}")
        require(rows.stride(-1) == 1 or columns == 1, f"{name} strides", rows.stride(), LAST_CONTIGUOUS)
    fits = value.shape[:-1] == key.shape[:-1]
    require(fits, "value shape", tuple(value.shape), f"{(*key.shape[:-1], 'columns')}, as key has")
    require(value.dtype == key.dtype, "value dtype", value.dtype, f"{key.dtype}, as key has")
    require(value.device == key.device, "value device", value.device, f"{key.device}, where key is")


def _check_query(query: Tensor, kv_heads: int, head_size: int, keys: Tensor) -> None:
    """`query` suits keys of these sizes, stored in `keys`."""
    heads = query.shape[1] if query.dim() == 3 else 0
    check_rows("query", query, heads, head_size, keys.device)
    divides = heads > 0 and heads % kv_heads == 0
    require(divides, "query heads", heads, f"a positive multiple of num_kv_heads {kv_heads}")


def _check_sequences(
    query: Tensor, cu_seqlens_q: Tensor, kv_lens: Tensor | None, sinks: Tensor | None, keys: Tensor
) -> int:
    """Checks what says where sequences start and end; returns their number."""
    if kv_lens is not None:
        batch = kv_lens.shape[0] if kv_lens.dim() else 0
        check_index("kv_lens", kv_lens, torch.int32, (None,), keys)
    else:
        batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q.dim() else 0
        require(batch >= 0, "cu_seqlens_q shape", tuple(cu_seqlens_q.shape), "[batch + 1]")
    check_index("cu_seqlens_q", cu_seqlens_q, torch.int32, (batch + 1,), keys)
    if sinks is not None:
        heads = query.shape[1]
        require(tuple(sinks.shape) == (heads,), "sinks shape", tuple(sinks.shape), f"[{heads}], one per query head")
        require(sinks.device == keys.device, "sinks device", sinks.device, f"{keys.device}, where the cache is")
    return batch


def _check_table(block_table: Tensor, batch: int, keys: Tensor) -> None:
    check_index("block_table", block_table, torch.int32, (batch, None), keys)
    row_contiguous = block_table.stride(1) == 1 or block_table.shape[1] <= 1
    require(row_contiguous, "block_table strides", block_table.stride(), LAST_CONTIGUOUS)


def check_mask(softmax_scale: float, window_left: int, window_right: int, softcap: float) -> None:
    require(abs(softmax_scale) < MOST, "softmax_scale", softmax_scale, _FINITE)
    for name, window in (("window_left", window_left), ("window_right", window_right)):
        require(-1 <= window < 2**31, name, window, "-1 (no limit) or a number of tokens below 2^31")
    usable = softcap == 0 or LEAST_SOFTCAP <= softcap <= MOST_SOFTCAP
    require(usable, "softcap", softcap, _SOFTCAPS)


def check_results(query: Tensor, out: Tensor, lse: Tensor | None, head_size_v: int) -> None:
    """`out` and `lse` can hold the results of attention."""
    require(query.dim() == 3, "query shape", tuple(query.shape), "[tokens, heads, head_size]")
    total, heads = query.shape[:2]
    expected = (total, heads, head_size_v)
    require(tuple(out.shape) == expected, "out shape", tuple(out.shape), str(expected))
    require(out.dtype == query.dtype, "out dtype", out.dtype, f"{query.dtype}, as query has")
    require(out.device == query.device, "out device", out.device, f"{query.device}, where query is")
    require(out.stride(2) == 1 or out.shape[2] <= 1, "out strides", out.stride(), LAST_CONTIGUOUS)
    if lse is not None:
        fits = tuple(lse.shape) == (heads, total) and lse.dtype == torch.float32 and lse.is_contiguous()
        require(fits and lse.device == query.device, "lse", tuple(lse.shape), f"contiguous float32 [{heads}, {total}]")


_accepted: set[tuple[object, ...]] = set()
_MAX_ACCEPTED = 4096


def check_once(check: Callable[..., None], layout: Layout | None, *tensors: Tensor | None) -> None:
    """`check(*tensors, layout)`, remembered: it depends on shapes, strides, dtypes and devices alone, and takes longer
    (12 us) than the look-up (2 us) and than everything else around a short decode step. None: no layout is passed.
    """
    label = None if layout is None else layout.id
    key = (check, label, *(t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors))
    if key in _accepted:
        return
    if layout is None:
        check(*tensors)
    else:
        check(*tensors, layout)
    if len(_accepted) >= _MAX_ACCEPTED:
        _accepted.clear()
    _accepted.add(key)
