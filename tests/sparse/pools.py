"""Pools with side data for tests of sparse decode."""

from dataclasses import dataclass

import torch

from deepseek_flash_cache import spec
from deepseek_flash_cache.spec import selection


@dataclass
class Pool:
    cache: torch.Tensor
    side: torch.Tensor
    table: torch.Tensor
    kv_lens: torch.Tensor
    slots: torch.Tensor  # of all tokens, sequence after sequence
    keys: list[torch.Tensor]
    k_scale: float

    @property
    def arguments(self):
        return self.cache, self.side, self.table, self.kv_lens


def make_pool(layout, lengths, gate, seed=0, k_scale=1.0):
    """Shuffled pages, NaN in every unwritten slot and 0xFF in unwritten side data."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // layout.page_tokens) for length in lengths]
    blocks = torch.randperm(sum(pages) + 3, generator=generator)
    cache = torch.full(layout.cache_shape(len(blocks)), torch.nan).to(layout.dtype)
    side = torch.full(selection.gate_shape(len(blocks), layout, gate), 255, dtype=torch.uint8)
    table = torch.full((len(lengths), max(pages) + 1), -7, dtype=torch.int32)
    slots, keys = [], []
    for b, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        table[b, :count] = blocks[sum(pages[:b]) : sum(pages[:b]) + count]
        token = torch.arange(length)
        slots.append(table[b].long()[token // layout.page_tokens] * layout.page_tokens + token % layout.page_tokens)
        keys.append(torch.randn(length, layout.num_kv_heads, layout.head_size, generator=generator))
    compute = torch.float32 if layout.dtype.itemsize == 1 else layout.dtype
    for key, rows in zip(keys, slots, strict=True):
        value = torch.randn(len(key), layout.num_kv_heads, layout.head_size_v, generator=generator)
        spec.append(key.to(compute), value.to(compute), cache, rows, layout, k_scale)
    selection.summarise(cache, side, torch.cat(slots), layout, gate, k_scale)
    return Pool(cache, side, table, torch.tensor(lengths, dtype=torch.int32), torch.cat(slots), keys, k_scale)
