"""Own finding: a cache collected by the garbage collector in the middle of another's append freed blocks under it.

A finalizer runs at any allocation, so it may only leave a note; the next operation frees.
"""

from deepseek_flash_cache.pool import BlockPool, CacheIdentity

IDENTITY = CacheIdentity("layout", b"model" * 4)


def test_an_abandoned_sequence_is_freed_at_the_next_operation_not_at_once():
    pool = BlockPool(4, 16)
    lost, live = pool.open(IDENTITY), pool.open(IDENTITY)
    lost.append(64)
    lost.abandon()
    assert lost.block_table, "freed at once: this could be in the middle of anything"
    assert sorted(live.append(64).slots) == list(range(64))
    assert lost.freed and not lost.block_table
    pool.check()


def test_the_pool_never_shows_abandoned_blocks_as_used():
    pool = BlockPool(4, 16)
    lost = pool.open(IDENTITY)
    lost.append(20)
    lost.abandon()
    lost.abandon()
    assert pool.num_used == 0 and pool.num_free == 4
    pool.check_idle()
