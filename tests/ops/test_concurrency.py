"""Many Python threads call the operations at once: the extension releases the GIL, and each gets its own answer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from deepseek_flash_cache import ops
from tests.fixtures import hostile_cache, layout_of

KINDS = [layout_of(), layout_of(torch.bfloat16, tile_format="paired"), layout_of(torch.float8_e4m3fn)]


@pytest.mark.parametrize("layout", KINDS, ids=lambda layout: layout.id)
def test_eight_threads_at_once(layout):
    cases = [hostile_cache(layout, (1, 65, 700 + 50 * seed), seed=seed) for seed in range(8)]

    def attend(case):
        return ops.attend(*case.tensors, layout, softmax_scale=0.125).out

    expected = [attend(case) for case in cases]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            for got, want in zip(threads.map(attend, cases), expected, strict=True):
                assert torch.equal(got, want)


def test_appends_to_different_slots_of_one_pool():
    layout = layout_of()
    cache = torch.zeros(layout.cache_shape(8))
    rows = torch.randn(8, 64, 2, 64)

    def append(block):
        ops.append(rows[block], -rows[block], cache, block * 64 + torch.arange(64), layout)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(8)))
    key, value = ops.unpack(cache, 512, layout)
    assert torch.equal(key, rows.flatten(0, 1)) and torch.equal(value, -rows.flatten(0, 1))
