"""The operations, registered once with torch.library under `dfc`; nothing else calls the compiled code.

Each has a schema, a fake implementation (torch.compile), the compiled CPU implementation where it applies, and the
specification (`spec.py`) everywhere else. Shapes, dtypes and devices are checked by `checks.py`, values by the
implementation; every failure is a ValueError and leaves the tensors as they were. Settings, read at import:
DFC_FORCE_SPEC=1 runs the specification everywhere; DFC_CPU_ISA={portable,avx2,avx512}.
"""

from __future__ import annotations

import os
import warnings
from collections import namedtuple
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch  # before _C, so that both use torch's OpenMP runtime
from torch import Tensor

from deepseek_flash_cache import checks, spec
from deepseek_flash_cache.checks import require
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.spec import Attention

BUILD_COMMAND = "pip install -e . (or: python setup.py build_ext --inplace)"
OPERATIONS = ("append", "attend", "pack", "unpack", "copy_blocks")

_C: Any = None
_why_no_binary = "DFC_FORCE_SPEC=1"
if os.environ.get("DFC_FORCE_SPEC") != "1":
    try:
        from deepseek_flash_cache import _C  # type: ignore[attr-defined, no-redef, unused-ignore]
    except ImportError as error:
        _why_no_binary = f"deepseek_flash_cache._C cannot be imported ({error}); build it with {BUILD_COMMAND}"
        warnings.warn(f"running the plain PyTorch specification, which is slow: {_why_no_binary}", stacklevel=2)

# Numbers of csrc/api/params.h and csrc/layout/tile.h
_FORMAT_CODES = {"linear": 0, "paired": 1, "swizzle": 2}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # fp8 cannot be filled everywhere


def backend(op: str, device: torch.device | str, layout: Layout) -> str:
    """Which implementation of `op` will run for this layout, and why. ValueError for an unknown op."""
    require(op in OPERATIONS, "op", op, f"one of {', '.join(OPERATIONS)}")
    kind = torch.device(device).type
    if kind != "cpu":
        return f"spec (PyTorch): no compiled {op} for {kind} devices yet"
    if _C is None:
        return f"spec (PyTorch): {_why_no_binary}"
    if op != "attend":
        return "C++"
    if layout.tile_format == "swizzle":
        return "spec (PyTorch): swizzled tiles are for CUDA pools; the CPU kernels read linear and paired ones"
    return f"C++ ({_C.isa()}); spec where statistics (top_tokens > 0) are asked for"


@lru_cache(maxsize=1024)
def _compiled(layout_id: str) -> Any:
    """The `_C.Layout` that mirrors `Layout.parse(layout_id)`."""
    layout = Layout.parse(layout_id)
    sizes = (layout.num_kv_heads, layout.head_size, layout.head_size_v, layout.block_size, layout.extent)
    zorder, tile_format = layout.tile_order == "zorder", _FORMAT_CODES[layout.tile_format]
    return _C.Layout(_DTYPE_CODES[layout.dtype], *sizes, zorder, tile_format)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _rows(tensor: Tensor) -> tuple[int, int, int]:
    """Address and the strides of tokens and heads."""
    return tensor.data_ptr(), tensor.stride(0), tensor.stride(1)


# CPU implementations. Layouts pass the schema as their id.


def _append_cpu(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, layout: str, *scales: float) -> None:
    if _C is None:
        _append_spec(key, value, cache, slots, layout, *scales)
        return
    parsed = Layout.parse(layout)
    checks.check_once(checks.check_append, parsed, key, value, cache, slots)
    checks.check_scales(parsed, k_scale=scales[0], v_scale=scales[1])
    slots = slots.contiguous()
    places = _DTYPE_CODES[key.dtype], cache.data_ptr(), cache.shape[0], slots.data_ptr(), slots.shape[0]
    _C.append(_compiled(layout), *_rows(key), *_rows(value), *places, *scales, torch.get_num_threads())


# Arguments of `attend` in the order of its schema
_Attend = namedtuple(
    "_Attend",
    "query cache block_table cu_seqlens_q kv_lens sinks layout softmax_scale causal window_left window_right softcap"
    " k_scale v_scale top_tokens out lse entropy top_mass",
)


