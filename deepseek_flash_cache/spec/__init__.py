"""The specification: plain PyTorch that defines the result of every operation, on any device, in fp32.

Written to be read. It is also what runs wherever no compiled operation applies. Shapes in comments:
T tokens, B sequences, H query heads, Hkv kv heads, D head size, Dv value head size, P page tokens.

Edge rules, identical in every implementation: slot -1 is skipped; of several rows for one slot the last wins; a
row with no visible key gives out = 0 and LSE = -inf; query row i stands at position kv_len - q_len + i; nothing
past ceil(kv_len / P) of a block table row is read; NaN in an unread slot never reaches an output. (NaN in V of a key
that some row of the call sees may also reach rows that do not: a weight of 0 times NaN is NaN.)
"""

from deepseek_flash_cache.spec.attention import Attention, attend, attend_linear, attend_pages
from deepseek_flash_cache.spec.storage import append, copy_blocks, gather, pack, stored, unpack

__all__ = [
    "Attention",
    "append",
    "attend",
    "attend_linear",
    "attend_pages",
    "copy_blocks",
    "gather",
    "pack",
    "stored",
    "unpack",
]
