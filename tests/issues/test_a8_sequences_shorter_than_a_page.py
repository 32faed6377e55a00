"""A8: of two identical sequences shorter than a page the second gives zeros.

FlashInfer #725 "Inconsistent results ... sequence lengths less than a single page".
"""

import pytest
import torch

from deepseek_flash_cache import ops, spec
from tests.fixtures import DTYPES, compute_dtype, empty_cache, layout_of, raw


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("implementation", [ops, spec], ids=["ops", "spec"])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 128, 129])
def test_identical_sequences_in_different_blocks_give_identical_bits(length, implementation, dtype):
    layout = layout_of(dtype)
    cache = empty_cache(layout, 8)
    random = torch.Generator().manual_seed(length)
    key = torch.randn(length, 2, 64, generator=random).to(compute_dtype(layout))
    query = torch.randn(length, 8, 64, generator=random).to(compute_dtype(layout)).repeat(2, 1, 1)
    table = torch.tensor([[6, 1, 3], [0, 7, 2]]).int()
    token = torch.arange(length)
    for row in table:
        implementation.append(key, key, cache, row[token // 64].long() * 64 + token % 64, layout)
    starts, lens = torch.tensor([0, length, 2 * length]).int(), torch.tensor([length, length]).int()
    out = implementation.attend(query, cache, table, starts, lens, layout, softmax_scale=0.125).out
    assert torch.equal(raw(out[:length]), raw(out[length:]))
    assert (out != 0).any(dim=-1).all()
