"""Inside one tile: its row width, and where a 16-byte chunk of a row is stored.

A tile is `block_size` rows (tokens) of `row_bytes` bytes. Three formats exist:

- ``linear``: rows and columns in order.
- ``paired``: K as in ``linear``; in V tiles rows 2i and 2i + 1 are interleaved element by element, as the CPU's
  bf16 dot products and matrix units take the second operand of P.V. For bf16 pools on CPUs.
- ``swizzle``: chunk ``c`` of row ``r`` lies at ``c ^ (r & 7)`` (128-byte rows) or ``c ^ ((r >> 1) & 3)`` (64-byte
  rows). A tile copied byte for byte is then free of bank conflicts for ``ldmatrix`` and ``ldmatrix.trans``, and
  equals the hardware's 128-byte (64-byte) swizzle, since tiles are 1024-byte (512-byte) aligned. For CUDA pools.
"""

from typing import Any, Literal

TileFormat = Literal["linear", "paired", "swizzle"]

CHUNK_BYTES = 16
WIDE_ROW_BYTES = 128
NARROW_ROW_BYTES = 64


def tile_row_bytes(block_size: int, k_bytes: int, v_bytes: int) -> int:
    """Bytes per tile row: 128 when the block has 64 rows and both head rows fill whole 128-byte lines, else 64."""
    wide = block_size == 64 and k_bytes % WIDE_ROW_BYTES == 0 and v_bytes % WIDE_ROW_BYTES == 0
    return WIDE_ROW_BYTES if wide else NARROW_ROW_BYTES


def swizzled_chunk(row: int, chunk: int, row_bytes: int) -> int:
    """Where chunk `chunk` of row `row` is stored in a ``swizzle`` tile. Its own inverse."""
    return chunk ^ (row & 7 if row_bytes == WIDE_ROW_BYTES else (row >> 1) & 3)


def paired_element(row: Any, column: Any, columns: int) -> Any:
    """Element offset of (row, column) in a V tile of format ``paired``; integers or tensors that broadcast."""
    return (row // 2 * columns + column) * 2 + row % 2
