"""Rotary embedding of queries and new keys, as flash-attention's `rotary_cos` and `rotary_sin` describe it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deepseek_flash_cache.checks import require


@dataclass(frozen=True)
class Rotary:
    cos: Tensor  # [positions, rotary_dim / 2]
    sin: Tensor
    interleaved: bool  # pairs (0, 1), (2, 3), ...; else (0, d / 2), (1, d / 2 + 1), ...

    def check(self, head_size: int) -> None:
        fits = self.cos.dim() == 2 and 0 < 2 * self.cos.shape[1] <= head_size
        accepted = f"[positions, rotary_dim / 2], rotary_dim at most {head_size}"
        require(fits, "rotary_cos shape", tuple(self.cos.shape), accepted)
        same = self.sin.shape == self.cos.shape
        require(same, "rotary_sin shape", tuple(self.sin.shape), f"{tuple(self.cos.shape)}, as rotary_cos has")

    def check_positions(self, positions: Tensor) -> None:
        last = int(positions.max()) if positions.numel() else 0
        first = int(positions.min()) if positions.numel() else 0
        inside = first >= 0 and last < self.cos.shape[0]
        require(inside, "rotary_cos positions", self.cos.shape[0], f"more than {last}, the last position")

    def apply(self, rows: Tensor, positions: Tensor) -> Tensor:
        """`rows` [..., heads, D] turned by the angles of their `positions` [...]; computed in fp32."""
        half = self.cos.shape[1]
        cos, sin = (table[positions].float()[..., None, :] for table in (self.cos, self.sin))
        turned, rest = rows[..., : 2 * half].float(), rows[..., 2 * half :]
        if self.interleaved:
            a, b = turned.unflatten(-1, (half, 2)).unbind(-1)
            turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
        return torch.cat((turned.to(rows.dtype), rest), dim=-1)
