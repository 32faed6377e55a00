"""Is there room? The answer as a value, and the same answer as an exception."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether ``needed`` more blocks can be had. Truthy when they can.

    ``available`` counts free and evictable blocks that are not kept back or promised to somebody else;
    ``capacity`` is what ``available`` would be if every other sequence ended.
    """

    needed: int
    available: int
    capacity: int

    @property
    def ok(self) -> bool:
        return self.needed <= self.available

    @property
    def never(self) -> bool:
        """Waiting cannot help: reject the request instead of queueing it."""
        return self.needed > self.capacity

    @property
    def message(self) -> str:
        if self.ok:
            return f"ok: {self.needed} blocks needed, {self.available} available"
        refused = f"{self.needed} blocks needed, {self.available} available, {self.capacity} possible at most"
        if self.never:
            return f"{refused}: it can never fit; shorten the request or give the pool more blocks"
        return f"{refused}: wait until a running sequence ends, or free (pre-empt) one"

    def __bool__(self) -> bool:
        return self.ok


class PoolExhausted(Exception):
    """There were not enough blocks, and nothing was changed. Not a RuntimeError: hosts take those for crashes."""

    def __init__(self, admission: Admission) -> None:
        super().__init__(admission.message)
        self.admission = admission

    @property
    def needed(self) -> int:
        return self.admission.needed

    @property
    def available(self) -> int:
        return self.admission.available


class PoolCorruption(Exception):
    """A self-check found a violated invariant. The pool must not be used any further."""
