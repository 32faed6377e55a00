"""What happened so far? Counters that only grow; rates and ratios are for whoever scrapes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the pool was made. No call resets or lowers them, so a decode step cannot hide a hit.

    A request is counted once, when its first tokens get slots: not when it is looked up or refused, and not again
    when it resumes after pre-emption.
    """

    queries: int = 0  # requests
    query_tokens: int = 0  # their prompt tokens
    hit_tokens: int = 0  # prompt tokens that came from the cache
    blocks_taken: int = 0
    blocks_published: int = 0
    copies_on_write: int = 0
    evictions: int = 0
    exhausted: int = 0  # appends and reservations refused for lack of blocks
    collisions: int = 0  # equal digests with different content, treated as misses
