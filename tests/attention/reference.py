"""Attention in float64 for the flash-attention functions: torch's own SDPA with a mask, by hand where softcap is on."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def hidden_keys(q_len: int, k_len: int, causal: bool = False, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    """bool [q_len, k_len]: FlashAttention's words, bottom-right and inclusive on both sides."""
    i, j = torch.arange(q_len)[:, None], torch.arange(k_len)[None, :]
    left, right = window_size
    hidden = j > i + k_len - q_len if causal else torch.zeros(q_len, k_len, dtype=torch.bool)
    if left >= 0:
        hidden |= j < i + k_len - q_len - left
    if right >= 0:
        hidden |= j > i + k_len - q_len + right
    return hidden


def attention(
    q: Tensor,  # [S, H, D]
    k: Tensor,  # [Sk, Hkv, D]
    v: Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    softmax_scale: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """out [S, H, Dv] and LSE [H, S] in float64."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    hidden = hidden_keys(len(q), len(k), causal, window_size)
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    if k.shape[1] == 0:
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[2]), q.new_full(q.shape[:2], -math.inf)
    logits = q @ k.transpose(1, 2) * scale
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    logits = logits.masked_fill(hidden, -math.inf)
    lse = torch.logsumexp(logits, 2)
    if softcap or sinks is not None:
        total = lse if sinks is None else torch.logaddexp(lse, sinks.double()[:, None])
        out = torch.exp(logits - total[..., None]) @ v
    else:
        out = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=~hidden, scale=scale)[0]
    empty = hidden.all(dim=1)[None, :, None]
    return out.masked_fill(empty, 0.0).transpose(0, 1), lse


def ragged_attention(q, keys, values, starts, **options):
    """The same for sequences: keys and values are lists, rows of q past the last start are none's."""
    heads = q.shape[1]
    outs = torch.zeros(len(q), heads, values[0].shape[-1], dtype=torch.float64)
    lses = torch.full((heads, len(q)), -math.inf, dtype=torch.float64)
    for b, (key, value) in enumerate(zip(keys, values, strict=True)):
        rows = slice(int(starts[b]), int(starts[b + 1]))
        outs[rows], lses[:, rows] = attention(q[rows], key, value, **options)
    return outs, lses
