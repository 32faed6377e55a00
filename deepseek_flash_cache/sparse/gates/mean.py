"""`mean`: the mean key of every 16 tokens picks candidates, whose exact keys are then read. No weights, little data.

For sparsity up to 0.5. Better than a bound per block (Quest, arXiv 2406.10774) at equal bytes on language modelling,
and far behind the key sketch on retrieval.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.sparse.gates.base import GROUP_TOKENS, Gate, History

_SPAN = 16
CANDIDATE_SHARE = 0.4  # of the closed tokens; their exact keys are read while scoring


class MeanGate(Gate):
    name: ClassVar[str] = "mean"

    def record_bytes(self, layout: Layout) -> int:
        return GROUP_TOKENS // _SPAN * 2 * layout.head_size

    def scoring_share(self, layout: Layout) -> float:
        keys = CANDIDATE_SHARE * layout.head_size / (layout.head_size + layout.head_size_v)
        return super().scoring_share(layout) + keys

    def summarise(self, key: Tensor) -> Tensor:
        spans: Tensor = key.unflatten(1, (-1, _SPAN)).mean(dim=2).half()  # [groups, 4, Hkv, D]
        records: Tensor = spans.transpose(1, 2).contiguous().view(torch.uint8).flatten(2)
        return records

    def closed_logits(self, query: Tensor, history: History) -> Tensor:
        columns = query.shape[-1]
        means = history.records.view(torch.float16).float().unflatten(-1, (-1, columns))  # [groups, Hkv, 4, D]
        rough = torch.einsum("hgd,nhsd->hgns", query, means).flatten(2)  # [Hkv, G, spans]
        weight = rough.softmax(dim=-1).mean(dim=1)
        chosen = weight.topk(-(-rough.shape[-1] * 2 // 5), dim=-1).indices  # CANDIDATE_SHARE, rounded up
        candidate = torch.zeros_like(weight, dtype=torch.bool).scatter_(1, chosen, True).repeat_interleave(_SPAN, 1)
        exact = torch.einsum("hgd,nhd->hgn", query, history.key[: history.closed])
        return exact.masked_fill(~candidate[:, None], -torch.inf)