def _attend_cpu(*arguments: Any) -> None:
    a = _Attend(*arguments)
    layout = Layout.parse(a.layout)
    if _C is None or a.top_tokens > 0 or layout.tile_format == "swizzle":
        _attend_spec(*arguments)
        return
    checks.check_once(checks.check_attend, layout, a.query, a.cache, a.block_table, a.cu_seqlens_q, a.kv_lens, a.sinks)
    checks.check_once(checks.check_results, layout, a.query, a.out, a.lse)
    checks.check_mask(a.softmax_scale, a.window_left, a.window_right, a.softcap)
    checks.check_scales(layout, k_scale=a.k_scale, v_scale=a.v_scale)
    starts, lengths = a.cu_seqlens_q.contiguous(), a.kv_lens.contiguous()
    sinks = None if a.sinks is None else a.sinks.float().contiguous()
    query, pool = a.query, (a.cache.data_ptr(), a.cache.shape[0])
    table = (a.block_table.data_ptr(), a.block_table.stride(0), a.block_table.shape[1], a.block_table.shape[0])
    _C.attend(
        _compiled(a.layout), _DTYPE_CODES[query.dtype], *_rows(query), query.shape[0], query.shape[1], *pool, *table,
        starts.data_ptr(), lengths.data_ptr(), _address(sinks), a.softmax_scale, a.causal, a.window_left,
        a.window_right, a.softcap, a.k_scale, a.v_scale, *_rows(a.out), _address(a.lse), torch.get_num_threads(),
    )  # fmt: skip


def _pack_cpu(key: Tensor, value: Tensor, layout: str, *scales: float) -> Tensor:
    if _C is None:
        pages: Tensor = _pack_spec(key, value, layout, *scales)
        return pages
    parsed = Layout.parse(layout)
    checks.check_key_value(key, value, parsed, key.device)
    checks.check_scales(parsed, k_scale=scales[0], v_scale=scales[1])
    pages = _pack_fake(key, value, layout).view(_RAW[parsed.dtype.itemsize]).zero_().view(parsed.dtype)
    places = _DTYPE_CODES[key.dtype], pages.data_ptr(), pages.shape[0], 0, key.shape[0]  # no slots: row i to slot i
    _C.append(_compiled(layout), *_rows(key), *_rows(value), *places, *scales, torch.get_num_threads())
    return pages


def _unpack_cpu(pages: Tensor, length: int, layout: str) -> tuple[Tensor, Tensor]:
    if _C is None:
        key, value = _unpack_spec(pages, length, layout)
        return key, value
    checks.check_cache(pages, Layout.parse(layout), "pages")
    checks.check_length(length, pages, Layout.parse(layout))
    key, value = _unpack_fake(pages, length, layout)
    _C.unpack(_compiled(layout), _address(pages), _address(key), _address(value), length, torch.get_num_threads())
    return key, value


def _copy_blocks_cpu(source: Tensor, target: Tensor, pairs: Tensor, layout: str) -> None:
    if _C is None:
        _copy_blocks_spec(source, target, pairs, layout)
        return
    checks.check_once(checks.check_copy_blocks, Layout.parse(layout), source, target, pairs)
    pairs = pairs.contiguous()
    pools = source.data_ptr(), source.shape[0], target.data_ptr(), target.shape[0]
    _C.copy_blocks(_compiled(layout), *pools, pairs.data_ptr(), pairs.shape[0], torch.get_num_threads())


# The specification, for every other device


def _reference(function: Callable[..., Any], layout_at: int) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        return function(*arguments[:layout_at], Layout.parse(arguments[layout_at]), *arguments[layout_at + 1 :])

    return run


_append_spec = _reference(spec.append, 4)
_pack_spec = _reference(spec.pack, 2)
_unpack_spec = _reference(spec.unpack, 2)
_copy_blocks_spec = _reference(spec.copy_blocks, 3)


def _attend_spec(*arguments: Any) -> None:
    a = _Attend(*arguments)
    checks.check_results(a.query, a.out, a.lse, Layout.parse(a.layout))
    options = ("softmax_scale", "causal", "window_left", "window_right", "softcap", "sinks", "k_scale", "v_scale")
    keywords = {name: getattr(a, name) for name in (*options, "top_tokens")}
    tensors = a.query, a.cache, a.block_table, a.cu_seqlens_q, a.kv_lens
    result = spec.attend(*tensors, Layout.parse(a.layout), **keywords)
    for name in ("out", "lse", "entropy", "top_mass"):
        target, source = getattr(a, name), getattr(result, name)
        if target is not None and source is not None:
            target.copy_(source)


# Fake implementations: shapes only; what merely writes into its arguments needs none


