"""A17: `block_id * stride` in 32 bits wraps: a crash or a silently wrong row, only after hours.

vLLM #50427 (int32), FlashInfer #3130 / PR 3136 (zeros at a large page id), vLLM PR 1514, flash-attention #772.
"""

import mmap

import pytest
import torch

from deepseek_flash_cache import ops
from deepseek_flash_cache.layout import Layout

LAYOUT = Layout(torch.float8_e4m3fn, 8, 128, 128)
BLOCKS = 40_000  # 128 KB each: 5 GB of addresses, of which only the last pages are ever touched


@pytest.fixture
def huge_cache():
    size = BLOCKS * LAYOUT.page_bytes
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    except OSError as error:
        pytest.skip(f"no address space for {size} bytes: {error}")
    return torch.frombuffer(memory, dtype=torch.uint8).view(LAYOUT.dtype).view(LAYOUT.cache_shape(BLOCKS))


def attention_at(cache: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    key = torch.randn(200, 8, 128, generator=random).bfloat16()
    query = torch.randn(1, 32, 128, generator=random).bfloat16()
    table, token = torch.tensor([blocks]).int(), torch.arange(200)
    ops.append(key, key, cache, table[0, token // 64].long() * 64 + token % 64, LAYOUT)
    starts, lens = torch.tensor([0, 1]).int(), torch.tensor([200]).int()
    return ops.attend(query, cache, table, starts, lens, LAYOUT, softmax_scale=0.1).out


@pytest.mark.parametrize(("block", "offset"), [(32768, 2**33), (65536, 2**34)])
def test_offsets_are_exact(block, offset):
    layout = Layout(torch.bfloat16, 8, 128, 128)
    assert layout.byte_offset(block, 0, "k", 0, 0) == offset
    if ops._C is not None:
        assert ops._compiled(layout.id).byte_offset(block, 0, "k", 0, 0) == offset


@pytest.mark.skipif(ops._C is None, reason="the specification would copy the whole pool")
def test_the_last_blocks_of_a_large_pool_give_the_same_result(huge_cache):
    assert BLOCKS * LAYOUT.page_bytes > 2**32
    low = attention_at(huge_cache, [3, 0, 2, 1])
    high = attention_at(huge_cache, [BLOCKS - 1, BLOCKS - 4, BLOCKS - 2, BLOCKS - 3])
    assert torch.equal(low, high)
    assert (low != 0).any()


def copy_and_look(cache: torch.Tensor) -> torch.Tensor:
    ops.copy_blocks(cache, cache, torch.tensor([[BLOCKS - 1, 1]]), LAYOUT)
    return cache[1].view(torch.uint8)


@pytest.mark.skipif(ops._C is None, reason="the specification would copy the whole pool")
def test_copies_reach_the_last_block(huge_cache):
    attention_at(huge_cache, [BLOCKS - 1, 5, 6, 7])
    assert torch.equal(copy_and_look(huge_cache), huge_cache[BLOCKS - 1].view(torch.uint8))
    assert (huge_cache[1].view(torch.uint8) != 0).any()
