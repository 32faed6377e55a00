"""What a gate is: side data of a group of tokens, and a query's estimated attention to each token.

Tokens are summarised in groups of 64 once the group is full. Tokens of the last, open group have no record: they are
scored with their exact keys, and selection keeps them anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deepseek_flash_cache.layout import Layout

GROUP_TOKENS = 64


@dataclass(frozen=True)
class History:
    """One sequence as a gate sees it.

    records : uint8 [full groups, Hkv, record_bytes]
    key : float32 [length, Hkv, D], the stored keys; a gate reads those that its method allows
    """

    records: Tensor
    key: Tensor

    @property
    def length(self) -> int:
        return self.key.shape[0]

    @property
    def closed(self) -> int:
        """Tokens that have a record."""
        return self.records.shape[0] * GROUP_TOKENS


class Gate(ABC):
    """A method of scoring. Instances hold no state: what a gate knows of tokens is in their records.

    `name` is what users write; `version` changes whenever records or scores change meaning, so that side data of
    another version is a miss.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @property
    def kind(self) -> str:
        """Name and version, as block headers carry it."""
        return f"{self.name}-{self.version}"

    def unsupported(self, layout: Layout) -> str:
        """Why pools of this layout cannot be gated; empty if they can."""
        if layout.page_tokens % GROUP_TOKENS:
            return f"pages of {layout.page_tokens} tokens; a gate needs multiples of {GROUP_TOKENS}"
        return ""

    @abstractmethod
    def record_bytes(self, layout: Layout) -> int:
        """Bytes of side data per group and kv head; 0 if there are none."""

    @abstractmethod
    def summarise(self, key: Tensor) -> Tensor:
        """Records uint8 [groups, Hkv, record_bytes] of full groups: key float32 [groups, 64, Hkv, D]."""

    def scoring_share(self, layout: Layout) -> float:
        """Bytes that scoring reads, as a share of the bytes of dense K and V."""
        dense = GROUP_TOKENS * (layout.head_size + layout.head_size_v) * layout.dtype.itemsize
        return self.record_bytes(layout) / dense

    @abstractmethod
    def closed_logits(self, query: Tensor, history: History) -> Tensor:
        """Estimated q.k of the tokens that have records: query float32 [Hkv, G, D] -> [Hkv, G, history.closed]."""

    def mass(self, query: Tensor, history: History, softmax_scale: float, softcap: float = 0.0) -> Tensor:
        """Estimated attention to each token: query float32 [H, D] -> [Hkv, length], every row sums to 1.

        Softmax over the whole context per query head, then the mean over the heads of a kv head.
        """
        heads = history.key.shape[1]
        query = query.view(heads, -1, query.shape[-1])
        exact = torch.einsum("hgd,nhd->hgn", query, history.key[history.closed :])
        logits = torch.cat([self.closed_logits(query, history), exact], dim=-1) * softmax_scale
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        return logits.softmax(dim=-1).mean(dim=1)
