"""What do the pool and its sequences share? The parts, passed around as one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .blocks import Blocks
from .prefix import PrefixIndex
from .reservation import Reservation
from .statistics import Counters

if TYPE_CHECKING:
    from .sequence import Sequence


@dataclass(slots=True, eq=False)
class PoolState:
    block_size: int
    prefix_caching: bool
    blocks: Blocks
    index: PrefixIndex
    counters: Counters
    sequences: set[Sequence] = field(default_factory=set)  # every open one: the self-check counts their tables
    reservations: set[Reservation] = field(default_factory=set)
    abandoned: deque[Sequence] = field(default_factory=deque)  # to be freed at the next operation

    def settle(self) -> PoolState:
        """Free what was abandoned. Returns itself."""
        while self.abandoned:
            self.abandoned.popleft().free()
        return self
