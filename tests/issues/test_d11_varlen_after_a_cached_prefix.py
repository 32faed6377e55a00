"""D11: ragged prefill is wrong when sequences have a cached prefix of different lengths.

vLLM #5678.
"""

import pytest
import torch

from deepseek_flash_cache.attention import PagedKV, fa2, fa3, vllm
from tests.fixtures import assert_close, exact_attention, hostile_cache, layout_of

CASE = hostile_cache(layout_of(), (65, 5), (1, 4))
OWNED = torch.tensor([0, 65, 70]).int()


def pool_fa2(q, starts):
    pool = PagedKV(CASE.cache, CASE.layout)
    return fa2.flash_attn_varlen_func(q, pool, pool, starts, OWNED, 4, 65, causal=True, block_table=CASE.block_table)


def pool_fa3(q, starts):
    pool = PagedKV(CASE.cache, CASE.layout)
    return fa3.flash_attn_with_kvcache(
        q, pool, pool, cache_seqlens=CASE.kv_lens, page_table=CASE.block_table, cu_seqlens_q=starts, causal=True
    )


def plain_rows(q, starts):
    key, value = (torch.cat(part).float() for part in (CASE.keys, CASE.values))
    return vllm.flash_attn_varlen_func(q, key, value, 4, starts, 65, OWNED, causal=True)


@pytest.mark.parametrize("function", [pool_fa2, pool_fa3, plain_rows])
def test_chunks_of_one_and_four_queries(function):
    starts = torch.tensor([0, 1, 5]).int()
    assert_close(function(CASE.query, starts), exact_attention(CASE, 0.125)[0])
