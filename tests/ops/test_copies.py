"""pack, unpack and copy_blocks in C++ move the same bytes as the specification."""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import KINDS, compute_dtype, empty_cache, layout_of, raw, strided_rows


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("dtype", "tile_format"), KINDS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 64, 65, 500])
def test_pack_and_unpack(length, dtype, whole, tile_format):
    layout = layout_of(dtype, 2, (192, 128), tile_order="zorder", extent=2, tile_format=tile_format)
    layout = layout.whole(length) if whole else layout
    random = torch.Generator().manual_seed(2)
    key = strided_rows(length, 2, 192, compute_dtype(layout), random)
    value = strided_rows(length, 2, 128, compute_dtype(layout), random)
    pages = ops.pack(key, value, layout)
    assert torch.equal(raw(pages), raw(spec.pack(key, value, layout)))
    for got, want, given in zip(
        ops.unpack(pages, length, layout), spec.unpack(pages, length, layout), (key, value), strict=True
    ):
        assert torch.equal(raw(got), raw(want))
        assert torch.equal(raw(got), raw(spec.stored(given, dtype)))


def numbered_pool(layout, blocks, first=0):
    cache = empty_cache(layout, blocks)
    for block in range(blocks):
        raw(cache)[block] = first + block
    return cache


PAIRS = {
    "apart": [[0, 5], [1, 6]],
    "shift": [[0, 1], [1, 2], [2, 3]],
    "swap": [[0, 1], [1, 0]],
    "fan out": [[4, 0], [4, 1], [4, 2]],
    "onto itself": [[3, 3]],
    "none": [],
}


@pytest.mark.parametrize("same_pool", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_copy_blocks_reads_all_pages_before_it_writes(name, same_pool):
    layout = layout_of(torch.bfloat16)
    pairs = torch.tensor(PAIRS[name], dtype=torch.int64).view(-1, 2)
    results = []
    for copy in (ops.copy_blocks, spec.copy_blocks):
        source = numbered_pool(layout, 7)
        target = source if same_pool else numbered_pool(layout, 7, 100)
        copy(source, target, pairs, layout)
        results.append(raw(target).clone())
    assert torch.equal(*results)


def test_copy_between_overlapping_views_of_one_pool():
    layout = layout_of(torch.bfloat16)
    pool = numbered_pool(layout, 6)
    ops.copy_blocks(pool[:4], pool[1:], torch.tensor([[0, 0], [1, 1], [2, 2]]), layout)
    assert raw(pool)[:, 0, 0, 0, 0].tolist() == [0, 0, 1, 2, 4, 5]
