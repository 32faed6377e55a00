"""What can a cache manager ask of its blocks? The face of the pool."""

from __future__ import annotations

import dataclasses

from . import audit
from .admission import Admission, PoolExhausted
from .arguments import require_int
from .blocks import Blocks
from .identity import CacheIdentity, KeyChain, require_hash
from .prefix import PrefixIndex
from .reservation import Reservation
from .sequence import Sequence
from .state import PoolState
from .statistics import Counters


class BlockPool:
    """Bookkeeping for ``num_blocks`` blocks of ``block_size`` token slots. Holds no tensors, takes no locks.

    ``reserved_blocks``: the first ids are never handed out (TGI's graph padding writes to block 0).
    ``watermark``: blocks that ``can_admit`` keeps back so that running sequences can grow.
    ``prefix_caching`` False: nothing is published or found. ``hash`` can only be "sha256".
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, watermark: int = 0, reserved_blocks: int = 0,
        prefix_caching: bool = True, hash: str = "sha256",
    ) -> None:  # fmt: skip
        num_blocks = require_int("num_blocks", num_blocks, 1)
        block_size = require_int("block_size", block_size, 1)
        reserved = require_int("reserved_blocks", reserved_blocks, 0, num_blocks - 1, "one block must remain")
        self._watermark = require_int("watermark", watermark, 0, num_blocks - reserved - 1, "one block must remain")
        require_hash(hash)
        counters = Counters()
        index = PrefixIndex(counters)
        blocks = Blocks(num_blocks, reserved, index, counters)
        self._state = PoolState(block_size, bool(prefix_caching), blocks, index, counters)

    @property
    def _settled(self) -> PoolState:
        """The state as the outside must see it: abandoned sequences are freed."""
        return self._state.settle()

    @property
    def num_blocks(self) -> int:
        """All blocks: reserved + free + cached + used."""
        return self._settled.blocks.num_blocks

    @property
    def block_size(self) -> int:
        return self._settled.block_size

    @property
    def num_reserved(self) -> int:
        """Blocks never handed out. (Blocks promised by ``reserve`` are still free or cached.)"""
        return self._settled.blocks.reserved

    @property
    def num_free(self) -> int:
        return len(self._settled.blocks.free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but the prefix index keeps; evicted when free ones run out."""
        return len(self._settled.blocks.cached)

    @property
    def num_used(self) -> int:
        return self._settled.blocks.used

    @property
    def num_shared(self) -> int:
        """Used blocks that more than one sequence holds."""
        return self._settled.blocks.shared

    @property
    def num_promised(self) -> int:
        """Blocks that open reservations have not drawn yet."""
        return self._settled.blocks.promised

    @property
    def statistics(self) -> Counters:
        """A copy of the counters."""
        return dataclasses.replace(self._settled.counters)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part; 0 for 0."""
        return -(-require_int("num_tokens", num_tokens, 0) // self.block_size)

    def can_admit(self, num_tokens: int, *, cached_tokens: int = 0) -> Admission:
        """Whether a new request of ``num_tokens`` tokens may start; keeps the watermark back.

        ``cached_tokens`` of them (at most ``num_tokens``) come from ``match_prefix``. The answer is on the safe
        side: cached blocks nobody holds cannot be evicted to make room for the request that reuses them. When
        ``never``, reject the request. 0 tokens need 0 blocks. ValueError for numbers out of range.
        """
        total = self.blocks_for(num_tokens)
        reused = require_int("cached_tokens", cached_tokens, 0, num_tokens, "num_tokens") // self.block_size
        kept_back = self._watermark + min(reused, self.num_cached)
        available = max(self._settled.blocks.available - kept_back, 0)
        return Admission(total - reused, available, self._settled.blocks.capacity - self._watermark - reused)

    def can_allocate(self, num_blocks: int) -> Admission:
        """Whether ``num_blocks`` blocks could be taken now, watermark or not."""
        needed = require_int("num_blocks", num_blocks, 0)
        return Admission(needed, self._settled.blocks.available, self._settled.blocks.capacity)

    def reserve(self, num_blocks: int) -> Reservation:
        """Promise ``num_blocks`` blocks to the sequences opened with the result; close it to end the promise.

        0 is allowed. PoolExhausted, and no change, if they are not available.
        """
        admission = self.can_allocate(num_blocks)
        if not admission:
            self._settled.counters.exhausted += 1
            raise PoolExhausted(admission)
        return Reservation(self._settled.blocks, admission.needed, self._settled.reservations)

    def open(
        self, identity: CacheIdentity, *, reservation: Reservation | None = None, resumed: bool = False
    ) -> Sequence:
        """An empty sequence, which holds no block yet.

        ``reservation``: draw blocks from this promise of the same pool first. ``resumed``: the request ran before
        and was pre-empted, so the statistics do not count it again.
        """
        if not isinstance(identity, CacheIdentity):
            raise ValueError(f"identity must be a CacheIdentity, got {identity!r}")
        if reservation is not None and reservation not in self._settled.reservations:
            raise ValueError(f"reservation must be an open one of this pool, got {reservation!r}")
        return Sequence(self._settled, KeyChain(identity, self.block_size), reservation, counted=resumed)

    def key_of(self, block: int) -> bytes | None:
        """The digest under which ``block`` is published, the full key that tiers must use; None if it is not."""
        key = self._settled.index.key_of.get(require_int("block", block, 0, self.num_blocks - 1))
        return None if key is None else key.digest

    def clear_prefix_cache(self) -> int:
        """Withdraw every published block, held ones too; returns how many."""
        published = list(self._settled.index.key_of)
        for block in published:
            self._settled.blocks.forget(block)
        return len(published)

    def check(self) -> None:
        """Recount everything; PoolCorruption names the violated invariant."""
        audit.check(self._settled)

    def check_idle(self) -> None:
        """``check``, and that no sequence holds a block and no promise is open: "leak detected" names the blocks."""
        audit.check_idle(self._settled)

    def __repr__(self) -> str:
        return (
            f"<BlockPool {self.num_blocks} blocks of {self.block_size} tokens: {self.num_free} free, "
            f"{self.num_cached} cached, {self.num_used} used, {self.num_reserved} reserved>"
        )
