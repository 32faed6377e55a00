"""Sparse decode: the gate's side data, scores, the choice of tokens, and attention over the chosen ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepseek_flash_cache.checks import check_cache, check_index, require
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse.gates import GROUP_TOKENS, Gate, History
from deepseek_flash_cache.spec.attention import Attention, attend_linear
from deepseek_flash_cache.spec.storage import gather

SINK_TOKENS = 16
RECENT_TOKENS = 64


@dataclass(frozen=True)
class Selection:
    """Which tokens each (row, kv head) reads.

    tokens : int32 [B, Hkv, width], positions in the sequence, ascending; entries past the selected ones are -1
    counts : int32 [B, Hkv], the selected ones; kv_len: the row reads everything and lists nothing
    missed_mass : float32 [B, Hkv], estimated attention of the tokens left out; 0 where all are read
    fell_back : bool [B, Hkv], scores were NaN and all tokens are read
    """

    tokens: Tensor
    counts: Tensor
    missed_mass: Tensor
    fell_back: Tensor


def gate_shape(num_blocks: int, layout: Layout, gate: Gate) -> tuple[int, int, int, int]:
    """Side data of a pool: uint8 [num_blocks, Hkv, groups per page, record bytes], block i beside block i."""
    groups = layout.page_tokens // GROUP_TOKENS
    return num_blocks, layout.num_kv_heads, groups, gate.record_bytes(layout)


def summarise(
    cache: Tensor, gate_data: Tensor, slot_mapping: Tensor, layout: Layout, gate: Gate, k_scale: float = 1.0
) -> None:
    """Write the records of every group of 64 slots whose last slot is in `slot_mapping`; the second half of `append`.

    A sequence fills a group in order, so the other 63 slots hold its tokens by then. Whoever rewrites a slot of a full
    group rewrites the group to its end. Groups that are not full are never read.
    """
    check_gate_data(cache, gate_data, layout, gate)
    last = slot_mapping[(slot_mapping >= 0) & (slot_mapping % GROUP_TOKENS == GROUP_TOKENS - 1)].unique()
    if not last.numel():
        return
    block, group = last // layout.page_tokens, last % layout.page_tokens // GROUP_TOKENS
    pages = torch.stack([gather(cache, b.view(1), layout.page_tokens, layout, k_scale)[0] for b in block])
    keys = pages.unflatten(1, (-1, GROUP_TOKENS))[torch.arange(len(last)), group]  # [groups, 64, Hkv, D]
    gate_data[block, :, group] = gate.summarise(keys)


def score(
    query: Tensor,  # [B, H, D], one row per sequence
    cache: Tensor,
    gate_data: Tensor,  # gate_shape(num_blocks, layout, gate)
    block_table: Tensor,  # int32 [B, max_blocks]
    kv_lens: Tensor,  # int32 [B]
    layout: Layout,
    gate: Gate,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    k_scale: float = 1.0,
) -> Tensor:
    """Estimated attention mass float32 [B, Hkv, max(kv_lens)]: a row sums to 1 over its tokens and is 0 past them."""
    check_gate_data(cache, gate_data, layout, gate)
    lengths = kv_lens.tolist()
    mass = torch.zeros(len(lengths), layout.num_kv_heads, max(lengths, default=0), device=query.device)
    for b, length in enumerate(lengths):
        if not length:
            continue
        key, _ = gather(cache, block_table[b], length, layout, k_scale)
        pages = block_table[b, : -(-length // layout.page_tokens)].long()
        records = gate_data[pages].transpose(1, 2).flatten(0, 1)[: length // GROUP_TOKENS]  # [groups, Hkv, bytes]
        mass[b, :, :length] = gate.mass(query[b].float(), History(records, key), softmax_scale, softcap)
    return mass


def select(
    mass: Tensor,  # float32 [B, Hkv, N], not negative
    kv_lens: Tensor,  # int32 [B]
    budgets: Tensor,  # int32 [B]
    width: int,
    protect: Tensor | None = None,  # bool [B, N]
) -> Selection:
    """The `budgets[b]` heaviest tokens of each (row, kv head), the first 16 and last 64 always among them.

    Next come the tokens of `protect`, then the heaviest; ties go to the lowest position. Budgets below 80 mean 80. A
    budget of kv_len or more reads everything, and so does a row whose scores hold a NaN. ValueError for a budget in use
    that is more than `width`, the room for positions.
    """
    lengths, wanted = kv_lens.tolist(), budgets.tolist()
    tokens = torch.full((*mass.shape[:2], width), -1, dtype=torch.int32, device=mass.device)
    counts = kv_lens[:, None].repeat(1, mass.shape[1])
    missed = torch.zeros(mass.shape[:2], device=mass.device)
    fell_back = torch.zeros(mass.shape[:2], dtype=torch.bool, device=mass.device)
    for b, (length, budget) in enumerate(zip(lengths, wanted, strict=True)):
        require(0 <= length <= mass.shape[2], f"kv_lens[{b}]", length, f"in [0, {mass.shape[2]}], the scores given")
        count = max(budget, SINK_TOKENS + RECENT_TOKENS)
        if count >= length:
            continue
        require(count <= width, f"budgets[{b}]", budget, f"at most {width}, the width asked for")
        fell_back[b] = mass[b, :, :length].isnan().any(dim=-1)
        for h in range(mass.shape[1]):
            if fell_back[b, h]:
                continue
            chosen = _heaviest(mass[b, h, :length], count, None if protect is None else protect[b, :length])
            tokens[b, h, :count], counts[b, h] = chosen.int(), count
            missed[b, h] = (1.0 - mass[b, h, chosen].sum()).clamp(min=0.0)
    return Selection(tokens, counts, missed, fell_back)


def _heaviest(mass: Tensor, count: int, protect: Tensor | None) -> Tensor:
    """Ascending positions of `count` tokens of one row."""
    rank = mass if protect is None else mass.masked_fill(protect, 2.0)  # masses are at most 1
    position = torch.arange(len(mass), device=mass.device)
    ends = (position < SINK_TOKENS) | (position >= len(mass) - RECENT_TOKENS)
    order = rank.masked_fill(ends, 3.0).sort(descending=True, stable=True).indices
    return order[:count].sort().values


def attend_selected(
    query: Tensor,  # [B, H, D], one row per sequence
    cache: Tensor,
    block_table: Tensor,  # int32 [B, max_blocks]
    kv_lens: Tensor,  # int32 [B]
    tokens: Tensor,  # int32 [B, Hkv, S]
    counts: Tensor,  # int32 [B, Hkv]
    layout: Layout,
    *,
    softmax_scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # [H]
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Attention:
    """`attend` of decode rows over the selected tokens only: what the others hold does not matter.

    A count of kv_len reads everything. ValueError for another count outside [0, S] or a selected position outside
    [0, kv_len).
    """
    check_selection(tokens, counts, kv_lens, layout)
    group = query.shape[1] // layout.num_kv_heads
    out = query.new_zeros(query.shape[0], query.shape[1], layout.head_size_v)
    lse = torch.full((query.shape[1], query.shape[0]), -torch.inf, device=query.device)
    for b, length in enumerate(kv_lens.tolist()):
        key, value = gather(cache, block_table[b], length, layout, k_scale, v_scale)
        for h in range(layout.num_kv_heads):
            count, heads = int(counts[b, h]), slice(h * group, (h + 1) * group)
            chosen = torch.arange(length, device=query.device) if count == length else tokens[b, h, :count].long()
            starts = [torch.tensor([0, end], dtype=torch.int32, device=query.device) for end in (1, len(chosen))]
            rows = query[b : b + 1, heads].float(), key[chosen, h : h + 1], value[chosen, h : h + 1]
            sink = None if sinks is None else sinks[heads]
            part = attend_linear(*rows, *starts, softmax_scale=softmax_scale, softcap=softcap, sinks=sink)
            assert part.lse is not None
            out[b, heads], lse[heads, b] = part.out[0].to(out.dtype), part.lse[:, 0]
    return Attention(out, lse)


def check_selection(tokens: Tensor, counts: Tensor, kv_lens: Tensor, layout: Layout) -> None:
    batch, heads = kv_lens.shape[0], layout.num_kv_heads
    check_index("tokens", tokens, torch.int32, (batch, heads, None), kv_lens)
    check_index("counts", counts, torch.int32, (batch, heads), kv_lens)
    width = tokens.shape[2]
    listed = torch.where(counts == kv_lens[:, None], 0, counts)
    require(bool(((listed >= 0) & (listed <= width)).all()), "counts", counts.tolist(), f"kv_len or in [0, {width}]")
    used = torch.arange(width, device=tokens.device) < listed[..., None]
    inside = (tokens >= 0) & (tokens < kv_lens[:, None, None])
    require(bool((inside | ~used).all()), "tokens", "a position outside its sequence", "in [0, kv_len)")


def check_gate_data(cache: Tensor, gate_data: Tensor, layout: Layout, gate: Gate) -> None:
    check_cache(cache, layout)
    reason = gate.unsupported(layout)
    require(not reason, "layout", layout.id, f"one that gate {gate.name} serves: {reason}")
    expected = gate_shape(cache.shape[0], layout, gate)
    fits = tuple(gate_data.shape) == expected and gate_data.dtype == torch.uint8 and gate_data.is_contiguous()
    require(fits, "gate_data", f"{gate_data.dtype} {tuple(gate_data.shape)}", f"contiguous uint8 {expected}")
