"""Slots, copies, commits and rollbacks of one sequence and its forks."""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import Append, BlockPool, PoolExhausted, Sequence
from tests.pool.support import BLOCK, IDENTITY, compute, prompt


def opened(num_tokens: int, blocks: int = 8) -> tuple[BlockPool, Sequence]:
    pool = BlockPool(blocks, BLOCK)
    sequence = pool.open(IDENTITY)
    sequence.append(num_tokens)
    return pool, sequence


@pytest.mark.parametrize("length", [0, 1, 2, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("before", [0, 1, 63, 64])
def test_slots_follow_the_block_table(before: int, length: int) -> None:
    _, sequence = opened(before)
    slots = sequence.append(length).slots
    table = sequence.block_table
    assert slots == [table[i // BLOCK] * BLOCK + i % BLOCK for i in range(before, before + length)]
    assert len(table) == -(-(before + length) // BLOCK)
    assert sequence.slots()[before:] == slots


def test_no_tokens_give_no_slots_and_no_blocks() -> None:
    pool, sequence = opened(0)
    assert sequence.append(0) == Append([], [])
    assert sequence.match_prefix([]) == sequence.adopt_prefix([]) == 0
    sequence.commit([])
    sequence.rollback(0)
    assert pool.num_free == 8


def test_blocks_are_not_contiguous_after_others_ended() -> None:
    pool, first = opened(BLOCK)
    second = pool.open(IDENTITY)
    second.append(BLOCK)
    third = pool.open(IDENTITY)
    third.append(BLOCK)
    first.free()
    third.free()
    assert second.append(2 * BLOCK).copies == []
    assert sorted(second.block_table) != second.block_table or second.block_table[1] != second.block_table[0] + 1
    pool.check()


def test_refused_append_changes_nothing_and_says_why() -> None:
    pool, sequence = opened(BLOCK, blocks=2)
    with pytest.raises(PoolExhausted, match="2 blocks needed, 1 available") as refused:
        sequence.append(2 * BLOCK)
    assert not isinstance(refused.value, RuntimeError)
    assert (refused.value.needed, refused.value.available) == (2, 1)
    assert (sequence.num_tokens, pool.num_free) == (BLOCK, 1)
    assert sequence.append(BLOCK).copies == []


def test_fork_copies_on_write_only_while_shared() -> None:
    pool, parent = opened(BLOCK + 3)
    child = parent.fork()
    assert pool.num_shared == 2
    shared = parent.block_table[1]
    assert child.append(1).copies == [(shared, child.block_table[1])]
    assert parent.append(1).copies == [], "the other has let go of the block"
    assert parent.block_table == [child.block_table[0], shared]
    assert pool.statistics.copies_on_write == 1


def test_fork_at_a_block_boundary_copies_nothing() -> None:
    _, parent = opened(BLOCK)
    child = parent.fork()
    assert child.append(1).copies == parent.append(1).copies == []


def test_copy_on_write_needs_a_block_and_refuses_without_one() -> None:
    _, parent = opened(BLOCK + 3, blocks=2)
    child = parent.fork()
    assert child.can_append(1).needed == 1
    with pytest.raises(PoolExhausted):
        child.append(1)
    assert child.block_table == parent.block_table
    parent.free()
    assert child.append(1).copies == []


@pytest.mark.parametrize("cut", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1])
def test_a_limit_inside_a_block_adopts_it_in_part(cut: int) -> None:
    pool, tokens = BlockPool(8, BLOCK), prompt(2 * BLOCK)
    holder = pool.open(IDENTITY)
    holder.append(2 * BLOCK)
    holder.commit(tokens)
    sequence = pool.open(IDENTITY)
    assert sequence.adopt_prefix(tokens, max_tokens=cut) == cut
    assert sequence.num_tokens == sequence.num_committed == cut
    append = sequence.append(1)
    assert len(append.copies) == (cut % BLOCK != 0)
    assert append.slots[0] % BLOCK == cut % BLOCK
    assert holder.block_table[cut // BLOCK] != sequence.block_table[cut // BLOCK]
    pool.check()


def test_adopting_needs_an_empty_sequence() -> None:
    _, sequence = opened(1)
    with pytest.raises(ValueError, match="num_tokens must be 0, got 1"):
        sequence.adopt_prefix(prompt(BLOCK + 1))


def test_next_turn_of_a_conversation_reuses_prompt_and_answer() -> None:
    pool, conversation = BlockPool(16, BLOCK), prompt(100)
    with pool.open(IDENTITY) as sequence:
        sequence.append(100)
        sequence.commit(conversation)
        for token in range(1000, 1100):
            sequence.append(1)
            sequence.commit_next([token])
            conversation.append(token)
    assert compute(pool, [*conversation, *prompt(50)]) == 3 * BLOCK


def test_commit_must_extend_what_was_committed() -> None:
    _, sequence = opened(2 * BLOCK)
    sequence.commit(prompt(BLOCK + 1))
    for wrong, message in [
        (prompt(BLOCK), r"len\(token_ids\) must be an integer in \[65, 128\]"),
        (prompt(2 * BLOCK + 1), r"len\(token_ids\) must be an integer in \[65, 128\]"),
        ([*prompt(7), 99, *prompt(BLOCK, first=8)], "position 7 was 7, got 99"),
        ([*prompt(BLOCK + 1), 1.5], "token_ids must be integers"),
    ]:
        with pytest.raises(ValueError, match=message):
            sequence.commit(wrong)
        assert sequence.num_committed == BLOCK + 1
    with pytest.raises(ValueError, match=r"in \[0, 63\]"):
        sequence.commit_next(prompt(BLOCK))


def test_commit_next_is_commit() -> None:
    tokens = prompt(2 * BLOCK)
    keys = []
    for pieces in ([tokens], [[token] for token in tokens]):
        pool, sequence = opened(2 * BLOCK)
        for piece in pieces:
            sequence.commit_next(piece)
        keys.append([pool.key_of(block) for block in sequence.block_table])
    assert keys[0] == keys[1] and None not in keys[0]


def test_uncommitted_tokens_are_not_published() -> None:
    pool, sequence = opened(2 * BLOCK)
    sequence.commit(prompt(BLOCK - 1))
    sequence.free()
    assert pool.num_cached == 0


def test_equal_blocks_are_published_once() -> None:
    pool, first = opened(BLOCK)
    second = pool.open(IDENTITY)
    second.append(BLOCK)
    for sequence in (first, second):
        sequence.commit(prompt(BLOCK))
        sequence.free()
    assert (pool.num_cached, pool.num_free, pool.statistics.blocks_published) == (1, 7, 1)


def test_rollback_below_the_committed_keeps_what_is_published() -> None:
    pool, sequence = opened(2 * BLOCK)
    sequence.commit(prompt(2 * BLOCK))
    sequence.rollback(BLOCK + 1)
    assert (sequence.num_tokens, sequence.num_committed, len(sequence.block_table)) == (BLOCK - 1, BLOCK - 1, 1)
    assert pool.num_cached == 1
    assert pool.open(IDENTITY).match_prefix(prompt(2 * BLOCK + 1)) == 2 * BLOCK


def test_what_follows_a_rewritten_block_gets_the_key_of_the_new_history() -> None:
    pool, sequence = opened(2 * BLOCK)
    old, new = prompt(2 * BLOCK), [*prompt(BLOCK - 1), 999, *prompt(BLOCK, first=BLOCK)]
    sequence.commit(old)
    sequence.rollback(BLOCK + 1)
    sequence.append(BLOCK + 1)
    sequence.commit(new)
    sequence.free()
    assert compute(pool, [*new, 1]) == 2 * BLOCK
    assert compute(pool, [*old, 1]) == 0


def test_contradicting_commits_of_forks_do_not_publish_a_block_twice() -> None:
    pool, parent = opened(BLOCK)
    child = parent.fork()
    parent.commit(prompt(BLOCK))
    child.commit(prompt(BLOCK, first=1))
    pool.check()
    assert pool.statistics.blocks_published == 1


def test_a_freed_sequence_refuses_everything_but_free() -> None:
    _, sequence = opened(1)
    sequence.free()
    sequence.free()
    assert sequence.freed and sequence.num_tokens == 0 and sequence.block_table == []
    for call in (
        lambda: sequence.append(1), lambda: sequence.can_append(1), lambda: sequence.commit([]),
        lambda: sequence.commit_next([]), lambda: sequence.fork(), lambda: sequence.rollback(0),
        lambda: sequence.match_prefix([1]), lambda: sequence.adopt_prefix([1]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="sequence must be open"):
            call()


@pytest.mark.parametrize("bad", [-1, 1.5, None, "1"])
def test_counts_must_be_integers_in_range(bad: int) -> None:
    _, sequence = opened(1)
    for call in (sequence.append, sequence.can_append, sequence.rollback):
        with pytest.raises(ValueError, match=f"num_tokens must be an integer .*got {bad!r}"):
            call(bad)
    with pytest.raises(ValueError, match=r"num_tokens must be an integer in \[0, 1\], got 2"):
        sequence.rollback(2)
    assert sequence.num_tokens == 1
