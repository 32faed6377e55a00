"""A pool of this package in the place of flash-attention's paged cache, and attention over either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepseek_flash_cache import ops
from deepseek_flash_cache.attention.arguments import Options, renamed
from deepseek_flash_cache.checks import check_cache, require
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.spec import Attention


@dataclass(frozen=True)
class PagedKV:
    """One layer's pool, keys and values together. Pass it as `k` (`k_cache`), and again, or None, as `v` (`v_cache`).

    Parameters
    ----------
    tensor : Tensor
        The pool, of shape ``layout.cache_shape(num_blocks)``.
    layout : Layout
        What its bytes mean. A block table counts pages of ``layout.page_tokens`` tokens.
    k_scale, v_scale : float
        Factors of fp8 storage.
    """

    tensor: Tensor
    layout: Layout
    k_scale: float = 1.0
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        check_cache(self.tensor, self.layout, "tensor")


Cache = PagedKV | Tensor


def check_pair(k: Any, v: Any, names: dict[str, str]) -> None:
    """A pool holds keys and values: it cannot go together with another tensor."""
    if isinstance(k, PagedKV):
        same = v is None or (isinstance(v, PagedKV) and v.tensor is k.tensor)
        require(same, names["value"], type(v).__name__, f"None or the PagedKV given as {names['key']}")
    else:
        require(not isinstance(v, PagedKV), names["key"], type(k).__name__, f"the PagedKV given as {names['value']}")


def page_size(k: Cache) -> int:
    return k.layout.page_tokens if isinstance(k, PagedKV) else k.shape[1]


def num_pages(k: Cache) -> int:
    return k.tensor.shape[0] if isinstance(k, PagedKV) else k.shape[0]


def attend_table(
    query: Tensor,  # [T, H, D]
    k: Cache,
    v: Any,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    kv_lens: Tensor,
    options: Options,
    names: dict[str, str],
    first_keys: Tensor | None = None,
    out: Tensor | None = None,
) -> Attention:
    """Attention over the pages of `block_table`, in a pool or in plain tensors [blocks, page, heads, columns]."""
    check_pair(k, v, names)
    options = {**options, "out": out, "return_lse": True}
    with renamed({"cache": names["key"], "query": "q", **names}):
        if not isinstance(k, PagedKV):
            return ops.attend_pages(query, k, v, block_table, cu_seqlens_q, kv_lens, first_keys, **options)
        assert first_keys is None, "refused by CacheCall.pages"
        scales = options.pop("k_scale", 1.0) * k.k_scale, options.pop("v_scale", 1.0) * k.v_scale
        options |= {"k_scale": scales[0], "v_scale": scales[1]}
        return ops.attend(query, k.tensor, block_table, cu_seqlens_q, kv_lens, k.layout, **options)


def rectangular(rows: int, columns: int, device: torch.device) -> Tensor:
    """cu_seqlens of `rows` sequences of `columns` tokens each."""
    return torch.arange(rows + 1, dtype=torch.int32, device=device) * columns
