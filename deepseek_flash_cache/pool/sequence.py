"""Which slots hold one sequence's tokens? Its block table, and every step that changes it."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from .admission import Admission, PoolExhausted
from .arguments import require_int
from .history import History
from .identity import CacheIdentity, KeyChain, TokenIds, pack_tokens
from .prefix import Hit, longest_prefix
from .reservation import Reservation
from .state import PoolState


class Append(NamedTuple):
    """Where new tokens go: copy whole blocks (src, dst) first, then write token i to ``slots[i]``."""

    slots: list[int]
    copies: list[tuple[int, int]]


class Sequence:
    """One sequence's block table. Made by ``BlockPool.open`` or ``fork``; a context manager that frees on exit.

    ``block_table`` lists the blocks in order and is for reading only. ``num_tokens`` of them have slots. Of a
    freed sequence only ``free`` and the attributes may still be used.
    """

    __slots__ = (
        "_chain",
        "_counted",
        "_freed",
        "_history",
        "_prompt",
        "_reservation",
        "_state",
        "block_table",
        "identity",
        "num_tokens",
    )  # fmt: skip

    def __init__(self, state: PoolState, chain: KeyChain, reservation: Reservation | None, counted: bool) -> None:
        self.block_table: list[int] = []
        self.identity: CacheIdentity = chain.identity
        self.num_tokens = 0
        self._chain = chain
        self._counted = counted  # in the statistics; a resumed or forked sequence is no new request
        self._freed = False
        self._history = History(chain)
        self._prompt = (0, 0)  # tokens looked up, tokens found: by the latest adopt_prefix
        self._reservation = reservation
        self._state = state
        state.sequences.add(self)

    @property
    def num_committed(self) -> int:
        """How many of the first tokens are known to be computed and accepted."""
        return len(self._history.tokens)

    @property
    def freed(self) -> bool:
        return self._freed

    def match_prefix(self, token_ids: TokenIds) -> int:
        """Tokens of ``token_ids`` that the cache holds now. Attaches nothing, counts nothing.

        At most ``len(token_ids) - 1``: a model must compute one token to say what comes next. 0 for fewer tokens
        than a block; for exactly one cached block of n tokens n - 1, the last slot being rewritten.
        ValueError if the sequence is freed.
        """
        self._require_open()
        limit = max(len(token_ids) - 1, 0)
        return min(limit, len(self._find(pack_tokens(token_ids), limit)) * self._state.block_size)

    def adopt_prefix(self, token_ids: TokenIds, max_tokens: int | None = None) -> int:
        """Attach the cached blocks of ``token_ids`` to this empty sequence; returns the tokens adopted.

        At most ``len(token_ids) - 1`` and ``max_tokens`` tokens. A limit inside a block adopts that block in part,
        and the next append copies it (or, if nobody else holds it, takes it out of the cache) before writing.
        Blocks evicted since ``match_prefix`` are simply not adopted; 0 is a normal answer. Adopting a block that
        nobody holds takes it from what others can allocate, so it stops where that would break a promise.
        ValueError if the sequence has tokens already or is freed, or for ``max_tokens`` below 0.
        """
        self._require_open()
        if self.num_tokens:
            raise ValueError(f"adopt_prefix needs an empty sequence, num_tokens must be 0, got {self.num_tokens}")
        tokens, limit = pack_tokens(token_ids), max(len(token_ids) - 1, 0)
        if max_tokens is not None:
            limit = min(limit, require_int("max_tokens", max_tokens, 0))
        hits = self._attach(self._find(tokens, limit))
        self.num_tokens = min(limit, len(hits) * self._state.block_size)
        self._history.adopt(tokens[: self.num_tokens], hits)
        self._prompt = (len(tokens), self.num_tokens)
        return self.num_tokens

    def _find(self, tokens: array[int], limit: int) -> list[Hit]:
        size = self._state.block_size
        num_blocks = min(-(-limit // size), len(tokens) // size)
        return longest_prefix(self._state.index, self._chain, tokens, num_blocks)

    def _attach(self, hits: list[Hit]) -> list[Hit]:
        blocks = self._state.blocks
        for i, hit in enumerate(hits):
            if blocks.ref_count[hit.block] == 0:
                if self._available() == 0:
                    return hits[:i]
                self._draw(1)
            blocks.retain(hit.block)
            self.block_table.append(hit.block)
        return hits

    def can_append(self, num_tokens: int) -> Admission:
        """Whether ``append(num_tokens)`` would succeed now. ValueError like ``append``; changes nothing."""
        self._require_open()
        needed, copies = self._needed(require_int("num_tokens", num_tokens, 0))
        capacity = self._state.blocks.capacity - len(self.block_table) + copies
        return Admission(needed, self._settled_available(), capacity)

    def append(self, num_tokens: int) -> Append:
        """Get slots (block * block_size + offset) for ``num_tokens`` more tokens.

        0 gives no slots and no copies; 1 takes a block only when the last one is full; exactly one block's worth
        takes one block, two when the last is partly filled by more than the rest. A partly filled block that
        somebody else holds is copied: ``copies`` has at most one (src, dst), to be done before writing.
        PoolExhausted when blocks are lacking, ValueError for a negative number or a freed sequence; in both cases
        nothing has changed.
        """
        self._require_open()
        if num_tokens.__class__ is not int or num_tokens < 0:
            num_tokens = require_int("num_tokens", num_tokens, 0)
        needed, copy = self._needed(num_tokens)
        if needed > self._available() and needed > self._settled_available():
            self._state.counters.exhausted += 1
            raise PoolExhausted(self.can_append(num_tokens))
        start = self.num_tokens
        if not num_tokens:
            return Append([], [])
        copies = self._grow(needed, copy)
        self.num_tokens = start + num_tokens
        if not self._counted:
            self._count_request()
        return Append(self.slots(start, self.num_tokens), copies)

    def slots(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Slots of the tokens at positions [start, stop), for reading; ``stop`` None means ``num_tokens``."""
        stop = self.num_tokens if stop is None else require_int("stop", stop, 0, self.num_tokens, "num_tokens")
        start = require_int("start", start, 0, stop, "stop")
        size, table = self._state.block_size, self.block_table
        index, offset = divmod(start, size)
        if offset + stop - start <= size:  # one block: the decode step
            return [table[index] * size + offset + i for i in range(stop - start)]
        first = table[index] * size
        slots = list(range(first + offset, first + size))
        for position in range((index + 1) * size, stop, size):
            index += 1
            first = table[index] * size
            slots += range(first, first + min(size, stop - position))
        return slots

    def _needed(self, num_tokens: int) -> tuple[int, int]:
        """Blocks that ``num_tokens`` more tokens take, and how many of these (0 or 1) replace a shared one."""
        table, size = self.block_table, self._state.block_size
        needed = -(-(self.num_tokens + num_tokens) // size) - len(table)
        if num_tokens and self.num_tokens % size and self._state.blocks.ref_count[table[-1]] > 1:
            return needed + 1, 1
        return needed, 0

    def _grow(self, needed: int, copy: int) -> list[tuple[int, int]]:
        """Make the partly filled last block writable and add blocks, ``needed`` in all."""
        state, table, copies = self._state, self.block_table, []
        if needed:
            self._draw(needed)
            taken = state.blocks.take(needed)
            if copy:
                copies.append((table[-1], taken[0]))
                state.blocks.release((table.pop(),))
                state.counters.copies_on_write += 1
        if not copy and self.num_tokens % state.block_size and table[-1] in state.index.key_of:
            state.blocks.forget(table[-1])
        if needed:
            table += taken
        return copies

    def commit(self, token_ids: TokenIds, *, mode: str | None = None) -> None:
        """Declare all ``token_ids``, from position 0, computed and accepted; publish the blocks they fill.

        ``mode`` is what the newly committed ones were computed under, one of ``identity.reuse_modes``; None means
        ``identity.mode``. After the first token under selection every later one counts as selected. Less than a
        block publishes nothing, exactly one block publishes one; a block equal to a published one is not published
        twice. ValueError, and no change, if ``token_ids`` is longer than ``num_tokens``, does not start with what
        was committed before, or holds anything but integers. Costs O(len(token_ids)); see ``commit_next``.
        """
        self._require_open()
        require_int("len(token_ids)", len(token_ids), self.num_committed, self.num_tokens, "num_committed, num_tokens")
        self._publish(self._history.suffix(token_ids), mode)

    def commit_next(self, token_ids: TokenIds, *, mode: str | None = None) -> None:
        """``commit``, given only the tokens that follow the committed ones: O(new tokens), for decode steps."""
        self._require_open()
        open_tokens = self.num_tokens - self.num_committed
        require_int("len(token_ids)", len(token_ids), 0, open_tokens, "num_tokens - num_committed")
        self._publish(pack_tokens(token_ids), mode)

    def _publish(self, tokens: array[int], mode: str | None) -> None:
        accepted = self.identity.reuse_modes
        if mode is not None and mode not in accepted:
            raise ValueError(f"mode must be one of {accepted}, got {mode!r}")
        self._history.extend(tokens, mode or self.identity.mode)
        if not self._state.prefix_caching:
            return
        for i, key in self._history.new_keys():
            self._state.index.publish(self.block_table[i], key)

    def fork(self) -> Sequence:
        """A second sequence with the same tokens in the same blocks (beams, parallel samples). Takes no block.

        The next append of either copies a partly filled last block, unless the other has let go of it by then.
        The fork has no reservation and is not counted as a request. ValueError if freed.
        """
        self._require_open()
        twin = Sequence(self._state, self._chain, None, counted=True)
        for block in self.block_table:
            self._state.blocks.retain(block)
        twin.block_table = self.block_table[:]
        twin.num_tokens = self.num_tokens
        twin._history = self._history.copy()
        return twin

    def rollback(self, num_tokens: int) -> None:
        """Drop the last ``num_tokens`` tokens (rejected drafts, a crop) and give back the blocks left empty.

        0 changes nothing; all of them leave an empty, open sequence. May go below ``num_committed``, which then
        shrinks with it, while published blocks stay published. ValueError if not in [0, num_tokens] or freed.
        """
        self._require_open()
        kept = self.num_tokens - require_int("num_tokens", num_tokens, 0, self.num_tokens)
        self._drop_blocks(-(-kept // self._state.block_size))
        self.num_tokens = kept
        self._history.truncate(kept)

    def free(self) -> None:
        """Give back every block: published ones to the cache, tail first, others to the free list. Idempotent."""
        if self._freed:
            return
        self._drop_blocks(0)
        self.num_tokens = 0
        self._history.truncate(0)
        self._freed = True
        self._state.sequences.discard(self)

    def abandon(self) -> None:
        """``free``, but at the pool's next operation: for finalizers, which may run in the middle of another one."""
        self._state.abandoned.append(self)

    def _drop_blocks(self, kept: int) -> None:
        dropped = self.block_table[kept:]
        if not dropped:
            return
        del self.block_table[kept:]
        dropped.reverse()
        idle = self._state.blocks.release(dropped)
        if self._reservation is not None:
            self._reservation.restore(idle)

    def _available(self) -> int:
        promised = 0 if self._reservation is None else self._reservation.remaining
        return self._state.blocks.available + promised

    def _settled_available(self) -> int:
        self._state.settle()
        return self._available()

    def _draw(self, count: int) -> None:
        if self._reservation is not None:
            self._reservation.draw(count)

    def _count_request(self) -> None:
        counters, (asked, found) = self._state.counters, self._prompt
        self._counted = True
        counters.queries += 1
        counters.query_tokens += asked or self.num_tokens
        counters.hit_tokens += found

    def _require_open(self) -> None:
        if self._freed:
            raise ValueError("sequence must be open, got one that is freed: open a new one from the pool")

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()

    def __repr__(self) -> str:
        state = "freed" if self._freed else f"{self.num_tokens} tokens in blocks {self.block_table}"
        return f"<Sequence {state}, {self.num_committed} committed>"
