"""The KV-cache block pool: pure Python bookkeeping of blocks, block tables and prefix reuse. See docs/pool.md."""

from .admission import Admission, PoolCorruption, PoolExhausted
from .identity import Adapter, CacheIdentity, ImageSpan, block_keys
from .pool import BlockPool
from .reservation import Reservation
from .sequence import Append, Sequence
from .statistics import Counters

__all__ = [
    "Adapter",
    "Admission",
    "Append",
    "BlockPool",
    "CacheIdentity",
    "Counters",
    "ImageSpan",
    "PoolCorruption",
    "PoolExhausted",
    "Reservation",
    "Sequence",
    "block_keys",
]
