"""Admission, eviction order, promises, statistics and self-checks of the pool."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deepseek_flash_cache.pool import BlockPool, PoolCorruption, PoolExhausted, Sequence
from deepseek_flash_cache.pool.state import PoolState
from tests.pool.support import BLOCK, IDENTITY, compute, identity, prompt


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be an integer at least 1, got 0"),
        ({"block_size": 0}, "block_size must be an integer at least 1, got 0"),
        ({"reserved_blocks": 8}, r"reserved_blocks must be an integer in \[0, 7\]"),
        ({"watermark": 7, "reserved_blocks": 1}, r"watermark must be an integer in \[0, 6\]"),
        ({"watermark": -1}, "watermark must be"),
    ],
)
def test_impossible_pools_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BlockPool(**{"num_blocks": 8, "block_size": BLOCK, **arguments})


def test_reserved_blocks_are_never_handed_out_nor_published() -> None:
    """Public fault A2: graph padding writes into block 0 (https://github.com/sgl-project/sglang/pull/32477)."""
    pool = BlockPool(4, BLOCK, reserved_blocks=1)
    with pool.open(IDENTITY) as sequence:
        sequence.append(3 * BLOCK)
        assert sorted(sequence.block_table) == [1, 2, 3]
        sequence.commit(prompt(3 * BLOCK))
        assert sequence.can_append(1).never
    assert pool.key_of(0) is None
    assert (pool.num_reserved, pool.num_cached, pool.num_free, pool.num_used) == (1, 3, 0, 0)


def test_the_tail_of_a_prefix_is_evicted_first_and_the_oldest_prefix_before_it() -> None:
    pool = BlockPool(4, BLOCK)
    compute(pool, prompt(2 * BLOCK))
    compute(pool, prompt(2 * BLOCK, first=1000))
    with pool.open(identity(tenant=("other",))) as sequence:
        sequence.append(BLOCK)
        probe = pool.open(IDENTITY)
        assert probe.match_prefix(prompt(2 * BLOCK + 1)) == BLOCK
        assert probe.match_prefix(prompt(2 * BLOCK + 1, first=1000)) == 2 * BLOCK
    assert pool.statistics.evictions == 1


def test_a_hit_makes_a_prefix_recent() -> None:
    pool = BlockPool(2, BLOCK)
    compute(pool, prompt(BLOCK))
    compute(pool, prompt(BLOCK, first=1000))
    with pool.open(IDENTITY) as again:
        again.adopt_prefix(prompt(BLOCK + 1))
    with pool.open(identity(tenant=("other",))) as sequence:
        sequence.append(1)
    assert pool.open(IDENTITY).match_prefix(prompt(BLOCK + 1)) == BLOCK


def test_used_blocks_are_never_evicted() -> None:
    pool = BlockPool(2, BLOCK)
    holder = pool.open(IDENTITY)
    holder.append(2 * BLOCK)
    holder.commit(prompt(2 * BLOCK))
    with pytest.raises(PoolExhausted):
        pool.open(IDENTITY).append(1)


def test_blocks_evicted_between_match_and_adopt_are_not_adopted() -> None:
    """Public fault C4: https://github.com/vllm-project/vllm/issues/39702 ("Expected N hit tokens, got 0")."""
    pool = BlockPool(8, BLOCK)
    compute(pool, prompt(8 * BLOCK))
    sequence = pool.open(IDENTITY)
    assert sequence.match_prefix(prompt(8 * BLOCK)) == 8 * BLOCK - 1
    for evicted, left in [(3, 5), (8, 0)]:
        with pool.open(identity(tenant=("other",))) as other:
            other.append(evicted * BLOCK)
            retry = pool.open(IDENTITY)
            assert retry.adopt_prefix(prompt(8 * BLOCK)) == left * BLOCK
            retry.free()


def cancelled(sequence: Sequence, moment: str) -> None:
    if moment != "queued":
        sequence.append(BLOCK + 10)
        sequence.commit(prompt(BLOCK))
    if moment == "decode":
        sequence.append(4)
    if moment == "rolled back":
        sequence.rollback(12)


@pytest.mark.parametrize("moment", ["queued", "chunk 1", "decode", "rolled back"])
def test_cancelling_at_any_moment_twice_gives_everything_back(moment: str) -> None:
    """Public fault C12: https://github.com/vllm-project/vllm/issues/46283."""
    pool = BlockPool(8, BLOCK)
    with pool.reserve(3) as reservation:
        sequence = pool.open(IDENTITY, reservation=reservation)
        cancelled(sequence, moment)
        sequence.free()
        sequence.free()
        assert reservation.remaining == 3
    pool.check_idle()


@pytest.mark.parametrize("length", range(62, 67))
@pytest.mark.parametrize("accepted", range(5))
def test_rejected_drafts_are_never_published(length: int, accepted: int) -> None:
    """Public fault C14: https://github.com/vllm-project/vllm/pull/18668 (drafts around a block edge)."""
    pool, tokens, drafts = BlockPool(8, BLOCK), prompt(length), [901, 902, 903, 904]
    with pool.open(IDENTITY) as sequence:
        sequence.append(length)
        sequence.commit(tokens)
        sequence.append(4)
        sequence.rollback(4 - accepted)
        tokens += drafts[:accepted]
        sequence.commit(tokens)
        assert sequence.num_tokens == sequence.num_committed == length + accepted
    probe = pool.open(IDENTITY)
    assert probe.match_prefix([*tokens, 1]) == (length + accepted) // BLOCK * BLOCK
    if length + accepted < BLOCK:
        assert probe.match_prefix([*prompt(length), *drafts, 1]) == 0


def test_each_request_is_counted_once() -> None:
    """Public fault C17: https://github.com/vllm-project/vllm/pull/25787 (retries and pre-emption counted as hits)."""
    pool, tokens = BlockPool(4, BLOCK), prompt(3 * BLOCK)
    compute(pool, tokens[:BLOCK])
    blocker, sequence = pool.open(IDENTITY), pool.open(IDENTITY)
    blocker.append(2 * BLOCK)
    for _ in range(2):  # refused twice
        sequence.adopt_prefix(tokens)
        with pytest.raises(PoolExhausted):
            sequence.append(2 * BLOCK)
        sequence.rollback(sequence.num_tokens)
    blocker.free()
    found = sequence.adopt_prefix(tokens)
    sequence.append(len(tokens) - found)
    sequence.commit(tokens)
    sequence.free()  # pre-empted
    with pool.open(IDENTITY, resumed=True) as again:
        again.append(len(tokens) - again.adopt_prefix(tokens))
    counted = pool.statistics
    assert (counted.queries, counted.query_tokens, counted.hit_tokens) == (3, BLOCK + 2 * BLOCK + 3 * BLOCK, BLOCK)
    assert counted.exhausted == 2


def test_decode_steps_do_not_reset_the_counters() -> None:
    """Public fault C18: https://github.com/sgl-project/sglang/issues/26608 (a gauge of the last batch)."""
    pool, tokens = BlockPool(8, BLOCK), prompt(2 * BLOCK + 1)
    compute(pool, tokens)
    with pool.open(IDENTITY) as sequence:
        sequence.append(len(tokens) - sequence.adopt_prefix(tokens))
        for _ in range(100):
            sequence.append(1)
    assert pool.statistics.hit_tokens == 2 * BLOCK
    pool.statistics.hit_tokens = 0  # a copy
    assert pool.statistics.hit_tokens == 2 * BLOCK


def test_cold_and_warm_read_the_same_tokens() -> None:
    """Public fault A14: https://github.com/vllm-project/vllm/issues/7845 (a hit changed the result)."""
    pool, tokens, slots = BlockPool(16, BLOCK), prompt(200), {}
    for _ in range(3):
        with pool.open(IDENTITY) as sequence:
            start = sequence.adopt_prefix(tokens)
            written = sequence.append(len(tokens) - start).slots
            slots.update(zip(written, tokens[start:], strict=True))
            sequence.commit(tokens)
            assert [slots[slot] for slot in sequence.slots()] == tokens
    assert start == 3 * BLOCK


def test_admission_does_not_count_the_reused_blocks_as_room() -> None:
    pool = BlockPool(10, BLOCK)
    compute(pool, prompt(4 * BLOCK))
    assert pool.can_admit(10 * BLOCK, cached_tokens=4 * BLOCK)
    running = pool.open(identity(tenant=("other",)))
    running.append(BLOCK)
    assert not pool.can_admit(10 * BLOCK, cached_tokens=4 * BLOCK)
    assert pool.can_admit(9 * BLOCK, cached_tokens=4 * BLOCK)
    with pytest.raises(ValueError, match=r"cached_tokens must be an integer in \[0, 5\] \(num_tokens\), got 6"):
        pool.can_admit(5, cached_tokens=6)


def test_the_watermark_is_kept_back_at_admission_only() -> None:
    pool = BlockPool(4, BLOCK, watermark=1)
    assert pool.can_admit(3 * BLOCK) and not pool.can_admit(4 * BLOCK)
    assert pool.can_admit(0).needed == 0
    with pool.open(IDENTITY) as sequence:
        sequence.append(4 * BLOCK)


def test_a_promise_is_kept_from_others_and_drawn_by_its_owner() -> None:
    pool = BlockPool(4, BLOCK)
    with pool.reserve(3) as reservation:
        owner, other = pool.open(IDENTITY, reservation=reservation), pool.open(IDENTITY)
        other.append(BLOCK)
        with pytest.raises(PoolExhausted, match="1 blocks needed, 0 available"):
            other.append(1)
        with pytest.raises(PoolExhausted):
            pool.reserve(1)
        owner.append(3 * BLOCK)
        owner.rollback(BLOCK)
        assert not other.can_append(1), "what the owner gave back is promised to it again"
        owner.append(BLOCK)
        assert not owner.can_append(1)
    owner.rollback(BLOCK)
    assert other.can_append(1), "the promise has ended"


def test_a_promise_is_restored_only_by_blocks_that_became_idle() -> None:
    pool = BlockPool(3, BLOCK)
    with pool.reserve(2) as reservation:
        owner = pool.open(IDENTITY, reservation=reservation)
        owner.append(2 * BLOCK)
        pool.open(IDENTITY).append(BLOCK)
        owner.fork()
        owner.free()
        assert reservation.remaining == 0
        pool.check()


def test_adopting_stops_where_it_would_break_a_promise() -> None:
    pool, tokens = BlockPool(4, BLOCK), prompt(4 * BLOCK)
    compute(pool, tokens)
    with pool.reserve(3), pool.open(IDENTITY) as sequence:
        assert sequence.match_prefix(tokens) == 4 * BLOCK - 1
        assert sequence.adopt_prefix(tokens) == BLOCK
        pool.check()


def test_a_reservation_must_be_open_and_of_this_pool() -> None:
    pool, foreign = BlockPool(4, BLOCK), BlockPool(4, BLOCK).reserve(1)
    closed = pool.reserve(1)
    closed.close()
    closed.close()
    for reservation in (foreign, closed):
        with pytest.raises(ValueError, match="reservation must be an open one of this pool"):
            pool.open(IDENTITY, reservation=reservation)


def test_without_prefix_caching_nothing_is_published_or_found() -> None:
    pool = BlockPool(8, BLOCK, prefix_caching=False)
    assert compute(pool, prompt(3 * BLOCK)) == compute(pool, prompt(3 * BLOCK)) == 0
    assert pool.num_cached == 0


def test_clearing_the_cache_leaves_used_blocks_alone() -> None:
    pool = BlockPool(8, BLOCK)
    compute(pool, prompt(2 * BLOCK))
    with pool.open(IDENTITY) as sequence:
        sequence.adopt_prefix(prompt(BLOCK + 1))
        assert pool.clear_prefix_cache() == 2
        assert (pool.num_used, pool.num_cached, pool.num_free) == (1, 0, 7)
        pool.check()
    assert compute(pool, prompt(2 * BLOCK)) == 0


BREAKAGES: list[tuple[str, Callable[[PoolState], object]]] = [
    ("free list has twice", lambda state: state.blocks.free.append(state.blocks.free[0])),
    ("no free block may be", lambda state: state.blocks.free.append(99)),
    ("reference count differs", lambda state: state.blocks.retain(next(iter(state.sequences)).block_table[0])),
    ("shared", lambda state: setattr(state.blocks, "shared", 5)),
    ("exactly one", lambda state: state.blocks.free.pop()),
    ("not in the prefix index", lambda state: state.index.withdraw(next(iter(state.blocks.cached)))),
    ("one to one", lambda state: state.index._block_of.clear()),
    ("promised", lambda state: setattr(state.blocks, "promised", 1)),
    ("wrong length", lambda state: setattr(next(iter(state.sequences)), "num_tokens", 1)),
]


@pytest.mark.parametrize(("invariant", "damage"), BREAKAGES, ids=[name for name, _ in BREAKAGES])
def test_the_self_check_names_the_violated_invariant(invariant: str, damage: Callable[[PoolState], object]) -> None:
    pool = BlockPool(8, BLOCK)
    compute(pool, prompt(2 * BLOCK))
    pool.open(identity(tenant=("other",))).append(2 * BLOCK)
    pool.check()
    damage(pool._state)
    with pytest.raises(PoolCorruption, match=invariant):
        pool.check()


def test_the_idle_check_sees_an_open_promise() -> None:
    pool = BlockPool(8, BLOCK)
    pool.reserve(2)
    with pytest.raises(PoolCorruption, match="2 blocks are still promised"):
        pool.check_idle()
