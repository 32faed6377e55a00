"""The last decode slot was freed twice or leaked when blocks hold several tokens and drafts are rejected.

Public reports: https://github.com/sgl-project/sglang/issues/11970, /6888, /7130 ("memory leak detected").
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import BlockPool, PoolCorruption, Sequence
from tests.pool.support import BLOCK, IDENTITY, prompt


def generate(sequence: Sequence, tokens: list[int], count: int) -> None:
    """``count`` steps, each with three drafts of which none is accepted."""
    for _ in range(count):
        sequence.append(1 + 3)
        sequence.rollback(3)
        tokens.append(7)
        sequence.commit(tokens)


@pytest.mark.parametrize("generated", [1, 2, 65])
@pytest.mark.parametrize("ending", ["finish", "abort", "retract"])
def test_all_blocks_come_back(generated: int, ending: str) -> None:
    pool, tokens = BlockPool(6, BLOCK), prompt(63)
    with pool.open(IDENTITY) as sequence:
        sequence.append(63)
        sequence.commit(tokens)
        generate(sequence, tokens, generated)
        if ending == "abort":
            sequence.append(4)
        elif ending == "retract":
            sequence.rollback(sequence.num_tokens)
    pool.check_idle()
    assert pool.num_free + pool.num_cached == pool.num_blocks
    assert pool.num_cached == (63 + generated) // BLOCK


def test_the_idle_check_names_what_leaked() -> None:
    pool = BlockPool(6, BLOCK)
    sequence = pool.open(IDENTITY)
    sequence.append(BLOCK + 1)
    pool.check()
    with pytest.raises(PoolCorruption, match=r"leak detected.*\[0, 1\]|leak detected.*\[4, 5\]"):
        pool.check_idle()


def test_the_self_check_sees_a_block_freed_twice() -> None:
    pool = BlockPool(6, BLOCK)
    with pool.open(IDENTITY) as sequence:
        sequence.append(1)
        pool._state.blocks.free.append(sequence.block_table[0])
        with pytest.raises(PoolCorruption, match="exactly one"):
            pool.check()
    with pytest.raises(PoolCorruption, match="free list has twice"):
        pool.check()
