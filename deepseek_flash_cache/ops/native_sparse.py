"""Sparse decode on CPUs: check, then hand raw pointers to the compiled code; the specification where there is none.

Arguments come in the order of the schemas in `sparse`. Compiled scoring serves the gate `sketch2`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import checks
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops.arguments import address, rows, table
from deepseek_flash_cache.ops.binary import _C, DTYPE_CODES, compiled
from deepseek_flash_cache.sparse.gates import gate_named
from deepseek_flash_cache.spec import selection as spec

COMPILED_GATE = "sketch2"


def summarise(cache: Tensor, gate_data: Tensor, slots: Tensor, layout: str, gate: str, k_scale: float) -> None:
    if _C is None or gate != COMPILED_GATE:
        summarise_by_spec(cache, gate_data, slots, layout, gate, k_scale)
        return
    parsed = Layout.parse(layout)
    checks.check_once(_check_pool, parsed, cache, gate_data)
    checks.check_index("slot_mapping", slots, torch.int64, (None,), cache)
    slots = slots.contiguous()
    pool = cache.data_ptr(), cache.shape[0], gate_data.data_ptr()
    _C.summarise(compiled(layout), *pool, slots.data_ptr(), slots.shape[0], k_scale, torch.get_num_threads())


def score(*arguments: Any) -> None:
    query, cache, gate_data, block_table, kv_lens, layout, gate, softmax_scale, softcap, k_scale, mass = arguments
    if _C is None or gate != COMPILED_GATE:
        score_by_spec(*arguments)
        return
    parsed = Layout.parse(layout)
    checks.check_once(_check_score, parsed, query, cache, gate_data, block_table, kv_lens, mass)
    checks.check_mask(softmax_scale, -1, -1, softcap)
    lengths = kv_lens.contiguous()
    pool = cache.data_ptr(), cache.shape[0], gate_data.data_ptr(), table(block_table), lengths.data_ptr()
    states = DTYPE_CODES[query.dtype], rows(query), query.shape[0], query.shape[1]
    scales = softmax_scale, softcap, k_scale
    _C.score(compiled(layout), *pool, states, *scales, mass.data_ptr(), mass.shape[2], torch.get_num_threads())


def select(*arguments: Any) -> None:
    mass, kv_lens, budgets, protect, tokens, counts, missed, fell_back = arguments
    if _C is None:
        select_by_spec(*arguments)
        return
    checks.check_once(_check_select, None, mass, kv_lens, budgets, protect)
    scores = mass.data_ptr(), mass.shape[2], mass.shape[0], mass.shape[1]
    results = tokens.data_ptr(), tokens.shape[2], counts.data_ptr(), missed.data_ptr(), fell_back.data_ptr()
    kept = kv_lens.contiguous(), budgets.contiguous(), None if protect is None else protect.contiguous()
    _C.select(scores, *(address(tensor) for tensor in kept), results, torch.get_num_threads())


# The specification, which is also what every device but the CPU gets


def summarise_by_spec(cache: Tensor, gate_data: Tensor, slots: Tensor, layout: str, gate: str, k_scale: float) -> None:
    spec.summarise(cache, gate_data, slots, Layout.parse(layout), gate_named(gate), k_scale)


def score_by_spec(*arguments: Any) -> None:
    query, cache, gate_data, block_table, kv_lens, layout, gate, softmax_scale, softcap, k_scale, mass = arguments
    options = {"softmax_scale": softmax_scale, "softcap": softcap, "k_scale": k_scale}
    pool = query, cache, gate_data, block_table, kv_lens, Layout.parse(layout)
    found = spec.score(*pool, gate_named(gate), **options)
    mass[..., : found.shape[2]] = found


def select_by_spec(*arguments: Any) -> None:
    mass, kv_lens, budgets, protect, tokens, *others = arguments
    found = spec.select(mass, kv_lens, budgets, tokens.shape[2], protect)
    results = found.tokens, found.counts, found.missed_mass, found.fell_back
    for target, source in zip((tokens, *others), results, strict=True):
        target.copy_(source)


def _check_pool(cache: Tensor, gate_data: Tensor, layout: Layout) -> None:
    spec.check_gate_data(cache, gate_data, layout, gate_named(COMPILED_GATE))


def _check_score(*tensors: Any) -> None:
    query, cache, gate_data, block_table, kv_lens, mass, layout = tensors
    _check_pool(cache, gate_data, layout)
    batch = kv_lens.shape[0]
    starts = torch.empty(batch + 1, dtype=torch.int32, device=cache.device)
    checks.check_attend(query, cache, block_table, starts, kv_lens, None, layout)
    checks.require(query.shape[0] == batch, "query rows", query.shape[0], f"{batch}, one per sequence")
    fits = mass.shape[:2] == (batch, layout.num_kv_heads) and mass.dtype == torch.float32 and mass.is_contiguous()
    checks.require(fits, "mass shape", tuple(mass.shape), f"contiguous float32 [{batch}, {layout.num_kv_heads}, any]")


def _check_select(mass: Tensor, kv_lens: Tensor, budgets: Tensor, protect: Tensor | None) -> None:
    fits = mass.dim() == 3 and mass.dtype == torch.float32 and mass.is_contiguous()
    checks.require(fits, "mass", f"{mass.dtype} {tuple(mass.shape)}", "contiguous float32 [batch, kv_heads, tokens]")
    for name, index in (("kv_lens", kv_lens), ("budgets", budgets)):
        checks.check_index(name, index, torch.int32, (mass.shape[0],), mass)
    if protect is not None:
        checks.check_index("protect", protect, torch.bool, (mass.shape[0], mass.shape[2]), mass)
