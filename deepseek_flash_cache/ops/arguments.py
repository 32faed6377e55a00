"""What the compiled operations are called with: addresses, strides and sizes of tensors, as csrc/api binds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import checks
from deepseek_flash_cache.ops.binary import DTYPE_CODES

RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}  # fp8 cannot be filled everywhere


def address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def rows(tensor: Tensor) -> tuple[int, int, int]:
    """Address and the strides of tokens and heads."""
    return tensor.data_ptr(), tensor.stride(-3), tensor.stride(-2)


def table(block_table: Tensor) -> tuple[int, int, int]:
    return block_table.data_ptr(), block_table.stride(0), block_table.shape[1]


def check_pool(*tensors: Any) -> None:
    *inputs, out, lse, layout = tensors
    checks.check_attend(*(*inputs, layout))
    checks.check_results(inputs[0], out, lse, layout.head_size_v)


def attend_call(a: Any) -> tuple[Any, ...]:
    """What to keep alive during the call, then what every kind of attention passes on."""
    checks.check_mask(a.softmax_scale, a.window_left, a.window_right, a.softcap)
    starts, lengths = a.cu_seqlens_q.contiguous(), None if a.kv_lens is None else a.kv_lens.contiguous()
    sinks = None if a.sinks is None else a.sinks.float().contiguous()
    query = DTYPE_CODES[a.query.dtype], rows(a.query), a.query.shape[0], a.query.shape[1]
    sequences = starts.shape[0] - 1, starts.data_ptr(), address(lengths)
    mask = a.softmax_scale, a.causal, a.window_left, a.window_right, a.softcap, address(sinks)
    results = rows(a.out), address(a.lse), torch.get_num_threads()
    return (starts, lengths, sinks), query, sequences, mask, a.k_scale, a.v_scale, results
