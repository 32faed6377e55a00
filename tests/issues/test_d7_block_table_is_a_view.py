"""D7: the kernel assumes a contiguous block table and reads other entries from a view, or another integer type.

xllm PR 932.
"""

import pytest
import torch

from deepseek_flash_cache.attention import PagedKV, fa2
from tests.fixtures import assert_close, exact_attention, hostile_cache, layout_of


def attend(case, cache, table):
    lens = torch.cat((torch.zeros(1), case.kv_lens.cumsum(0))).int()
    return fa2.flash_attn_varlen_func(
        case.query, cache, cache, case.cu_seqlens_q, lens, 64, 300, causal=True, block_table=table
    )


def caches(case):
    """The pool, and the same keys in plain pages of 64."""
    plain = torch.full((case.cache.shape[0], 64, 2, 64), torch.nan)
    for b, keys in enumerate(case.keys):
        for i, row in enumerate(keys):
            plain[case.block_table[b, i // 64], i % 64] = row.float()
    return [PagedKV(case.cache, case.layout), plain]


@pytest.mark.parametrize("index", [0, 1], ids=["pool", "plain pages"])
def test_first_columns_of_a_wider_table(index):
    case = hostile_cache(layout_of(), (300, 65, 0, 7), (3, 1, 2, 2))
    case.values = case.keys if index else case.values
    big = torch.full((4, 33), 2**31 - 1, dtype=torch.int32)
    big[:, :5] = case.block_table[:, :5]
    got = attend(case, caches(case)[index], big[:, :5])
    assert_close(got, exact_attention(case, 0.125)[0])
    assert torch.equal(got, attend(case, caches(case)[index], big[:, :5].contiguous()))
    with pytest.raises(ValueError, match=r"block_table dtype: torch.int64 is not accepted; it must be torch.int32"):
        attend(case, caches(case)[index], big[:, :5].long())
