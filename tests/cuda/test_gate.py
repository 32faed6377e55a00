"""append calls a gate for every group of 64 tokens that it completes, when all the group's rows are in the pool."""

import ctypes

import pytest
import torch

from deepseek_flash_cache import ops, spec
from deepseek_flash_cache.layout import Layout
from deepseek_flash_cache.ops.binary import DTYPE_CODES, compiled
from tests.cuda.harness import emulated, emulator_with
from tests.fixtures import empty_cache, layout_of, raw

HEADS = 3


class RecordArgs(ctypes.Structure):
    """tests/cuda/record_gate.cpp"""

    _fields_ = [("count", ctypes.c_void_p), ("groups", ctypes.c_void_p), ("room", ctypes.c_int64)]


def layout_with(block_size: int, extent: int) -> Layout:
    return layout_of(torch.float16, HEADS, block_size=block_size, extent=extent, tile_format="swizzle")


def completed(layout: Layout, slots: torch.Tensor, cache: torch.Tensor, seed: int = 0) -> list[tuple[int, ...]]:
    """(page, first token, head, bits of the group's first K element) of every call of the gate, sorted."""
    key = torch.randn(len(slots), HEADS, 64, generator=torch.Generator().manual_seed(seed)).half()
    expected = raw(cache).clone().view(cache.dtype)
    count, groups = torch.zeros(1, dtype=torch.int32), torch.full((64, 4), -1)
    gate = bytes(RecordArgs(count.data_ptr(), groups.data_ptr(), len(groups)))
    rows = key.data_ptr(), key.stride(0), key.stride(1)
    places = DTYPE_CODES[key.dtype], cache.data_ptr(), cache.shape[0], slots.data_ptr(), len(slots)
    with emulated(seed, emulator=emulator_with("record_gate", "tests/cuda/record_gate.cpp")) as emulation:
        on = emulation.launcher, 0, "close_record", gate, compiled(layout.id)
        ops._C.cuda_append_gated(*on, *rows, *rows, *places, 1.0, 1.0, 0)
    spec.append(key, key, expected, torch.where(slots < cache.shape[0] * layout.page_tokens, slots, -1), layout)
    assert torch.equal(raw(cache), raw(expected))
    return sorted(map(tuple, groups[: int(count)].tolist()))


@pytest.mark.parametrize(("block_size", "extent", "group"), [(64, 1, 64), (64, 4, 64), (32, 4, 64), (32, 1, 32)])
def test_a_prompt_completes_its_whole_groups(block_size, extent, group):
    layout = layout_with(block_size, extent)
    cache = empty_cache(layout, 8)
    calls = completed(layout, torch.arange(70, 70 + 190), cache)
    ends = [slot for slot in range(70, 260) if slot % group == group - 1]
    places = [((end - group + 1) // layout.page_tokens, (end - group + 1) % layout.page_tokens) for end in ends]
    assert [call[:3] for call in calls] == sorted((*place, head) for place in places for head in range(HEADS))
    runs = raw(cache).view(8, HEADS, -1)
    first = layout.head_index("k")[:, 0]
    assert [call[3] for call in calls] == [
        int(runs[page, head, first[token]]) & 0xFFFF for page, token, head, _ in calls
    ]


def test_decode_completes_a_group_with_its_last_token():
    layout = layout_with(64, 2)
    cache = empty_cache(layout, 2)
    assert completed(layout, torch.tensor([62]), cache) == []
    calls = completed(layout, torch.tensor([63, 128, -1, 1 << 40]), cache, seed=1)
    assert [call[:3] for call in calls] == [(0, 0, head) for head in range(HEADS)]
    assert completed(layout, torch.tensor([], dtype=torch.int64), cache, seed=1) == []
