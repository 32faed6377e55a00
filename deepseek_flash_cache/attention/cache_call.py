"""The arguments of `flash_attn_with_kvcache` that FA2 and FA3 share, and what they say about the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import checks
from deepseek_flash_cache.attention.arguments import check_dims, only
from deepseek_flash_cache.attention.paged import Cache, PagedKV, num_pages, page_size
from deepseek_flash_cache.checks import require


@dataclass(frozen=True)
class CacheCall:
    q: Tensor
    k_cache: Cache
    v_cache: Any
    k: Tensor | None
    v: Tensor | None
    cache_seqlens: int | Tensor | None
    cache_batch_idx: Tensor | None
    cache_leftpad: Tensor | None
    table: Tensor | None
    table_name: str  # block_table or page_table
    rotary_cos: Tensor | None
    rotary_sin: Tensor | None
    rotary_interleaved: bool
    rotary_seqlens: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k_new: Tensor | None = None

    @property
    def batch(self) -> int:
        return self.q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1

    def pages(self) -> Tensor:
        """Pages of every sequence; a cache of fixed length has one each."""
        pool = isinstance(self.k_cache, PagedKV)
        if pool:
            only("cache_leftpad", self.cache_leftpad, None, "sequences of a PagedKV start at a page")
        else:
            for name, cache in (("k_cache", self.k_cache), ("v_cache", self.v_cache)):
                check_dims(name, cache, "batch or blocks", "seqlen or page_size", "nheads_k", "headdim")
        if self.table is not None:
            both = self.cache_batch_idx is None
            require(both, "cache_batch_idx", "tensor", f"None together with {self.table_name}")
            return self.table
        require(not pool, self.table_name, None, "a table of pages for a PagedKV")
        if self.cache_batch_idx is not None:
            return self.cache_batch_idx.to(torch.int32)[:, None]
        batch = self.batch
        enough = num_pages(self.k_cache) >= batch
        require(enough, "k_cache batch", num_pages(self.k_cache), f"at least {batch}, the batch of q")
        return torch.arange(batch, dtype=torch.int32, device=self.q.device)[:, None]

    def lengths(self, table: Tensor) -> Tensor:
        """int32 [B]: tokens in the cache, before anything is appended."""
        seqlens = self.cache_seqlens
        if seqlens is None:
            require(self.k is None, "cache_seqlens", None, "given together with new keys k and v")
            seqlens = table.shape[1] * page_size(self.k_cache)
        if isinstance(seqlens, int):
            return torch.full((self.batch,), seqlens, dtype=torch.int32, device=self.q.device)
        checks.check_index("cache_seqlens", seqlens, torch.int32, (self.batch,), self.q)
        return seqlens
