"""`sketch2`, the default: a 2-bit copy of the keys, quantised per channel in groups of 64 tokens.

Per-channel quantisation follows KIVI (arXiv 2402.02750): keys have outlier channels, so a scale per token loses them.
The query side is rounded to 8 bits per group, as the integer units multiply it.

Record of one (group, kv head), 20 * D bytes:

    min fp16 [D] | scale fp16 [D] | codes, uint32 [4 token sixteenths][D / 16][16 tokens]

The dword of (16 channels from 16 * cb, one token) holds the code of channel 16 * cb + 4 * j + b in bits 8 * b + 2 * j,
so that (dword >> 2 * j) & 0x03030303 is four neighbouring channels, one per byte: what dot-product units take.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse.gates.base import GROUP_TOKENS, Gate, History

_LEVELS = 3  # codes 0..3
_MOST = 127.0  # largest weight
_CENTRE = 1.5  # mean code: rounding errors of the weights are charged at it, which removes their bias
_CHANNELS = 16  # per dword
_TOKENS = 16  # neighbouring dwords


class Sketch2Gate(Gate):
    name: ClassVar[str] = "sketch2"

    def unsupported(self, layout: Layout) -> str:
        if layout.head_size % _CHANNELS:
            return f"head size {layout.head_size}; the key sketch needs multiples of {_CHANNELS}"
        return super().unsupported(layout)

    def record_bytes(self, layout: Layout) -> int:
        return 2 * 2 * layout.head_size + GROUP_TOKENS * layout.head_size // 4

    def summarise(self, key: Tensor) -> Tensor:
        low, high = key.amin(dim=1), key.amax(dim=1)  # [groups, Hkv, D]
        least, scale = low.half(), ((high - low) / _LEVELS).half()
        inverse = torch.where(scale > 0, 1.0 / scale.float(), 0.0)
        codes = ((key - least.float()[:, None]) * inverse[:, None]).round().clamp(0, _LEVELS).nan_to_num(0.0)
        # Keys that fp16 cannot bound have no sketch: a NaN makes every score of this head NaN, and the row reads all.
        bounded = (least.isfinite() & scale.isfinite()).all(dim=-1, keepdim=True)
        least = least.masked_fill(~bounded, torch.nan)
        parts = least, scale.nan_to_num(0.0, 0.0, 0.0), _packed(codes.to(torch.int32))
        return torch.cat([part.contiguous().view(torch.uint8).flatten(2) for part in parts], dim=-1)

    def closed_logits(self, query: Tensor, history: History) -> Tensor:
        least, scale, codes = unpacked(history.records, query.shape[-1])  # [groups, Hkv, D] and [groups, 64, Hkv, D]
        scaled = query * scale[:, :, None]  # [groups, Hkv, G, D]
        largest = scaled.abs().amax(dim=-1, keepdim=True)
        to_weights = torch.full_like(largest, _MOST) / largest  # 127.0 / largest would round twice
        weights = torch.where(largest > 0, (scaled * to_weights).round(), 0.0)
        step = largest / _MOST
        constant = (query * least[:, :, None] + _CENTRE * (scaled - step * weights)).sum(dim=-1)
        sums = torch.einsum("nhgd,nthd->nhgt", weights, codes)  # integers, exact in fp32
        logits = constant[..., None] + step * sums
        return logits.permute(1, 2, 0, 3).flatten(2)


def _packed(codes: Tensor) -> Tensor:
    """int32 codes [groups, 64, Hkv, D] -> int32 dwords [groups, Hkv, 4, D / 16, 16]."""
    groups, tokens, heads, columns = codes.shape
    split = codes.view(groups, tokens // _TOKENS, _TOKENS, heads, columns // _CHANNELS, 4, 4)  # ..., j, b
    shifts = 8 * torch.arange(4) + 2 * torch.arange(4)[:, None]  # [j, b]
    dwords = (split << shifts.to(codes.device, torch.int32)).sum(dim=(-2, -1), dtype=torch.int32)
    return dwords.permute(0, 3, 1, 4, 2)


def unpacked(records: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Minimum and scale float32 [groups, Hkv, D], codes float32 [groups, 64, Hkv, D] of records."""
    least, scale, packed = records.split([2 * columns, 2 * columns, GROUP_TOKENS * columns // 4], dim=-1)
    dwords = packed.contiguous().view(torch.int32).unflatten(-1, (-1, columns // _CHANNELS, _TOKENS))
    shifts = (8 * torch.arange(4) + 2 * torch.arange(4)[:, None]).to(records.device, torch.int32)
    codes = (dwords[..., None, None] >> shifts) & _LEVELS  # [groups, Hkv, 4, D / 16, 16, j, b]
    codes = codes.permute(0, 2, 4, 1, 3, 5, 6).reshape(records.shape[0], GROUP_TOKENS, records.shape[1], columns)
    least, scale = (part.contiguous().view(torch.float16).float() for part in (least, scale))
    return least, scale, codes.float()
