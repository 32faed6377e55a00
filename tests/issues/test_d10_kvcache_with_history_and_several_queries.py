"""D10: the mask of flash_attn_with_kvcache is wrong when several new queries follow a history.

flash-attention #1402; sgl-kernel-xpu #196. The mask must be bottom-right: query i of 3 after 7 keys sees 8 + i of 10.
"""

import pytest
import torch

from deepseek_flash_cache.attention import fa2, fa3
from tests.attention.reference import attention
from tests.fixtures import assert_close


@pytest.mark.parametrize("function", [fa2.flash_attn_with_kvcache, fa3.flash_attn_with_kvcache], ids=["fa2", "fa3"])
def test_three_queries_after_seven_keys(function):
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, heads, 32, generator=random) for n, heads in ((3, 4), (10, 2), (10, 2)))
    caches = [torch.full((1, 16, 2, 32), torch.nan) for _ in range(2)]
    for cache, rows in zip(caches, (k, v), strict=True):
        cache[:, :7] = rows[:, :7]
    got = function(q, *caches, k[:, 7:], v[:, 7:], cache_seqlens=torch.tensor([7]).int(), causal=True)
    assert_close(got[0], attention(q[0], k[0], v[0], causal=True)[0])
    for i in range(3):
        assert_close(got[0, i], attention(q[0, i : i + 1], k[0, : 8 + i], v[0, : 8 + i])[0][0])
