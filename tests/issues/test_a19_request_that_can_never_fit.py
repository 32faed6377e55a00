"""A request larger than the whole cache waited at the head of the queue for ever.

Public report: https://github.com/vllm-project/vllm/issues/39734.
"""

from __future__ import annotations

from deepseek_flash_cache.pool import BlockPool
from tests.pool.support import BLOCK, IDENTITY, compute, prompt


def test_it_is_rejected_at_admission_and_the_next_request_runs() -> None:
    pool = BlockPool(10, BLOCK)
    refused = pool.can_admit(700)
    assert not refused and refused.never
    assert "11 blocks needed, 10 available" in refused.message and "never" in refused.message
    assert pool.can_admit(640)
    compute(pool, prompt(640))


def test_a_request_that_only_has_to_wait_is_not_rejected() -> None:
    pool = BlockPool(10, BLOCK)
    with pool.open(IDENTITY) as running:
        running.append(5 * BLOCK)
        waiting = pool.can_admit(640)
        assert not waiting and not waiting.never
    assert pool.can_admit(640)


def test_cached_tokens_do_not_make_an_impossible_request_possible() -> None:
    pool = BlockPool(10, BLOCK)
    compute(pool, prompt(4 * BLOCK))
    assert pool.can_admit(700, cached_tokens=4 * BLOCK).never


def test_the_watermark_and_the_reserved_block_count_against_the_capacity() -> None:
    pool = BlockPool(10, BLOCK, watermark=2, reserved_blocks=1)
    assert pool.can_admit(7 * BLOCK)
    assert pool.can_admit(7 * BLOCK + 1).never


def test_a_growing_sequence_learns_that_waiting_is_useless() -> None:
    pool = BlockPool(10, BLOCK)
    with pool.open(IDENTITY) as sequence:
        sequence.append(640)
        assert sequence.can_append(1).never
