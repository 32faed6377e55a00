"""What pool tests share: a request from lookup to end, and what a sequence must hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from deepseek_flash_cache.pool import BlockPool, CacheIdentity, Sequence

BLOCK = 64
IDENTITY = CacheIdentity("bicl-test", b"model digest")


def identity(**changes: object) -> CacheIdentity:
    return replace(IDENTITY, **changes)  # type: ignore[arg-type]


def compute(pool: BlockPool, tokens: list[int], who: CacheIdentity = IDENTITY) -> int:
    """Reuse, compute the rest, publish, finish. Returns the tokens reused."""
    with pool.open(who) as sequence:
        reused = sequence.adopt_prefix(tokens)
        sequence.append(len(tokens) - reused)
        sequence.commit(tokens)
    return reused


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


@dataclass(eq=False)
class Run:
    """A sequence, the (token, mode) pairs it is expected to hold, and what each step said its mode was."""

    sequence: Sequence
    identity: CacheIdentity
    cells: list[tuple[int, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [token for token, _ in self.cells]

    @property
    def history(self) -> list[int]:
        """What the slot of each position must hold."""
        seen, slots = hash(self.identity.tenant), []
        for cell in self.cells:
            seen = hash((seen, cell))
            slots.append(seen)
        return slots

    @property
    def may_reuse(self) -> list[str]:
        """Said here once more, so that the test does not take the code's word for it."""
        return ["dense"] if self.identity.mode == "dense" else ["dense", self.identity.mode]

    def mode_of_next(self, wanted: str) -> str:
        """Dense steps on top of selected K and V do not make dense K and V."""
        return wanted if all(mode == "dense" for _, mode in self.cells) else self.identity.mode