def _pack_fake(key: Tensor, value: Tensor, layout: str, *scales: float) -> Tensor:
    parsed = Layout.parse(layout)
    return key.new_empty(parsed.cache_shape(-(-key.shape[0] // parsed.page_tokens)), dtype=parsed.dtype)


def _unpack_fake(pages: Tensor, length: int, layout: str) -> tuple[Tensor, Tensor]:
    heads, sizes = Layout.parse(layout).num_kv_heads, (Layout.parse(layout).head_size, Layout.parse(layout).head_size_v)
    return pages.new_empty(length, heads, sizes[0]), pages.new_empty(length, heads, sizes[1])


_library = torch.library.Library("dfc", "DEF")
_register_fake = getattr(torch.library, "register_fake", None) or torch.library.impl_abstract  # torch < 2.4


def _register(schema: str, cpu: Callable[..., Any], elsewhere: Callable[..., Any], fake: Any = None) -> None:
    def shapes(*arguments: Any) -> Any:
        if len({a.device for a in arguments if isinstance(a, Tensor)}) > 1:
            elsewhere(*arguments)  # one meta tensor brings the call here; the checks refuse it
        return fake(*arguments) if fake else None

    name = schema.split("(", 1)[0]
    _library.define(schema)
    _library.impl(name, cpu, "CPU")
    _library.impl(name, elsewhere, "CompositeExplicitAutograd")
    _register_fake(f"dfc::{name}", shapes)


_SCALES = "str layout, float k_scale, float v_scale"
_register(
    f"append(Tensor key, Tensor value, Tensor(a!) cache, Tensor slot_mapping, {_SCALES}) -> ()",
    _append_cpu, _append_spec,
)  # fmt: skip
_register(
    "attend(Tensor query, Tensor cache, Tensor block_table, Tensor cu_seqlens_q, Tensor kv_lens, Tensor? sinks,"
    " str layout, float softmax_scale, bool causal, int window_left, int window_right, float softcap, float k_scale,"
    " float v_scale, int top_tokens, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? entropy, Tensor(d!)? top_mass) -> ()",
    _attend_cpu, _attend_spec,
)  # fmt: skip
_register(f"pack(Tensor key, Tensor value, {_SCALES}) -> Tensor", _pack_cpu, _pack_spec, _pack_fake)
_register("unpack(Tensor pages, int length, str layout) -> (Tensor, Tensor)", _unpack_cpu, _unpack_spec, _unpack_fake)
_register(
    "copy_blocks(Tensor source, Tensor(a!) target, Tensor pairs, str layout) -> ()",
    _copy_blocks_cpu, _copy_blocks_spec,
)  # fmt: skip


# Public functions; `spec` describes each in full


def append(
    key: Tensor,  # [T, Hkv, D]
    value: Tensor,  # [T, Hkv, Dv]
    cache: Tensor,  # layout.cache_shape(num_blocks), written
    slot_mapping: Tensor,  # int64 [S], S <= T
    layout: Layout,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Write row i of `key` and `value` into slot `slot_mapping[i]`; -1 skips, no rows do nothing. See `spec.append`."""
    torch.ops.dfc.append(key, value, cache, slot_mapping, layout.id, k_scale, v_scale)


def attend(
    query: Tensor,  # [T, H, D]
    cache: Tensor,  # layout.cache_shape(num_blocks)
    block_table: Tensor,  # int32 [B, max_blocks]
    cu_seqlens_q: Tensor,  # int32 [B + 1]
    kv_lens: Tensor,  # int32 [B]
    layout: Layout,
    *,
    softmax_scale: float,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # [H]
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    top_tokens: int = 0,
    out: Tensor | None = None,  # [T, H, Dv], written
    return_lse: bool = False,
) -> Attention:
    """Attention of ragged queries over the paged history. See `spec.attend`.

    A row that sees no key (kv_len 0, fully masked) gives out = 0 and LSE = -inf. `lse` of the result is None unless
    asked for; `entropy` and `top_mass` are there with `top_tokens` > 0.
    """
    require(query.dim() == 3, "query shape", tuple(query.shape), f"[tokens, heads, {layout.head_size}]")
    total, heads = query.shape[0], query.shape[1]
    out = query.new_empty(total, heads, layout.head_size_v) if out is None else out
    lse = query.new_empty(heads, total, dtype=torch.float32) if return_lse else None
    entropy, top_mass = query.new_empty(2, total, heads, dtype=torch.float32) if top_tokens > 0 else (None, None)
    torch.ops.dfc.attend(
        query, cache, block_table, cu_seqlens_q, kv_lens, sinks, layout.id, softmax_scale, causal, window_left,
        window_right, softcap, k_scale, v_scale, top_tokens, out, lse, entropy, top_mass,
    )  # fmt: skip
    return Attention(out, lse, entropy, top_mass)


def pack(key: Tensor, value: Tensor, layout: Layout, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """Reorder a linear cache, key [L, Hkv, D] and value [L, Hkv, Dv], into new pages. See `spec.pack`."""
    pages: Tensor = torch.ops.dfc.pack(key, value, layout.id, k_scale, v_scale)
    return pages


def unpack(pages: Tensor, length: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """The first `length` tokens of consecutive pages as linear key and value. See `spec.unpack`."""
    key, value = torch.ops.dfc.unpack(pages, length, layout.id)
    return key, value


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor, layout: Layout) -> None:
    """Copy page `pairs[i, 0]` of `source` to page `pairs[i, 1]` of `target`. See `spec.copy_blocks`."""
    torch.ops.dfc.copy_blocks(source, target, pairs, layout.id)
