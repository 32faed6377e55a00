"""Keys of the host and remote tiers left out the adapter, so B read what A had spilled.

Public reports: https://github.com/vllm-project/vllm/issues/44250 and https://github.com/LMCache/LMCache/issues/2961.
"""

from __future__ import annotations

from deepseek_flash_cache.pool import Adapter, BlockPool, ImageSpan, block_keys
from tests.pool.support import BLOCK, IDENTITY, identity, prompt


def test_the_pool_hands_its_full_key_to_the_tiers() -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(2 * BLOCK)
    who = identity(adapter=Adapter(b"A"), tenant=("t",), mode="topk", images=(ImageSpan(3, 70, b"image"),))
    with pool.open(who) as sequence:
        sequence.append(len(tokens))
        sequence.commit(tokens)
        assert [pool.key_of(block) for block in sequence.block_table] == list(block_keys(who, tokens, BLOCK))


def test_a_spilled_block_is_found_by_its_owner_only() -> None:
    tokens = prompt(BLOCK)
    others = [
        IDENTITY,
        identity(adapter=Adapter(b"B")),
        identity(adapter=Adapter(b"A", scale=0.5)),
        identity(adapter=Adapter(b"A"), tenant=("t",)),
        identity(adapter=Adapter(b"A"), mode="topk"),
        identity(adapter=Adapter(b"A"), images=(ImageSpan(0, 1, b"image"),)),
    ]
    spilled = dict.fromkeys(block_keys(identity(adapter=Adapter(b"A")), tokens, BLOCK), "K and V of A")
    assert not any(key in spilled for who in others for key in block_keys(who, tokens, BLOCK))
