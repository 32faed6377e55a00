"""Two adapters with the same name but different ids shared their KV cache.

Public reports: https://github.com/vllm-project/vllm/issues/3264 and /30931.
"""

from __future__ import annotations

import hashlib

from deepseek_flash_cache.pool import Adapter, BlockPool
from tests.pool.support import BLOCK, compute, identity, prompt


def test_the_key_is_the_content_of_the_adapter() -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(2 * BLOCK + 1)
    first, second = (identity(adapter=Adapter(hashlib.sha256(w).digest())) for w in (b"weights 1", b"weights 2"))
    compute(pool, tokens, first)
    assert compute(pool, tokens, second) == 0
    assert compute(pool, tokens, identity()) == 0, "the base model must not hit an adapter's blocks"
    assert compute(pool, tokens, first) == 2 * BLOCK
