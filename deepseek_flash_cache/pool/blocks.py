"""Who holds each block? Reference counts, the free list, and the LRU of unused cached blocks.

A block is always in exactly one of four states:

    reserved    id < reserved: never handed out
    free        on the free list: nobody holds it, nothing reusable in it
    used        reference count > 0
    cached      nobody holds it, but the prefix index can still find it; evicted least recently used first

A promise (see reservation.py) does not name blocks: it lowers what everybody else may take.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .prefix import PrefixIndex
from .statistics import Counters


class Blocks:
    """All operations are O(1) per block; callers check ``available`` first."""

    __slots__ = ("_counters", "_index", "cached", "free", "num_blocks", "promised", "ref_count", "reserved", "shared")

    def __init__(self, num_blocks: int, reserved: int, index: PrefixIndex, counters: Counters) -> None:
        self.num_blocks = num_blocks
        self.reserved = reserved
        self.ref_count = [0] * num_blocks
        self.free = list(range(num_blocks - 1, reserved - 1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()
        self.shared = 0
        self.promised = 0
        self._index = index
        self._counters = counters

    @property
    def capacity(self) -> int:
        return self.num_blocks - self.reserved

    @property
    def available(self) -> int:
        """Blocks that can be taken without breaking a promise."""
        return len(self.free) + len(self.cached) - self.promised

    @property
    def used(self) -> int:
        return self.capacity - len(self.free) - len(self.cached)

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks, each with one reference; free ones first, then evicted ones."""
        if count == 0:
            return []
        free, ref_count = self.free, self.ref_count
        if count > len(free):
            self._evict(count - len(free))
        taken = free[-count:]
        del free[-count:]
        for block in taken:
            ref_count[block] = 1
        self._counters.blocks_taken += count
        return taken

    def retain(self, block: int) -> None:
        """One more holder of a used or cached block."""
        count = self.ref_count[block]
        self.ref_count[block] = count + 1
        if count == 0:
            del self.cached[block]
        elif count == 1:
            self.shared += 1

    def release(self, blocks: Iterable[int]) -> int:
        """One holder less of each block; returns how many nobody holds now.

        Give a table tail first: the tail is then evicted first, and a prefix survives its continuations.
        """
        free, cached, ref_count, published = self.free, self.cached, self.ref_count, self._index.key_of
        idle = 0
        for block in blocks:
            count = ref_count[block] - 1
            ref_count[block] = count
            if count == 0:
                idle += 1
                if block in published:
                    cached[block] = None
                else:
                    free.append(block)
            elif count == 1:
                self.shared -= 1
        return idle

    def forget(self, block: int) -> None:
        """Withdraw a published block from the index; if nobody holds it, it becomes free."""
        self._index.withdraw(block)
        if self.ref_count[block] == 0:
            del self.cached[block]
            self.free.append(block)

    def _evict(self, count: int) -> None:
        for _ in range(count):
            block, _ = self.cached.popitem(last=False)
            self._index.withdraw(block)
            self.free.append(block)
        self._counters.evictions += count
