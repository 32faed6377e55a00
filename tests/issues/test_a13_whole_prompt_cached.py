"""A prompt cached to its last token left nothing to compute, or its last token was recomputed into a shared block.

Public reports: https://github.com/huggingface/text-generation-inference/pull/2449 (review) and
https://github.com/vllm-project/vllm/pull/12003.
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import BlockPool
from tests.pool.support import BLOCK, IDENTITY, compute, prompt


@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK])
def test_one_token_is_computed_and_the_shared_block_is_not_written(length: int) -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(length)
    first = pool.open(IDENTITY)
    first.append(length)
    first.commit(tokens)
    second = pool.open(IDENTITY)
    assert second.adopt_prefix(tokens) == length - 1
    assert second.block_table == first.block_table
    append = second.append(1)
    assert append.copies == [(first.block_table[-1], second.block_table[-1])]
    assert second.block_table[:-1] == first.block_table[:-1]
    assert append.slots == [second.block_table[-1] * BLOCK + BLOCK - 1]
    second.commit(tokens)
    assert pool.key_of(second.block_table[-1]) is None, "the equal block was published twice"
    pool.check()


@pytest.mark.parametrize("length", [BLOCK, 2 * BLOCK])
def test_a_block_nobody_else_holds_leaves_the_cache_before_it_is_written(length: int) -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(length)
    compute(pool, tokens)
    with pool.open(IDENTITY) as second:
        second.adopt_prefix(tokens)
        assert second.append(1).copies == []
        assert pool.key_of(second.block_table[-1]) is None
        second.commit(tokens)
        assert pool.key_of(second.block_table[-1]) is not None
    assert compute(pool, tokens) == length - 1


def test_one_token_more_than_the_cached_blocks_reuses_all_of_them() -> None:
    pool = BlockPool(8, BLOCK)
    compute(pool, prompt(BLOCK))
    assert compute(pool, prompt(BLOCK + 1)) == BLOCK
