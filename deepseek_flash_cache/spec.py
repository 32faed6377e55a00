"""The specification: plain PyTorch that defines the result of every operation, on any device, in fp32.

Written to be read. It is also what runs wherever no compiled operation applies. Shapes in comments:
T tokens, B sequences, H query heads, Hkv kv heads, D head size, Dv value head size, P page tokens.

Edge rules, identical in every implementation: slot -1 is skipped; of several rows for one slot the last wins; a
row with no visible key gives out = 0 and LSE = -inf; query row i stands at position kv_len - q_len + i; nothing
past ceil(kv_len / P) of a block table row is read; NaN in an unread slot never reaches an output.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepseek_flash_cache.checks import (
    FP8_DTYPES,
    check_append,
    check_attend,
    check_cache,
    check_copy_blocks,
    check_key_value,
    check_length,
    check_mask,
    check_scales,
    require,
)
from deepseek_flash_cache.layout import Layout, Part

# Integer types for moving stored elements without reading them as numbers: fp8 has no indexing everywhere.
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


# append


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
    check_scales(layout, k_scale=k_scale, v_scale=v_scale)
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
    return cache.view(_RAW[cache.element_size()]).view(cache.shape[0], layout.num_kv_heads, layout.head_elements)


def _write_rows(cache: Tensor, layout: Layout, part: Part, block: Tensor, token: Tensor, rows: Tensor) -> None:
    heads = torch.arange(layout.num_kv_heads, device=cache.device)[None, :, None]
    columns = layout.head_index(part, cache.device)[token][:, None, :]
    _raw_runs(cache, layout)[block[:, None, None], heads, columns] = rows.contiguous().view(_RAW[rows.element_size()])


# attend


@dataclass(frozen=True)
class Attention:
    """Results of `attend`.

    out : [T, H, Dv], dtype of the query
    lse : float32 [H, T], natural log of the sum of exp(logit) over the visible keys; sinks are not part of it.
        None where it was not asked for (`ops.attend`); the specification always computes it
    entropy : float32 [T, H], nats, of the distribution over visible keys (with sinks: of the mass the keys got)
    top_mass : float32 [T, H], share of probability on the `top_tokens` heaviest keys
    """

    out: Tensor
    lse: Tensor | None
    entropy: Tensor | None = None
    top_mass: Tensor | None = None


def attend(
    query: Tensor,  # [T, H, D]
    cache: Tensor,  # [num_blocks, Hkv, tiles, block_size, tile_columns]
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
) -> Attention:
    """Attention of ragged queries over the paged history: prefill, chunks, decode and mixed batches alike.

    Query row i of a sequence stands at position p = kv_len - q_len + i (bottom-right). It sees key j if
    j <= p (causal), j >= p - window_left and j <= p + window_right (inclusive; -1 lifts the limit; causal implies
    window_right 0). Logits are softmax_scale * q.k, then softcap * tanh(logit / softcap) if softcap > 0; a sink adds
    exp(sink) to the denominator of its head. With `top_tokens` > 0 the statistics are computed too.

    Rows of `query` past cu_seqlens_q[-1] belong to no sequence: out = 0, LSE = -inf. Length 0 is legal everywhere.

    Raises
    ------
    ValueError
        Wrong shape, dtype or device; cu_seqlens_q that decreases or passes T; kv_len negative or beyond the table;
        a table entry in use outside the pool; NaN scales.
    """
    check_attend(query, cache, block_table, cu_seqlens_q, kv_lens, sinks, layout)
    check_mask(softmax_scale, window_left, window_right, softcap)
    check_scales(layout, k_scale=k_scale, v_scale=v_scale)
    starts, lengths = cu_seqlens_q.tolist(), kv_lens.tolist()
    _check_ragged(starts, lengths, query.shape[0], block_table, cache, layout)
    total, heads = query.shape[:2]
    out = query.new_zeros(total, heads, layout.head_size_v)
    lse = torch.full((heads, total), -torch.inf, device=query.device)
    entropy, top_mass = torch.zeros(2, total, heads, device=query.device)
    for b, kv_len in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        q = query[rows].float()
        key, value = gather(cache, block_table[b], kv_len, layout, k_scale, v_scale)
        visible = _visible(q.shape[0], kv_len, causal, window_left, window_right, q.device)
        logits = _logits(q, key, softmax_scale, softcap).masked_fill(~visible, -torch.inf)
        probabilities, lse[:, rows] = _softmax(logits, sinks)
        out[rows] = _weighted_sum(probabilities, value, visible).to(out.dtype)
        if top_tokens:
            entropy[rows], top_mass[rows] = _statistics(probabilities, top_tokens)
    return Attention(out, lse, entropy, top_mass) if top_tokens else Attention(out, lse)


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


def _check_ragged(
    starts: list[int], lengths: list[int], total: int, block_table: Tensor, cache: Tensor, layout: Layout
) -> None:
    ordered = starts[0] == 0 and all(a <= b for a, b in pairwise(starts)) and starts[-1] <= total
    require(ordered, "cu_seqlens_q", starts, f"0 first, never decreasing, at most {total} (the query rows)")
    capacity = block_table.shape[1] * layout.page_tokens
    for b, kv_len in enumerate(lengths):
        require(0 <= kv_len <= capacity, f"kv_lens[{b}]", kv_len, f"in [0, {capacity}], what block_table can hold")
        for index, block in enumerate(block_table[b, : -(-kv_len // layout.page_tokens)].tolist()):
            inside = 0 <= block < cache.shape[0]
            require(inside, f"block_table[{b}, {index}]", block, f"in [0, {cache.shape[0]}), the pool's blocks")


def _visible(
    q_len: int, kv_len: int, causal: bool, window_left: int, window_right: int, device: torch.device
) -> Tensor:
    """bool [q_len, kv_len]: which keys each query row sees."""
    distance = torch.arange(kv_len, device=device) - (kv_len - q_len + torch.arange(q_len, device=device))[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if window_left >= 0:
        visible &= distance >= -window_left
    limit = 0 if causal else window_right
    return visible & (distance <= limit) if limit >= 0 else visible


def _logits(q: Tensor, key: Tensor, softmax_scale: float, softcap: float) -> Tensor:
    """[H, q_len, kv_len]; query head h reads kv head h // (H / Hkv)."""
    key = key.repeat_interleave(q.shape[1] // key.shape[1], dim=1)
    logits = torch.einsum("qhd,khd->hqk", q, key) * softmax_scale
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def _softmax(logits: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities [H, q_len, kv_len] and LSE [H, q_len]; rows without visible keys get 0 and -inf."""
    lse = torch.logsumexp(logits, dim=-1)
    normaliser = lse if sinks is None else torch.logaddexp(lse, sinks.float()[:, None].expand_as(lse))
    probabilities = torch.exp(logits - normaliser[..., None])
    return probabilities.masked_fill((lse == -torch.inf)[..., None], 0.0), lse


def _weighted_sum(probabilities: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """[q_len, H, Dv]. Keys no row may see are zeroed first: 0 * NaN would be NaN."""
    value = value.masked_fill(~visible.any(dim=0)[:, None, None], 0.0)
    value = value.repeat_interleave(probabilities.shape[0] // value.shape[1], dim=1)
    return torch.einsum("hqk,khd->qhd", probabilities, value)


def _statistics(probabilities: Tensor, top_tokens: int) -> tuple[Tensor, Tensor]:
    """Entropy in nats and mass of the heaviest `top_tokens` keys, both [q_len, H]."""
    entropy = torch.special.entr(probabilities).sum(dim=-1)
    top = probabilities.topk(min(top_tokens, probabilities.shape[-1]), dim=-1).values.sum(dim=-1)
    return entropy.T, top.T


# pack, unpack, copy_blocks


def pack(key: Tensor, value: Tensor, layout: Layout, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """Reorder a linear cache, key [L, Hkv, D] and value [L, Hkv, Dv], into ceil(L / P) new pages.

    Slots past L hold zeros. With `layout.whole(L)` the whole cache is one page, in Z-order over its tile grid.
    """
    check_key_value(key, value, layout, key.device)
    pages = layout.cache_shape(-(-key.shape[0] // layout.page_tokens))
    cache = torch.zeros(pages, dtype=_RAW[layout.dtype.itemsize], device=key.device).view(layout.dtype)
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
