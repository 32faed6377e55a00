"""The CUDA implementations: check shapes, then launch kernels; the specification where there is no kernel.

Nothing here reads what lies in device memory or waits for the device, so that a CUDA graph can capture every call. What
the CPU refuses by value is skipped by the kernels: slots and pairs outside the pool. Kernels run on torch's current
stream, from `cubins/`, which `make cuda` fills.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import checks
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import reference
from deepseek_flash_cache.ops.arguments import RAW, attend_call, check_pool, rows, table
from deepseek_flash_cache.ops.binary import _C, DTYPE_CODES, compiled, why_no_binary

DRIVER = "libcuda.so.1"
CUBINS = Path(__file__).parent.parent / "cubins"
_THREADS = 0  # the CPU's argument
_said: set[str] = set()  # why the specification runs

emulator: Any = None  # a launcher that serves every device instead of the driver; set by tests


@lru_cache(maxsize=64)
def _driver(index: int) -> tuple[Any, str]:
    """The launcher of a device, or None and why there is none."""
    if _C is None:
        return None, why_no_binary
    try:
        return _C.open_driver(DRIVER, index, str(CUBINS)), ""
    except (NotImplementedError, RuntimeError) as error:
        return None, str(error)


def _launcher(device: torch.device) -> tuple[Any, str]:
    if emulator is not None:
        return emulator, ""
    if device.index is not None:
        return _driver(device.index)
    return _driver(torch.cuda.current_device() if torch.cuda.is_available() else 0)


def _stream(device: torch.device) -> int:
    return 0 if emulator is not None else torch.cuda.current_stream(device).cuda_stream


def refusal(index: int, capability: str) -> str:
    """Why a GPU of this compute capability ("8.6") is not served; empty if it is."""
    if _C is None:
        return why_no_binary
    return str(_C.refused_device(index, int(capability.replace(".", ""))))


# Which kernels serve a layout


@lru_cache(maxsize=4096)
def _why_spec(op: str, layout_id: str, launcher: Any, source: torch.dtype) -> str:
    """Why the specification serves `op`; empty if a kernel does. `source`: of rows to append, or of the query."""
    layout = Layout.parse(layout_id)
    if op in ("attend_linear", "attend_pages"):
        return "no CUDA kernel reads keys outside a pool yet"
    if layout.tile_format == "paired":
        return "paired tiles are for CPU pools; CUDA kernels read swizzled ones"
    if source not in DTYPE_CODES:
        return f"no CUDA kernel reads {source}"
    if op == "attend":
        return str(_C.why_no_attend(launcher, compiled(layout_id), DTYPE_CODES[source]))
    kernel = {"unpack": "unpack", "copy_blocks": "copy_blocks"}.get(op)
    kernel = kernel or _C.append_kernel(compiled(layout_id), DTYPE_CODES[source])
    return str(launcher.missing(kernel)) if kernel else f"no kernel appends {source} rows to {layout.dtype}"


def _serving(op: str, layout_id: str, device: torch.device, source: torch.dtype) -> Any:
    """The launcher that serves `op`, or None where the specification does, which is said once."""
    launcher, reason = _launcher(device)
    reason = reason or _why_spec(op, layout_id, launcher, source)
    if not reason:
        return launcher
    if _C is not None and reason not in _said:  # without the extension `binary` has said it
        _said.add(reason)
        warnings.warn(f"running the plain PyTorch specification of {op} on {device}: {reason}", stacklevel=3)
    return None


def backend(op: str, device: torch.device, layout: Layout) -> str:
    """What `ops.backend` says."""
    launcher, reason = _launcher(device)
    source = torch.bfloat16 if layout.dtype in checks.FP8_DTYPES else layout.dtype
    reason = reason or _why_spec(op, layout.id, launcher, source)
    if reason:
        return f"spec (PyTorch): {reason}"
    served = f"CUDA (sm_{launcher.arch})"
    return f"{served}; spec where statistics (top_tokens > 0) are asked for" if op == "attend" else served


# Pool


def append(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor, layout: str, *scales: float) -> None:
    launcher = _serving("append", layout, cache.device, key.dtype)
    if launcher is None:
        reference.append(key, value, cache, slots, layout, *scales)
        return
    parsed = Layout.parse(layout)
    checks.check_once(checks.check_append, parsed, key, value, cache, slots)
    checks.check_scales(parsed.dtype, k_scale=scales[0], v_scale=scales[1])
    slots = slots.contiguous()
    places = DTYPE_CODES[key.dtype], cache.data_ptr(), cache.shape[0], slots.data_ptr(), slots.shape[0]
    on = launcher, _stream(cache.device), compiled(layout)
    _C.cuda_append(*on, *rows(key), *rows(value), *places, *scales, _THREADS)


def pack(key: Tensor, value: Tensor, layout: str, *scales: float) -> Tensor:
    launcher = _serving("pack", layout, key.device, key.dtype)
    if launcher is None:
        packed: Tensor = reference.pack(key, value, layout, *scales)
        return packed
    parsed = Layout.parse(layout)
    checks.check_key_value(key, value, parsed, key.device)
    checks.check_scales(parsed.dtype, k_scale=scales[0], v_scale=scales[1])
    pages = reference.empty_pages(key, value, layout).view(RAW[parsed.dtype.itemsize]).zero_().view(parsed.dtype)
    places = DTYPE_CODES[key.dtype], pages.data_ptr(), pages.shape[0], 0, key.shape[0]  # no slots: row i to slot i
    on = launcher, _stream(key.device), compiled(layout)
    _C.cuda_append(*on, *rows(key), *rows(value), *places, *scales, _THREADS)
    return pages


def unpack(pages: Tensor, length: int, layout: str) -> tuple[Tensor, Tensor]:
    launcher = _serving("unpack", layout, pages.device, pages.dtype)
    if launcher is None:
        key, value = reference.unpack(pages, length, layout)
        return key, value
    checks.check_cache(pages, Layout.parse(layout), "pages")
    checks.check_length(length, pages, Layout.parse(layout))
    key, value = reference.empty_rows(pages, length, layout)
    on = launcher, _stream(pages.device), compiled(layout)
    _C.cuda_unpack(*on, pages.data_ptr(), key.data_ptr(), value.data_ptr(), length, _THREADS)
    return key, value


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor, layout: str) -> None:
    launcher = _serving("copy_blocks", layout, source.device, source.dtype)
    if launcher is None:
        reference.copy_blocks(source, target, pairs, layout)
        return
    checks.check_once(checks.check_copy_blocks, Layout.parse(layout), source, target, pairs)
    pairs = pairs.contiguous()
    pools = source.data_ptr(), source.shape[0], target.data_ptr(), target.shape[0]
    call = compiled(layout), *pools, pairs.data_ptr(), pairs.shape[0], _THREADS
    workspace = source.new_empty(_C.cuda_copy_workspace(*call), dtype=torch.uint8)
    _C.cuda_copy_blocks(launcher, _stream(source.device), workspace.data_ptr(), *call)


# Attention


def attend(*arguments: Any) -> None:
    a = reference.Attend(*arguments)
    launcher = None if a.top_tokens > 0 else _serving("attend", a.layout, a.query.device, a.query.dtype)
    if launcher is None:
        reference.attend(*arguments)
        return
    layout = Layout.parse(a.layout)
    tensors = a.query, a.cache, a.block_table, a.cu_seqlens_q, a.kv_lens, a.sinks, a.out, a.lse
    checks.check_once(check_pool, layout, *tensors)
    checks.check_scales(layout.dtype, k_scale=a.k_scale, v_scale=a.v_scale)
    query, out = (rows if _in_chunks(rows) else rows.contiguous().clone() for rows in (a.query, a.out))
    _kept, *call = attend_call(a._replace(query=query, out=out))
    pool = compiled(a.layout), a.cache.data_ptr(), a.cache.shape[0], table(a.block_table)
    workspace = query.new_empty(_C.cuda_attend_workspace(launcher, *pool, *call), dtype=torch.uint8)
    _C.cuda_attend(launcher, _stream(query.device), workspace.data_ptr(), a.max_seqlen_q, *pool, *call)
    if out is not a.out:
        a.out.copy_(out)


def _in_chunks(rows: Tensor) -> bool:
    """Does every row start at a multiple of 16 bytes, as the kernels read and write?"""
    return rows.data_ptr() % 16 == 0 and all(rows.stride(i) * rows.element_size() % 16 == 0 for i in (0, 1))


attend_linear = reference.attend_linear
attend_pages = reference.attend_pages
