"""Sparse decode as operations: side data, scores, selection, attention over the selected. See `spec.selection`."""

from __future__ import annotations

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops import native_sparse
from deepseek_flash_cache.ops.registry import register
from deepseek_flash_cache.spec.selection import Selection, gate_shape

__all__ = ["Selection", "gate_shape", "score", "select", "summarise"]

register(
    "summarise(Tensor cache, Tensor(a!) gate_data, Tensor slot_mapping, str layout, str gate, float k_scale) -> ()",
    native_sparse.summarise, native_sparse.summarise_by_spec, native_sparse.summarise_by_spec,
)  # fmt: skip
register(
    "score(Tensor query, Tensor cache, Tensor gate_data, Tensor block_table, Tensor kv_lens, str layout, str gate,"
    " float softmax_scale, float softcap, float k_scale, Tensor(a!) mass) -> ()",
    native_sparse.score, native_sparse.score_by_spec, native_sparse.score_by_spec,
)  # fmt: skip
register(
    "select(Tensor mass, Tensor kv_lens, Tensor budgets, Tensor? protect, Tensor(a!) tokens, Tensor(b!) counts,"
    " Tensor(c!) missed_mass, Tensor(d!) fell_back) -> ()",
    native_sparse.select, native_sparse.select_by_spec, native_sparse.select_by_spec,
)  # fmt: skip


def summarise(
    cache: Tensor, gate_data: Tensor, slot_mapping: Tensor, layout: Layout, gate: str, k_scale: float = 1.0
) -> None:
    """Write the side data of every group that `slot_mapping` fills; call it after `append`."""
    torch.ops.dfc.summarise(cache, gate_data, slot_mapping, layout.id, gate, k_scale)


def score(
    query: Tensor,  # [B, H, D]
    cache: Tensor,
    gate_data: Tensor,
    block_table: Tensor,  # int32 [B, max_blocks]
    kv_lens: Tensor,  # int32 [B]
    layout: Layout,
    gate: str,
    max_kv_len: int,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    k_scale: float = 1.0,
) -> Tensor:
    """Estimated attention mass float32 [B, Hkv, max_kv_len]; entries past a row's kv_len are undefined."""
    mass = torch.empty(query.shape[0], layout.num_kv_heads, max_kv_len, device=query.device)
    torch.ops.dfc.score(
        query, cache, gate_data, block_table, kv_lens, layout.id, gate, softmax_scale, softcap, k_scale, mass
    )
    return mass


def select(mass: Tensor, kv_lens: Tensor, budgets: Tensor, width: int, protect: Tensor | None = None) -> Selection:
    """The heaviest tokens of each (row, kv head), at most `width`."""
    batch, heads = mass.shape[:2]
    tokens = torch.empty(batch, heads, width, dtype=torch.int32, device=mass.device)
    counts = torch.empty(batch, heads, dtype=torch.int32, device=mass.device)
    missed_mass = torch.empty(batch, heads, device=mass.device)
    fell_back = torch.empty(batch, heads, dtype=torch.bool, device=mass.device)
    torch.ops.dfc.select(mass, kv_lens, budgets, protect, tokens, counts, missed_mass, fell_back)
    return Selection(tokens, counts, missed_mass, fell_back)
