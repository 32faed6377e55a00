"""An adapter was reloaded with other weights under its old name, and the old K and V were reused.

Public reports: https://github.com/vllm-project/vllm/issues/42125 (pull requests 42495, 48352).
"""

from __future__ import annotations

import hashlib

from deepseek_flash_cache.pool import Adapter, BlockPool, CacheIdentity
from tests.pool.support import BLOCK, compute, identity, prompt


def serve(loaded: dict[str, bytes], name: str) -> CacheIdentity:
    return identity(adapter=Adapter(hashlib.sha256(loaded[name]).digest()))


def test_a_reload_misses_and_loading_the_old_weights_again_hits() -> None:
    pool, tokens, loaded = BlockPool(8, BLOCK), prompt(2 * BLOCK + 1), {"A": b"old weights"}
    compute(pool, tokens, serve(loaded, "A"))
    loaded["A"] = b"new weights"
    assert compute(pool, tokens, serve(loaded, "A")) == 0
    loaded["A"] = b"old weights"
    assert compute(pool, tokens, serve(loaded, "A")) == 2 * BLOCK


def test_another_base_model_misses() -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(2 * BLOCK + 1)
    compute(pool, tokens)
    assert compute(pool, tokens, identity(model_digest=b"other model")) == 0
    assert compute(pool, tokens, identity(layout_id="other layout")) == 0
