"""The pool against a model that writes every token into every slot, under random operations.

The model keeps what each slot of a real cache would hold: the token id, the mode it was computed under, the tenant
and the whole history before it. A sequence must read exactly its own history through its table, whatever others did.
Covers the public faults A13, A18, C4, C12, C14 and the hazards of copy on write, eviction and promises.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deepseek_flash_cache.pool import BlockPool, CacheIdentity, PoolExhausted, Reservation, Sequence
from tests.pool.support import Run

MODES = ("dense", "topk:budget=2")
identities = st.builds(
    lambda tenant, mode: CacheIdentity("layout", b"model", tenant=(tenant,), mode=mode),
    st.sampled_from("aab"),
    st.sampled_from(MODES),
)
# Histories repeat: they follow one text, with at most one deviation each.
prompts = st.builds(
    lambda length, odd: [int(position == odd) for position in range(length)], st.integers(0, 16), st.integers(0, 60)
)
steps = st.lists(st.sampled_from([0, 0, 1]), max_size=6)
picks = st.integers(0, 99)  # which live sequence or reservation, modulo how many there are
counts = st.integers(0, 9)


class PoolMachine(RuleBasedStateMachine):
    @initialize(blocks=st.integers(6, 40), size=st.integers(1, 4), reserved=st.integers(0, 2))
    def make(self, blocks: int, size: int, reserved: int) -> None:
        self.pool = BlockPool(blocks, size, reserved_blocks=reserved)
        self.slots = [0] * (blocks * size)
        self.live: list[Run] = []
        self.promises: list[Reservation] = []
        self.committed: dict[tuple[int, ...], str] = {}  # contents of each committed block -> mode of its last token
        self.texts: list[tuple[str, list[int]]] = []  # tenants and what they committed lately, to be asked again
        self.counters = self.pool.statistics

    def pick(self, number: int) -> Run:
        return self.live[number % len(self.live)]

    def start(self, identity: CacheIdentity, promise: int = 99) -> Run:
        if len(self.live) == 5:  # keep room: a full pool only refuses
            self.live.pop(0).sequence.free()
        reservation = self.promises[promise] if promise < len(self.promises) else None
        self.live.append(Run(self.pool.open(identity, reservation=reservation), identity))
        return self.live[-1]

    def write(self, run: Run, tokens: list[int], mode: str) -> None:
        """What a kernel would do."""
        append = run.sequence.append(len(tokens))
        run.said += [mode] * len(tokens)
        size, mode = self.pool.block_size, run.mode_of_next(mode)
        for source, target in append.copies:
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]
        run.cells += [(token, mode) for token in tokens]
        assert len(append.slots) == len(tokens)
        for slot, content in zip(append.slots, run.history[len(run.cells) - len(tokens) :], strict=True):
            self.slots[slot] = content

    def read(self, run: Run) -> list[int]:
        return [self.slots[slot] for slot in run.sequence.slots()]

    def content(self, block: int) -> tuple[int, ...]:
        size = self.pool.block_size
        return tuple(self.slots[block * size : (block + 1) * size])

    def observe(self) -> object:
        pool = self.pool
        tables = [(r.sequence.block_table[:], r.sequence.num_tokens, r.sequence.num_committed) for r in self.live]
        return pool.num_free, pool.num_cached, pool.num_shared, pool.num_promised, tables

    def try_append(self, run: Run, tokens: list[int], mode: str | None = None) -> bool:
        """Append and write; a refusal must change nothing."""
        admission, before = run.sequence.can_append(len(tokens)), self.observe()
        try:
            self.write(run, tokens, mode or run.identity.mode)
        except PoolExhausted as error:
            assert not admission and error.needed > error.available and self.observe() == before
            return False
        assert admission
        return True

    def commit_up_to(self, run: Run, stop: int) -> None:
        """Commit in stretches of one mode, as they were computed."""
        while (done := run.sequence.num_committed) < stop:
            mode = run.said[done]
            end = next((i for i in range(done, stop) if run.said[i] != mode), stop)
            if end % 2:
                run.sequence.commit(run.tokens[:end], mode=mode)
            else:
                run.sequence.commit_next(run.tokens[done:end], mode=mode)
        self.texts = [*self.texts[-3:], (run.identity.tenant[0], run.tokens[:stop])]
        history, size = run.history, self.pool.block_size
        for end in range(size, stop + 1, size):
            self.committed[tuple(history[end - size : end])] = run.cells[end - 1][1]

    def adopt(self, run: Run, prompt: list[int], limit: int | None) -> None:
        """What is adopted must be what somebody committed for these very tokens, under a mode that may be reused."""
        adopted = run.sequence.adopt_prefix(prompt, limit)
        contents = [self.content(block) for block in run.sequence.block_table]
        assert adopted <= min(max(len(prompt) - 1, 0), len(prompt) if limit is None else limit)
        assert all(content in self.committed for content in contents), "adopted a block that nobody committed"
        modes = {self.committed[content] for content in contents}
        assert modes <= set(run.may_reuse)
        self.recover_cells(run, prompt[:adopted])

    def recover_cells(self, run: Run, tokens: list[int]) -> None:
        """The mode of each adopted token, read back from the slots; fails if any other history is in them."""
        for token, content in zip(tokens, self.read(run), strict=True):
            fitting = [
                mode for mode in run.may_reuse
                if Run(run.sequence, run.identity, [*run.cells, (token, mode)]).history[-1] == content
            ]  # fmt: skip
            assert fitting, "adopted a slot that holds another history"
            run.cells.append((token, fitting[0]))
            run.said.append(fitting[0])

    def drop(self, run: Run, count: int) -> None:
        run.sequence.rollback(count)
        kept = len(run.cells) - count
        del run.cells[kept:], run.said[kept:]

    @rule(identity=identities, prompt=prompts, limit=st.none() | counts, promise=st.integers(0, 5))
    def request(self, identity: CacheIdentity, prompt: list[int], limit: int | None, promise: int) -> None:
        """Adopt, compute the rest, commit: a prefill."""
        run = self.start(identity, promise)
        self.adopt(run, prompt, limit)
        if self.try_append(run, prompt[len(run.cells) :]):
            self.commit_up_to(run, len(prompt))

    @precondition(lambda self: self.texts)
    @rule(pick=picks, mode=st.sampled_from(MODES), more=steps, dense=st.integers(0, 16))
    def next_turn(self, pick: int, mode: str, more: list[int], dense: int) -> None:
        """A longer conversation, or the same one under another mode; the first ``dense`` tokens densely."""
        tenant, text = self.texts[pick % len(self.texts)]
        run = self.start(CacheIdentity("layout", b"model", tenant=(tenant,), mode=mode))
        self.adopt(run, [*text, *more], None)
        rest = [*text, *more][len(run.cells) :]
        if self.try_append(run, rest[:dense], "dense") and self.try_append(run, rest[dense:]):
            self.commit_up_to(run, len(run.cells))

    @rule(identity=identities, prompt=prompts, other=identities, late=prompts)
    def evicted_between_match_and_adopt(
        self, identity: CacheIdentity, prompt: list[int], other: CacheIdentity, late: list[int]
    ) -> None:
        run = self.start(identity)
        matched = run.sequence.match_prefix(prompt)
        assert matched <= max(len(prompt) - 1, 0)
        self.try_append(self.start(other), late)
        self.adopt(run, prompt, None)
        assert run.sequence.num_tokens <= matched

    @precondition(lambda self: self.live)
    @rule(pick=picks, tokens=steps, dense=st.booleans())
    def append(self, pick: int, tokens: list[int], dense: bool) -> None:
        self.try_append(self.pick(pick), tokens, "dense" if dense else None)

    @precondition(lambda self: self.live)
    @rule(pick=picks, drafts=steps, rejected=counts)
    def speculate(self, pick: int, drafts: list[int], rejected: int) -> None:
        run = self.pick(pick)
        if self.try_append(run, drafts):
            self.drop(run, min(rejected, len(drafts)))
            self.commit_up_to(run, len(run.cells))

    @precondition(lambda self: self.live)
    @rule(pick=picks, count=counts)
    def commit(self, pick: int, count: int) -> None:
        run = self.pick(pick)
        self.commit_up_to(run, min(run.sequence.num_committed + count, len(run.cells)))

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        run = self.pick(pick)
        self.live.append(Run(run.sequence.fork(), run.identity, run.cells[:], run.said[:]))

    @precondition(lambda self: self.live)
    @rule(pick=picks, count=counts)
    def rollback(self, pick: int, count: int) -> None:
        run = self.pick(pick)
        if count > len(run.cells):
            with pytest.raises(ValueError, match="num_tokens"):
                run.sequence.rollback(count)
        else:
            self.drop(run, count)

    @precondition(lambda self: self.live)
    @rule(pick=picks, count=counts, tokens=steps)
    def rewrite(self, pick: int, count: int, tokens: list[int]) -> None:
        """Crop below what was committed and go on differently."""
        run = self.pick(pick)
        self.drop(run, min(count, len(run.cells)))
        if self.try_append(run, tokens):
            self.commit_up_to(run, len(run.cells))

    @precondition(lambda self: self.live)
    @rule(pick=picks, commit=st.booleans())
    def end(self, pick: int, commit: bool) -> None:
        """Finish, or cancel at any moment with uncommitted tokens and all; twice does no harm."""
        run = self.pick(pick)
        if commit:
            self.commit_up_to(run, len(run.cells))
        run.sequence.free()
        run.sequence.free()
        self.live.remove(run)
        with pytest.raises(ValueError, match="freed"):
            run.sequence.append(1)

    @precondition(lambda self: len(self.promises) < 2)
    @rule(count=st.integers(0, 4))
    def reserve(self, count: int) -> None:
        possible = self.pool.can_allocate(count)
        if possible:
            self.promises.append(self.pool.reserve(count))
        else:
            with pytest.raises(PoolExhausted):
                self.pool.reserve(count)

    @precondition(lambda self: self.promises)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        reservation = self.promises.pop(pick % len(self.promises))
        reservation.close()
        reservation.close()

    @rule(share=st.sampled_from([0.2, 0.5, 1.0]), clear=st.sampled_from([False] * 4 + [True]))
    def evict(self, share: float, clear: bool) -> None:
        """Somebody takes a part or all of what there is; promises must hold even then."""
        if clear:
            self.pool.clear_prefix_cache()
        identity = CacheIdentity("layout", b"model", tenant=("greedy",))
        with self.pool.open(identity) as greedy:
            greedy.append(int(share * self.pool.can_allocate(0).available) * self.pool.block_size)
            self.scribble(greedy)
            assert share < 1 or not greedy.can_append(1)
            for reservation in self.promises:
                with self.pool.open(identity, reservation=reservation) as owner:
                    owner.append(reservation.remaining * self.pool.block_size)
                    self.scribble(owner)

    def scribble(self, sequence: Sequence) -> None:
        for slot in sequence.slots():
            self.slots[slot] = -1

    @invariant()
    def bookkeeping(self) -> None:
        pool = self.pool
        pool.check()
        assert pool.num_free + pool.num_used + pool.num_cached + pool.num_reserved == pool.num_blocks
        assert pool.num_promised == sum(reservation.remaining for reservation in self.promises)
        assert pool.num_promised <= pool.num_free + pool.num_cached

    @invariant()
    def references(self) -> None:
        holders = Counter(block for run in self.live for block in run.sequence.block_table)
        assert len(holders) == self.pool.num_used
        assert sum(count > 1 for count in holders.values()) == self.pool.num_shared
        assert all(block >= self.pool.num_reserved for block in holders)

    @invariant()
    def every_sequence_reads_its_own_tokens(self) -> None:
        for run in self.live:
            assert run.sequence.num_tokens == len(run.cells)
            assert self.read(run) == run.history

    @invariant()
    def published_content_was_committed(self) -> None:
        for block in range(self.pool.num_blocks):
            assert self.pool.key_of(block) is None or self.content(block) in self.committed

    @invariant()
    def counters_only_grow(self) -> None:
        before, self.counters = self.counters, self.pool.statistics
        for name in before.__dataclass_fields__:
            assert getattr(self.counters, name) >= getattr(before, name)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for run in self.live:
            run.sequence.free()
        for reservation in self.promises:
            reservation.close()
        self.pool.check_idle()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=250, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
