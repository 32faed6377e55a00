"""Is the bookkeeping still true? Every invariant, recounted from the open sequences' tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .admission import PoolCorruption
from .state import PoolState


def check(state: PoolState) -> None:
    """Raise PoolCorruption naming the first violated invariant and the blocks; O(blocks + table entries)."""
    _check_free_list(state)
    _check_references(state)
    _check_places(state)
    _check_promises(state)
    for sequence in state.sequences:
        blocks, size = len(sequence.block_table), state.block_size
        _require(blocks == -(-sequence.num_tokens // size), f"{sequence!r} has a table of the wrong length")
        _require(sequence.num_committed <= sequence.num_tokens, f"{sequence!r} committed more than it has")


def check_idle(state: PoolState) -> None:
    """``check``, and no block is held."""
    check(state)
    held = [block for block, count in enumerate(state.blocks.ref_count) if count]
    _require_none(held, f"leak detected: {len(state.sequences)} sequences were never freed and hold")
    _require(not state.blocks.promised, f"leak detected: {state.blocks.promised} blocks are still promised")


def _check_free_list(state: PoolState) -> None:
    free = state.blocks.free
    _require_none(_repeated(free), "the free list has twice")
    _require_none([b for b in free if not state.blocks.reserved <= b < state.blocks.num_blocks], "no free block may be")


def _check_references(state: PoolState) -> None:
    held: Counter[int] = Counter()
    for sequence in state.sequences:
        _require_none(_repeated(sequence.block_table), f"{sequence!r} has twice")
        held.update(sequence.block_table)
    ref_count = state.blocks.ref_count
    wrong = [block for block, count in enumerate(ref_count) if count != held[block]]
    _require_none(wrong, "reference count differs from the number of tables for")
    shared = sum(count > 1 for count in ref_count)
    _require(shared == state.blocks.shared, f"{shared} blocks are shared, {state.blocks.shared} were counted")


def _check_places(state: PoolState) -> None:
    blocks, free, published = state.blocks, set(state.blocks.free), state.index.key_of
    wrong = [
        block
        for block in range(blocks.num_blocks)
        if (block < blocks.reserved) + (block in free) + (block in blocks.cached) + (blocks.ref_count[block] > 0) != 1
    ]
    _require_none(wrong, "not in exactly one of reserved, free, cached, used:")
    _require_none([b for b in blocks.cached if b not in published], "cached but not in the prefix index:")
    _require_none([b for b in published if b in free or b < blocks.reserved], "free or reserved, yet published:")
    _require(state.index.is_consistent(), "the prefix index does not map keys and blocks one to one")


def _check_promises(state: PoolState) -> None:
    promised = sum(reservation.remaining for reservation in state.reservations)
    blocks = state.blocks
    _require(promised == blocks.promised, f"{promised} blocks are promised, {blocks.promised} were counted")
    _require(blocks.available >= 0, f"{promised} blocks are promised, more than are free or cached")


def _repeated(blocks: Iterable[int]) -> list[int]:
    return [block for block, count in Counter(blocks).items() if count > 1]


def _require(holds: bool, invariant: str) -> None:
    if not holds:
        raise PoolCorruption(invariant)


def _require_none(blocks: list[int], invariant: str) -> None:
    _require(not blocks, f"{invariant} block(s) {sorted(blocks)[:16]}{' ...' if len(blocks) > 16 else ''}")
