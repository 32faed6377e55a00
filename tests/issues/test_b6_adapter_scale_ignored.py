"""The scale a request gives its adapter was no part of the cache key.

Public report: https://github.com/ggml-org/llama.cpp/issues/26207.
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import Adapter, BlockPool
from tests.pool.support import BLOCK, compute, identity, prompt


def test_another_scale_misses() -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(BLOCK + 1)
    compute(pool, tokens, identity(adapter=Adapter(b"A", 1.0)))
    assert compute(pool, tokens, identity(adapter=Adapter(b"A", 0.5))) == 0
    assert compute(pool, tokens, identity(adapter=Adapter(b"A", 1))) == BLOCK


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), "1"])
def test_a_scale_that_is_no_number_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"adapter\.scale must be a finite number"):
        Adapter(b"A", scale)
