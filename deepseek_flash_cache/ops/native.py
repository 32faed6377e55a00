"""The CPU implementations: check, then hand raw pointers to the compiled code; the specification where there is none.

Arguments come in the order of the schemas in `registry`; layouts as their id.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import checks
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import reference
from deepseek_flash_cache.ops.arguments import RAW, address, attend_call, check_pool, rows, table
from deepseek_flash_cache.ops.binary import _C, DTYPE_CODES, compiled

# Pool


def append(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, layout: str, *scales: float) -> None:
    if _C is None:
        reference.append(key, value, cache, slots, layout, *scales)
        return
    parsed = Layout.parse(layout)
    checks.check_once(checks.check_append, parsed, key, value, cache, slots)
    checks.check_scales(parsed.dtype, k_scale=scales[0], v_scale=scales[1])
    slots = slots.contiguous()
    places = DTYPE_CODES[key.dtype], cache.data_ptr(), cache.shape[0], slots.data_ptr(), slots.shape[0]
    _C.append(compiled(layout), *rows(key), *rows(value), *places, *scales, torch.get_num_threads())


def pack(key: Tensor, value: Tensor, layout: str, *scales: float) -> Tensor:
    if _C is None:
        pages: Tensor = reference.pack(key, value, layout, *scales)
        return pages
    parsed = Layout.parse(layout)
    checks.check_key_value(key, value, parsed, key.device)
    checks.check_scales(parsed.dtype, k_scale=scales[0], v_scale=scales[1])
    pages = reference.empty_pages(key, value, layout).view(RAW[parsed.dtype.itemsize]).zero_().view(parsed.dtype)
    places = DTYPE_CODES[key.dtype], pages.data_ptr(), pages.shape[0], 0, key.shape[0]  # no slots: row i to slot i
    _C.append(compiled(layout), *rows(key), *rows(value), *places, *scales, torch.get_num_threads())
    return pages


def unpack(pages: Tensor, length: int, layout: str) -> tuple[Tensor, Tensor]:
    if _C is None:
        key, value = reference.unpack(pages, length, layout)
        return key, value
    checks.check_cache(pages, Layout.parse(layout), "pages")
    checks.check_length(length, pages, Layout.parse(layout))
    key, value = reference.empty_rows(pages, length, layout)
    _C.unpack(compiled(layout), address(pages), address(key), address(value), length, torch.get_num_threads())
    return key, value


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor, layout: str) -> None:
    if _C is None:
        reference.copy_blocks(source, target, pairs, layout)
        return
    checks.check_once(checks.check_copy_blocks, Layout.parse(layout), source, target, pairs)
    pairs = pairs.contiguous()
    pools = source.data_ptr(), source.shape[0], target.data_ptr(), target.shape[0]
    _C.copy_blocks(compiled(layout), *pools, pairs.data_ptr(), pairs.shape[0], torch.get_num_threads())


# Attention. The tuples are those of csrc/api/py_attend.h


def _check_linear(*tensors: Any) -> None:
    *inputs, out, lse = tensors
    checks.check_attend_linear(*inputs)
    checks.check_results(inputs[0], out, lse, inputs[2].shape[2])


def _check_pages(*tensors: Any) -> None:
    *inputs, out, lse = tensors
    checks.check_attend_pages(*inputs)
    checks.check_results(inputs[0], out, lse, inputs[2].shape[3])


def attend(*arguments: Any) -> None:
    a = reference.Attend(*arguments)
    layout = Layout.parse(a.layout)
    if _C is None or a.top_tokens > 0 or layout.tile_format == "swizzle":
        reference.attend(*arguments)
        return
    tensors = a.query, a.cache, a.block_table, a.cu_seqlens_q, a.kv_lens, a.sinks, a.out, a.lse
    checks.check_once(check_pool, layout, *tensors)
    checks.check_scales(layout.dtype, k_scale=a.k_scale, v_scale=a.v_scale)
    _kept, *call = attend_call(a)
    _C.attend(compiled(a.layout), a.cache.data_ptr(), a.cache.shape[0], table(a.block_table), *call)


def _plain(key: Tensor, value: Tensor) -> tuple[Any, ...]:
    return rows(key), rows(value), DTYPE_CODES[key.dtype], key.shape[-2], key.shape[-1], value.shape[-1]


def attend_linear(*arguments: Any) -> None:
    if _C is None:
        reference.attend_linear(*arguments)
        return
    a = reference.AttendLinear(*arguments)
    tensors = a.query, a.key, a.value, a.cu_seqlens_q, a.cu_seqlens_k, a.kv_lens, a.sinks
    checks.check_once(_check_linear, None, *tensors, a.out, a.lse)
    checks.check_scales(a.key.dtype, k_scale=a.k_scale, v_scale=a.v_scale)
    _kept, *call = attend_call(a)
    cu_seqlens_k = a.cu_seqlens_k.contiguous()
    _C.attend_linear(_plain(a.key, a.value), a.key.shape[0], cu_seqlens_k.data_ptr(), *call)


def attend_pages(*arguments: Any) -> None:
    if _C is None:
        reference.attend_pages(*arguments)
        return
    a = reference.AttendPages(*arguments)
    tensors = a.query, a.key, a.value, a.block_table, a.cu_seqlens_q, a.kv_lens, a.first_keys, a.sinks
    checks.check_once(_check_pages, None, *tensors, a.out, a.lse)
    checks.check_scales(a.key.dtype, k_scale=a.k_scale, v_scale=a.v_scale)
    _kept, *call = attend_call(a)
    first_keys = None if a.first_keys is None else a.first_keys.contiguous()
    pages = *a.key.shape[:2], a.key.stride(0), a.value.stride(0)
    _C.attend_pages(_plain(a.key, a.value), pages, table(a.block_table), address(first_keys), *call)
