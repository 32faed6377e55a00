"""`oracle`: the true attention mass, from all exact keys.

It reads every key, so it saves little by itself: it is what other gates are measured against.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse.gates.base import Gate, History


class OracleGate(Gate):
    name: ClassVar[str] = "oracle"

    def record_bytes(self, layout: Layout) -> int:
        return 0

    def scoring_share(self, layout: Layout) -> float:
        return layout.head_size / (layout.head_size + layout.head_size_v)

    def summarise(self, key: Tensor) -> Tensor:
        return key.new_empty(key.shape[0], key.shape[2], 0, dtype=torch.uint8)

    def closed_logits(self, query: Tensor, history: History) -> Tensor:
        return torch.einsum("hgd,nhd->hgn", query, history.key[: history.closed])
