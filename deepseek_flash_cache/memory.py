"""Memory for pools: on Linux CPUs anonymous pages of 2 MB, elsewhere what torch gives.

A pool is read in runs of a few KB from all over it, so with 4 KB pages address translation misses at every run. The
kernel is only asked (madvise): where huge pages are off, the pool works the same on small ones. Memory is committed
when it is first written.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """An uninitialised contiguous tensor. MemoryError or torch's own error if the memory is not to be had."""
    num_bytes = math.prod(shape) * dtype.itemsize
    small = num_bytes < HUGE_PAGE_BYTES
    if torch.device(device).type != "cpu" or small or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    try:
        pages = mmap.mmap(-1, num_bytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        hint = "give a smaller num_blocks or memory_bytes"
        raise MemoryError(f"no {num_bytes} bytes for a pool: {error}; {hint}") from error
    pages.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(pages, dtype=torch.uint8)  # keeps `pages` alive
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    return whole[start : start + num_bytes].view(dtype).view(shape)
