"""A dense request must not inherit K and V that were computed under selection (our own hazard, no public report).

K and V of layers after the first sparse one carry the selection's error. Engines that mix modes in one namespace
hand that error to requests that asked for exact attention.
"""

from __future__ import annotations

import pytest

from deepseek_flash_cache.pool import BlockPool, CacheIdentity
from tests.pool.support import BLOCK, compute, identity, prompt

DENSE, SPARSE, WIDER = identity(), identity(mode="sgm@1f3c budget=2"), identity(mode="sgm@1f3c budget=4")
TOKENS = prompt(8 * BLOCK + 1)


def test_dense_misses_from_the_first_selected_block() -> None:
    pool = BlockPool(64, BLOCK)
    compute(pool, TOKENS, SPARSE)
    assert compute(pool, TOKENS, WIDER) == 0, "another budget is another mode"
    assert compute(pool, TOKENS, DENSE) == 0
    assert compute(pool, TOKENS, DENSE) == 8 * BLOCK


def test_a_sparse_request_may_start_from_dense_blocks() -> None:
    pool = BlockPool(64, BLOCK)
    compute(pool, TOKENS[: 3 * BLOCK + 1], DENSE)
    assert compute(pool, TOKENS, SPARSE) == 3 * BLOCK
    assert compute(pool, TOKENS, DENSE) == 3 * BLOCK, "what followed was computed under selection"
    assert compute(pool, TOKENS, SPARSE) == 8 * BLOCK


def prefill_dense_then_decode(pool: BlockPool, who: CacheIdentity, dense: int) -> None:
    with pool.open(who) as sequence:
        sequence.append(len(TOKENS))
        sequence.commit(TOKENS[:dense], mode="dense")
        sequence.commit(TOKENS)


@pytest.mark.parametrize(("dense", "reusable"), [(4 * BLOCK, 4), (4 * BLOCK + 1, 4), (5 * BLOCK - 1, 4), (0, 0)])
def test_one_selected_token_makes_a_block_selected(dense: int, reusable: int) -> None:
    pool = BlockPool(64, BLOCK)
    prefill_dense_then_decode(pool, SPARSE, dense)
    assert compute(pool, TOKENS, SPARSE) == 8 * BLOCK
    assert compute(pool, TOKENS, DENSE) == reusable * BLOCK


def test_dense_steps_on_top_of_selected_blocks_stay_selected() -> None:
    pool = BlockPool(64, BLOCK)
    with pool.open(SPARSE) as sequence:
        sequence.append(len(TOKENS))
        sequence.commit(TOKENS[:BLOCK])
        sequence.commit(TOKENS, mode="dense")
    assert compute(pool, TOKENS, DENSE) == 0


def test_rollback_behind_the_selected_tokens_makes_dense_possible_again() -> None:
    pool = BlockPool(64, BLOCK)
    with pool.open(SPARSE) as sequence:
        sequence.append(2 * BLOCK)
        sequence.commit(TOKENS[:BLOCK], mode="dense")
        sequence.commit(TOKENS[: 2 * BLOCK])
        sequence.rollback(BLOCK)
        sequence.append(BLOCK)
        sequence.commit(TOKENS[: 2 * BLOCK], mode="dense")
    assert compute(pool, TOKENS, DENSE) == 2 * BLOCK


def test_the_longest_chain_wins_wherever_it_leaves_the_dense_one() -> None:
    pool = BlockPool(64, BLOCK)
    prefill_dense_then_decode(pool, SPARSE, 2 * BLOCK)
    compute(pool, TOKENS[: 5 * BLOCK + 1], DENSE)
    assert compute(pool, TOKENS, SPARSE) == 8 * BLOCK


def test_a_dense_sequence_cannot_be_committed_under_another_mode() -> None:
    with BlockPool(8, BLOCK).open(DENSE) as sequence:
        sequence.append(2)
        with pytest.raises(ValueError, match="mode must be one of"):
            sequence.commit([1, 2], mode="sgm@1f3c budget=2")
        assert sequence.num_committed == 0


def test_mixed_blocks_of_different_histories_are_not_chained() -> None:
    """Found by the property test: equal tokens, the change to selection at different places inside block 0."""
    pool = BlockPool(64, BLOCK)
    first, second = pool.open(SPARSE), pool.open(SPARSE)
    for sequence, dense in ((first, 0), (second, 1)):
        sequence.append(2 * BLOCK)
        sequence.commit(TOKENS[:dense], mode="dense")
        sequence.commit(TOKENS[: 2 * BLOCK - (dense == 0)])  # only the second one fills block 1
    reader = pool.open(SPARSE)
    assert reader.adopt_prefix(TOKENS) == 2 * BLOCK
    assert reader.block_table == second.block_table, "block 1 continues the second history, not the first"
    for sequence in (first, second, reader):
        sequence.free()
    pool.clear_prefix_cache()
    pool.check_idle()


def test_one_selected_token_at_the_start_of_a_block_cannot_be_outvoted() -> None:
    pool = BlockPool(64, BLOCK)
    with pool.open(SPARSE) as sequence:
        sequence.append(2 * BLOCK)
        sequence.commit(TOKENS[:1])
        sequence.commit(TOKENS[: 2 * BLOCK], mode="dense")
    assert compute(pool, TOKENS, DENSE) == 0


def test_tokens_selected_after_a_rollback_do_not_pass_for_the_dense_ones_dropped() -> None:
    pool = BlockPool(64, BLOCK)
    with pool.open(SPARSE) as sequence:
        sequence.append(BLOCK - 1)
        sequence.commit(TOKENS[: BLOCK - 1], mode="dense")
        sequence.rollback(BLOCK - 2)
        sequence.append(BLOCK - 1)
        sequence.commit(TOKENS[: BLOCK - 1])
        sequence.append(1)
        sequence.commit(TOKENS[:BLOCK], mode="dense")
    assert compute(pool, TOKENS, DENSE) == 0
