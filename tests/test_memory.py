"""Pool memory: whole huge pages where the kernel gives them, and like any other tensor to its users."""

import re
from pathlib import Path

import pytest
import torch

from deepseek_flash_cache.memory import HUGE_PAGE_BYTES, allocate
from tests.fixtures import DTYPES

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 7, HUGE_PAGE_BYTES + 12])
def test_a_pool_is_an_ordinary_tensor(size, dtype):
    tensor = allocate((2, size), dtype, "cpu")
    assert tensor.shape == (2, size) and tensor.dtype == dtype and tensor.is_contiguous()
    raw = tensor.view(torch.uint8)
    raw.fill_(3)
    assert bool((raw == 3).all())


@pytest.mark.skipif(not ENABLED.exists() or "[never]" in ENABLED.read_text(), reason="transparent huge pages are off")
def test_a_large_pool_lies_on_huge_pages():
    tensor = allocate((16 * HUGE_PAGE_BYTES,), torch.uint8, "cpu")
    assert tensor.data_ptr() % HUGE_PAGE_BYTES == 0
    tensor.fill_(1)
    maps = Path("/proc/self/smaps").read_text()
    huge = sum(int(kb) for kb in re.findall(r"AnonHugePages:\s+(\d+) kB", maps))
    assert huge * 1024 >= 8 * HUGE_PAGE_BYTES


def test_memory_that_cannot_be_had_is_named():
    with pytest.raises(MemoryError, match="num_blocks"):
        allocate((1 << 60,), torch.uint8, "cpu")
