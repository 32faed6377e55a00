"""`literal`: the article's spatial gating module as it is written, kept to compare with and as a negative control.

A fixed seeded projection of all kv heads' keys to 128 dimensions (nothing is learned or stored but the seed), cosine in
fp32 on fp16 projections, softmax inside every window of 64 tokens, one selection for all kv heads. The softmax per
window makes every window compete with equal mass, and spreads the selection evenly over the context.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse.gates.base import GROUP_TOKENS, Gate, History

_SIZE = 128
_SEED = 20250101


@lru_cache(maxsize=32)
def _projection(columns: int) -> Tensor:
    """float32 [columns, 128], scaled so that it keeps lengths on average."""
    generator = torch.Generator().manual_seed(_SEED)
    normal: Tensor = torch.randn(columns, _SIZE, generator=generator)
    return normal * float(_SIZE**-0.5)


class LiteralGate(Gate):
    name: ClassVar[str] = "literal"

    def record_bytes(self, layout: Layout) -> int:
        return -(-GROUP_TOKENS * _SIZE * 2 // layout.num_kv_heads)  # one record for all heads, cut among them

    def summarise(self, key: Tensor) -> Tensor:
        projected = _project(key.flatten(2)).half()  # [groups, 64, 128]
        raw = projected.contiguous().view(torch.uint8).flatten(1)
        heads = key.shape[2]
        padded = torch.nn.functional.pad(raw, (0, -raw.shape[1] % heads))
        return padded.view(key.shape[0], heads, -1)

    def closed_logits(self, query: Tensor, history: History) -> Tensor:
        raise NotImplementedError("the literal rule scores whole windows; see mass")

    def mass(self, query: Tensor, history: History, softmax_scale: float, softcap: float = 0.0) -> Tensor:
        heads = history.key.shape[1]
        mean = query.view(heads, -1, query.shape[-1]).mean(dim=1)  # one query per kv head
        wanted = _project(mean.flatten()).half().float()
        raw = history.records.flatten(1)[:, : GROUP_TOKENS * _SIZE * 2].contiguous()
        closed = raw.view(torch.float16).float().view(-1, _SIZE)
        recent = _project(history.key[history.closed :].flatten(1)).half().float()
        cosine = torch.cosine_similarity(torch.cat([closed, recent]), wanted[None], dim=-1)
        windows = torch.cat([part.softmax(dim=0) for part in cosine.split(GROUP_TOKENS)])
        return (windows / windows.sum()).expand(heads, -1)


def _project(rows: Tensor) -> Tensor:
    return rows @ _projection(rows.shape[-1]).to(rows.device)
