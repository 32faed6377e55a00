"""Where every byte of a KV pool lies (BICL, the block-interleaved cache layout).

The only Python place that knows byte order; `csrc/layout/` is its mirror in C++ and CUDA, and the tests
compare the two address by address. Everything else asks a `Layout` for a shape or an address.
"""

from deepseek_flash_cache.layout.header import BlockHeader, HeaderMismatch
from deepseek_flash_cache.layout.page import Layout, Part, fitting_block_sizes
from deepseek_flash_cache.layout.tile import TileFormat
from deepseek_flash_cache.layout.zorder import TileOrder, zorder_cell, zorder_rank

__all__ = [
    "BlockHeader",
    "HeaderMismatch",
    "Layout",
    "Part",
    "TileFormat",
    "TileOrder",
    "fitting_block_sizes",
    "zorder_cell",
    "zorder_rank",
]
