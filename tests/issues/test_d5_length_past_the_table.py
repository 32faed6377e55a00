"""D5: a length that the block table cannot hold is accepted, and garbage is attended to.

FlashInfer #320 (`last_page_len > page_size` accepted).
"""

import pytest
import torch

from deepseek_flash_cache.attention import PagedKV, fa2, fa3, vllm
from tests.fixtures import hostile_cache, layout_of

CASE = hostile_cache(layout_of(), (64, 65), (1, 3))
STARTS, TABLE = CASE.cu_seqlens_q, CASE.block_table[:, :2].contiguous()
PAGES = torch.zeros(CASE.cache.shape[0], 64, 2, 64)


@pytest.mark.parametrize("cache", [PagedKV(CASE.cache, CASE.layout), PAGES], ids=["pool", "plain pages"])
def test_length_past_64_times_the_table(cache):
    too_long = torch.tensor([64, 129]).int()
    with pytest.raises(ValueError, match=r"seqused_k\[1\]: 129 is not accepted; it must be in \[0, 128\]"):
        vllm.flash_attn_varlen_func(CASE.query, cache, cache, 3, STARTS, 129, seqused_k=too_long, block_table=TABLE)
    owned = torch.tensor([0, 64, 193]).int()
    with pytest.raises(ValueError, match=r"cu_seqlens_k\[1\]: 129"):
        fa2.flash_attn_varlen_func(CASE.query, cache, cache, STARTS, owned, 3, 129, block_table=TABLE)
    with pytest.raises(ValueError, match=r"cache_seqlens\[1\]: 129"):
        fa3.flash_attn_with_kvcache(
            CASE.query, cache, cache, cache_seqlens=too_long, page_table=TABLE, cu_seqlens_q=STARTS
        )
