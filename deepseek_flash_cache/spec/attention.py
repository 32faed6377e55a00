"""Attention over a pool, over ragged rows and over pages of plain rows: one meaning, three places to find keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from deepseek_flash_cache.checks import (
    check_attend,
    check_attend_linear,
    check_attend_pages,
    check_mask,
    check_scales,
)
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.spec.storage import RAW, gather
from deepseek_flash_cache.spec.values import check_owned, check_table, checked_starts


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
    check_scales(layout.dtype, k_scale=k_scale, v_scale=v_scale)
    lengths = kv_lens.tolist()
    starts = checked_starts("cu_seqlens_q", cu_seqlens_q, query.shape[0], "query")
    check_table(block_table, [0] * len(lengths), lengths, cache.shape[0], layout.page_tokens)

    def history(b: int) -> tuple[Tensor, Tensor]:
        return gather(cache, block_table[b], lengths[b], layout, k_scale, v_scale)

    mask = Mask(softmax_scale, causal, window_left, window_right, softcap, sinks)
    return _attend_rows(query, starts, history, layout.head_size_v, mask, top_tokens)


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
) -> Attention:
    """`attend` over plain rows: sequence b owns rows [cu_seqlens_k[b], cu_seqlens_k[b + 1]) of `key` and `value`.

    With `kv_lens` it uses only its first kv_lens[b] rows, and what the others hold does not matter. Any strides, with
    contiguous columns.
    """
    check_attend_linear(query, key, value, cu_seqlens_q, cu_seqlens_k, kv_lens, sinks)
    check_mask(softmax_scale, window_left, window_right, softcap)
    check_scales(key.dtype, k_scale=k_scale, v_scale=v_scale)
    starts = checked_starts("cu_seqlens_q", cu_seqlens_q, query.shape[0], "query")
    owned = checked_starts("cu_seqlens_k", cu_seqlens_k, key.shape[0], "key")
    lengths = [b - a for a, b in pairwise(owned)] if kv_lens is None else kv_lens.tolist()
    check_owned(lengths, owned)

    def history(b: int) -> tuple[Tensor, Tensor]:
        rows = slice(owned[b], owned[b] + lengths[b])
        return key[rows].float() * k_scale, value[rows].float() * v_scale

    mask = Mask(softmax_scale, causal, window_left, window_right, softcap, sinks)
    return _attend_rows(query, starts, history, value.shape[2], mask)


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
) -> Attention:
    """`attend` over pages of plain rows, of any size P, as flash-attention keeps them.

    With `first_keys` the keys of sequence b start at row first_keys[b] of its pages. A cache [B, S, Hkv, D] of a fixed
    length S per sequence is N = B pages of P = S rows and the table [[0], [1], ...].
    """
    check_attend_pages(query, key, value, block_table, cu_seqlens_q, kv_lens, first_keys, sinks)
    check_mask(softmax_scale, window_left, window_right, softcap)
    check_scales(key.dtype, k_scale=k_scale, v_scale=v_scale)
    starts = checked_starts("cu_seqlens_q", cu_seqlens_q, query.shape[0], "query")
    lengths = kv_lens.tolist()
    firsts = [0] * len(lengths) if first_keys is None else first_keys.tolist()
    check_table(block_table, firsts, lengths, key.shape[0], key.shape[1])

    def history(b: int) -> tuple[Tensor, Tensor]:
        token = torch.arange(firsts[b], firsts[b] + lengths[b], device=key.device)
        page, row = block_table[b].long()[token // key.shape[1]], token % key.shape[1]
        return _rows(key, page, row).float() * k_scale, _rows(value, page, row).float() * v_scale

    mask = Mask(softmax_scale, causal, window_left, window_right, softcap, sinks)
    return _attend_rows(query, starts, history, value.shape[3], mask)


def _rows(pages: Tensor, page: Tensor, row: Tensor) -> Tensor:
    """Row row[i] of page page[i]."""
    return pages.view(RAW[pages.element_size()])[page, row].view(pages.dtype)


@dataclass(frozen=True)
class Mask:
    """What a query row sees, and how its logits are made."""

    softmax_scale: float
    causal: bool
    window_left: int
    window_right: int
    softcap: float
    sinks: Tensor | None


def _attend_rows(
    query: Tensor,
    starts: list[int],
    history: Callable[[int], tuple[Tensor, Tensor]],  # K and V of a sequence in fp32, [L, Hkv, D] and [L, Hkv, Dv]
    head_size_v: int,
    mask: Mask,
    top_tokens: int = 0,
) -> Attention:
    """The same for every place where keys and values may lie."""
    total, heads = query.shape[:2]
    out = query.new_zeros(total, heads, head_size_v)
    lse = torch.full((heads, total), -torch.inf, device=query.device)
    entropy, top_mass = torch.zeros(2, total, heads, device=query.device)
    for b, (start, end) in enumerate(pairwise(starts)):
        rows = slice(start, end)
        key, value = history(b)
        visible = _visible(end - start, key.shape[0], mask, query.device)
        logits = _logits(query[rows].float(), key, mask).masked_fill(~visible, -torch.inf)
        probabilities, lse[:, rows] = _softmax(logits, mask.sinks)
        out[rows] = _weighted_sum(probabilities, value, visible).to(out.dtype)
        if top_tokens:
            entropy[rows], top_mass[rows] = _statistics(probabilities, top_tokens)
    return Attention(out, lse, entropy, top_mass) if top_tokens else Attention(out, lse)


def _visible(q_len: int, kv_len: int, mask: Mask, device: torch.device) -> Tensor:
    """bool [q_len, kv_len]: which keys each query row sees."""
    distance = torch.arange(kv_len, device=device) - (kv_len - q_len + torch.arange(q_len, device=device))[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if mask.window_left >= 0:
        visible &= distance >= -mask.window_left
    limit = 0 if mask.causal else mask.window_right
    return visible & (distance <= limit) if limit >= 0 else visible


def _logits(q: Tensor, key: Tensor, mask: Mask) -> Tensor:
    """[H, q_len, kv_len]; query head h reads kv head h // (H / Hkv)."""
    key = key.repeat_interleave(q.shape[1] // key.shape[1], dim=1)
    logits = torch.einsum("qhd,khd->hqk", q, key) * mask.softmax_scale
    return mask.softcap * torch.tanh(logits / mask.softcap) if mask.softcap else logits


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
