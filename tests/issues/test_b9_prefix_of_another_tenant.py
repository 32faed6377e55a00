"""The time to the first token told whether another tenant had sent the same prefix.

Public reports: CVE-2025-46570, https://github.com/vllm-project/vllm/issues/16016 and pull request 17045.
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import BlockPool
from tests.pool.support import BLOCK, compute, identity, prompt


def test_another_tenant_never_hits_and_the_owner_does() -> None:
    pool, tokens = BlockPool(16, BLOCK), prompt(3 * BLOCK + 5)
    assert compute(pool, tokens, identity(tenant=("A",))) == 0
    assert compute(pool, tokens, identity(tenant=("B",))) == 0
    assert compute(pool, tokens, identity()) == 0, "no tenant is a tenant of its own"
    assert compute(pool, tokens, identity(tenant=("A",))) == 3 * BLOCK


def test_a_colliding_digest_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even a broken hash must not hand over another tenant's block: the whole preimage is compared on every hit."""

    class Constant:
        def __init__(self, _data: bytes) -> None: ...

        def digest(self) -> bytes:
            return b"!" * 32

    pool = BlockPool(16, BLOCK)
    monkeypatch.setattr("deepseek_flash_cache.pool.identity.hashlib.sha256", Constant)
    compute(pool, prompt(BLOCK + 1))
    assert compute(pool, prompt(BLOCK + 1, first=1)) == 0
    assert compute(pool, prompt(BLOCK + 1)) == BLOCK
    assert pool.statistics.collisions > 0
