"""The operations, registered once with torch.library under `dfc`; nothing else calls the compiled code.

Shapes, dtypes and devices are checked by `checks`, values by the implementation; every failure is a ValueError and
leaves the tensors as they were. `registry` says which implementation serves which device. Settings, read at import:
DFC_FORCE_SPEC=1 runs the specification everywhere; DFC_CPU_ISA={portable,avx2,avx512}.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepseek_flash_cache.checks import require
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import cuda
from deepseek_flash_cache.ops import registry as registry
from deepseek_flash_cache.ops.binary import _C, why_no_binary
from deepseek_flash_cache.ops.binary import BUILD_COMMAND as BUILD_COMMAND
from deepseek_flash_cache.ops.binary import compiled as _compiled  # noqa: F401 - for tests
from deepseek_flash_cache.spec import Attention

OPERATIONS = ("append", "attend", "attend_linear", "attend_pages", "pack", "unpack", "copy_blocks")


def backend(op: str, device: torch.device | str, layout: Layout) -> str:
    """Which implementation of `op` will run for this layout, and why. ValueError for an unknown op."""
    require(op in OPERATIONS, "op", op, f"one of {', '.join(OPERATIONS)}")
    kind = torch.device(device).type
    if kind == "cuda":
        return cuda.backend(op, torch.device(device), layout)
    if kind != "cpu":
        return f"spec (PyTorch): no compiled {op} for {kind} devices yet"
    if _C is None:
        return f"spec (PyTorch): {why_no_binary}"
    if not op.startswith("attend"):
        return "C++"
    if op != "attend":
        return f"C++ ({_C.isa()})"
    if layout.tile_format == "swizzle":
        return "spec (PyTorch): swizzled tiles are for CUDA pools; the CPU kernels read linear and paired ones"
    return f"C++ ({_C.isa()}); spec where statistics (top_tokens > 0) are asked for"


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


def _results(query: Tensor, columns: int, out: Tensor | None, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Where the results go."""
    require(query.dim() == 3, "query shape", tuple(query.shape), "[tokens, heads, head_size]")
    if query.requires_grad and torch.is_grad_enabled():
        raise ValueError("query: needs gradients, and these operations have none; call them under torch.no_grad()")
    total, heads = query.shape[0], query.shape[1]
    out = query.new_empty(total, heads, columns) if out is None else out
    return out, query.new_empty(heads, total, dtype=torch.float32) if return_lse else None


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
    max_seqlen_q: int = 0,
) -> Attention:
    """Attention of ragged queries over the paged history. See `spec.attend`.

    A row that sees no key (kv_len 0, fully masked) gives out = 0 and LSE = -inf. `lse` of the result is None unless
    asked for; `entropy` and `top_mass` are there with `top_tokens` > 0. `max_seqlen_q` tells the CUDA kernels the most
    query rows of a sequence, 0 if unknown: a wrong number costs time, never correctness.
    """
    out, lse = _results(query, layout.head_size_v, out, return_lse)
    total, heads = query.shape[0], query.shape[1]
    entropy, top_mass = query.new_empty(2, total, heads, dtype=torch.float32) if top_tokens > 0 else (None, None)
    torch.ops.dfc.attend(
        query, cache, block_table, cu_seqlens_q, kv_lens, sinks, layout.id, softmax_scale, causal, window_left,
        window_right, softcap, k_scale, v_scale, top_tokens, out, lse, entropy, top_mass, max_seqlen_q,
    )  # fmt: skip
    return Attention(out, lse, entropy, top_mass)


def attend_linear(
    query: Tensor,  # [T, H, D]
    key: Tensor,  # [Tk, Hkv, D]
    value: Tensor,  # [Tk, Hkv, Dv]
    cu_seqlens_q: Tensor,  # int32 [B + 1]
    cu_seqlens_k: Tensor,  # int32 [B + 1]
    kv_lens: Tensor | None = None,  # int32 [B]
    *,
    softmax_scale: float,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # [H]
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,  # [T, H, Dv], written
    return_lse: bool = False,
) -> Attention:
    """Attention over ragged plain rows of any strides, read where they are. See `spec.attend_linear`."""
    require(value.dim() == 3, "value shape", tuple(value.shape), "[tokens, kv_heads, head_size_v]")
    out, lse = _results(query, value.shape[2], out, return_lse)
    torch.ops.dfc.attend_linear(
        query, key, value, cu_seqlens_q, cu_seqlens_k, kv_lens, sinks, softmax_scale, causal, window_left, window_right,
        softcap, k_scale, v_scale, out, lse,
    )  # fmt: skip
    return Attention(out, lse)


def attend_pages(
    query: Tensor,  # [T, H, D]
    key: Tensor,  # [N, P, Hkv, D]
    value: Tensor,  # [N, P, Hkv, Dv]
    block_table: Tensor,  # int32 [B, max_blocks]
    cu_seqlens_q: Tensor,  # int32 [B + 1]
    kv_lens: Tensor,  # int32 [B]
    first_keys: Tensor | None = None,  # int32 [B]
    *,
    softmax_scale: float,
    causal: bool = True,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # [H]
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: Tensor | None = None,  # [T, H, Dv], written
    return_lse: bool = False,
) -> Attention:
    """Attention over pages of plain rows, of any page size and strides. See `spec.attend_pages`."""
    require(value.dim() == 4, "value shape", tuple(value.shape), "[blocks, page_size, kv_heads, head_size_v]")
    out, lse = _results(query, value.shape[3], out, return_lse)
    torch.ops.dfc.attend_pages(
        query, key, value, block_table, cu_seqlens_q, kv_lens, first_keys, sinks, softmax_scale, causal, window_left,
        window_right, softcap, k_scale, v_scale, out, lse,
    )  # fmt: skip
    return Attention(out, lse)


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
