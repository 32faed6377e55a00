"""Which block holds this prefix? The index from keys to blocks, and the search for the longest reusable run."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import NamedTuple

from .identity import DENSE, BlockKey, KeyChain
from .statistics import Counters


class Hit(NamedTuple):
    block: int
    digest: bytes
    dense: int  # how many of its tokens, the first ones, were computed densely


class PrefixIndex:
    """Published blocks by key. A hit compares the whole preimage, token ids included, so a collision is a miss."""

    __slots__ = ("_block_of", "_counters", "_mixed", "key_of")

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.key_of: dict[int, BlockKey] = {}
        self._block_of: dict[bytes, int] = {}
        self._mixed: dict[bytes, Counter[int]] = {}  # parent -> dense tokens of its published mixed children

    def find(self, key: BlockKey) -> int | None:
        """The block published under ``key``, or None."""
        block = self._block_of.get(key.digest)
        if block is None:
            return None
        if self.key_of[block].preimage != key.preimage:
            self._counters.collisions += 1
            return None
        return block

    def publish(self, block: int, key: BlockKey) -> bool:
        """Make ``block`` reusable. False, and no change, if that key or that block is published already."""
        if key.digest in self._block_of or block in self.key_of:
            return False
        self._block_of[key.digest] = block
        self.key_of[block] = key
        if key.mixed:
            self._mixed.setdefault(key.parent, Counter())[key.mixed] += 1
        self._counters.blocks_published += 1
        return True

    def withdraw(self, block: int) -> None:
        """Forget a published block: its content is about to change."""
        key = self.key_of.pop(block)
        del self._block_of[key.digest]
        if key.mixed:
            children = self._mixed[key.parent]
            children[key.mixed] -= 1
            if not +children:
                del self._mixed[key.parent]

    def changes_after(self, parent: bytes) -> list[int]:
        """At how many tokens behind ``parent`` a chain may turn from dense to selected: 0, and inside a block."""
        return [0, *(+self._mixed.get(parent, Counter()))]

    def is_consistent(self) -> bool:
        """Whether keys and blocks map one to one, and every mixed block is on record."""
        mixed = sum(children.total() for children in self._mixed.values())
        one_to_one = self._block_of == {key.digest: block for block, key in self.key_of.items()}
        return one_to_one and mixed == sum(key.mixed > 0 for key in self.key_of.values())


def longest_prefix(index: PrefixIndex, chain: KeyChain, tokens: array[int], num_blocks: int) -> list[Hit]:
    """The longest run of published blocks that ``chain``'s identity may reuse, at most ``num_blocks``.

    A chain is dense up to some block and of the request's own mode from there on. Every point of change is tried:
    tails that start at different points hold different blocks, so the work stays linear in the pool.
    """
    num_blocks = chain.clip(num_blocks)
    modes = chain.identity.reuse_modes
    dense = best = _run(index, chain, tokens, num_blocks, [], modes[0])
    for mode in modes[1:]:
        for change in range(len(dense), -1, -1):
            if len(best) == num_blocks:
                break
            for mixed in index.changes_after(dense[change - 1].digest if change else chain.root):
                best = max(best, _run(index, chain, tokens, num_blocks, dense[:change], mode, mixed), key=len)
    return best


def _run(
    index: PrefixIndex, chain: KeyChain, tokens: array[int], num_blocks: int, head: list[Hit], mode: str, mixed: int = 0
) -> list[Hit]:
    """``head`` followed by the published blocks of ``mode`` that continue it, ``mixed`` dense tokens in the first."""
    size, hits = chain.block_size, head
    parent = head[-1].digest if head else chain.root
    for i in range(len(head), num_blocks):
        key = chain.key(parent, i, tokens[i * size : (i + 1) * size], mode, mixed)
        block = index.find(key)
        if block is None:
            break
        hits.append(Hit(block, key.digest, size if mode == DENSE else mixed))
        parent, mixed = key.digest, 0
    return hits
