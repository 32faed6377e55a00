"""A page of the pool: all kv heads of `page_tokens` consecutive token slots of one layer.

A page is one block, or `extent` blocks side by side. Within a page each kv head is one contiguous run: first all
its K tiles, then all its V tiles; heads follow one another. The tiles of a part (K or V) form a grid of
`extent` token blocks x column tiles, stored in row order or along the Z-order curve.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, cast

import torch

from deepseek_flash_cache.layout.tile import CHUNK_BYTES, TileFormat, paired_element, swizzled_chunk, tile_row_bytes
from deepseek_flash_cache.layout.zorder import TileOrder, zorder_cell, zorder_rank

Part = Literal["k", "v"]

LAYOUT_VERSION = 1
BLOCK_SIZES = (32, 64)
POOL_EXTENTS = (1, 2, 4)
TILE_ORDERS: tuple[TileOrder, ...] = ("row", "zorder")
TILE_FORMATS: tuple[TileFormat, ...] = ("linear", "paired", "swizzle")
MAX_HEAD_SIZE = 1024
DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
}
_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_ID = re.compile(
    r"bicl(?P<version>\d+)-(?P<tile_format>[a-z]+)-(?P<tile_order>[a-z]+)-b(?P<block_size>\d+)-e(?P<extent>\d+)"
    r"-(?P<dtype>\w+)-h(?P<num_kv_heads>\d+)-k(?P<head_size>\d+)-v(?P<head_size_v>\d+)"
)


def fitting_block_sizes(head_size: int, head_size_v: int) -> tuple[int, ...]:
    """Block sizes that serve these head sizes without a partly filled 64-column tile."""
    return BLOCK_SIZES if head_size % 64 == 0 and head_size_v % 64 == 0 else (32,)


@dataclass(frozen=True)
class Layout:
    """The meaning of every byte of one layer's pool.

    Parameters
    ----------
    dtype : torch.dtype
        Storage type: float32, float16, bfloat16, float8_e4m3fn or float8_e5m2.
    num_kv_heads, head_size, head_size_v : int
        KV heads, columns of a K row and of a V row. A row must fill whole 16-byte chunks. `head_size_v` may differ.
    block_size : int
        Rows of a tile: 64 (head sizes divisible by 64) or 32 (any; the last tile is padded where needed).
    extent : int
        Blocks per page. Pools take 1, 2 or 4; any value makes a whole linear cache one page.
    tile_order : "row" or "zorder"
        Order of the tiles within a page and part. Both coincide with extent 1.
    tile_format : "linear", "paired" or "swizzle"
        See `layout.tile`; "paired" is for bfloat16.

    Raises
    ------
    ValueError
        Naming the argument, its value and what is accepted.
    """

    dtype: torch.dtype
    num_kv_heads: int
    head_size: int
    head_size_v: int
    block_size: int = 64
    extent: int = 1
    tile_order: TileOrder = "row"
    tile_format: TileFormat = "linear"

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPE_NAMES, "dtype", self.dtype, f"one of {', '.join(map(str, DTYPE_NAMES))}")
        _require(self.tile_order in TILE_ORDERS, "tile_order", self.tile_order, f"one of {TILE_ORDERS}")
        _require(self.tile_format in TILE_FORMATS, "tile_format", self.tile_format, f"one of {TILE_FORMATS}")
        for name in ("num_kv_heads", "head_size", "head_size_v", "block_size", "extent"):
            value = getattr(self, name)
            _require(type(value) is int, name, repr(value), "an integer")
        _require(self.num_kv_heads >= 1, "num_kv_heads", self.num_kv_heads, "at least 1")
        _require(self.extent >= 1, "extent", self.extent, "at least 1")
        _require(self.block_size in BLOCK_SIZES, "block_size", self.block_size, f"one of {BLOCK_SIZES}")
        pairs = self.tile_format != "paired" or self.dtype == torch.bfloat16
        _require(pairs, "tile_format", self.tile_format, f"'linear' or 'swizzle' for {DTYPE_NAMES[self.dtype]}")
        step = CHUNK_BYTES // self.dtype.itemsize
        for name, size in (("head_size", self.head_size), ("head_size_v", self.head_size_v)):
            good = 0 < size <= MAX_HEAD_SIZE and size % step == 0
            _require(good, name, size, f"a multiple of {step} up to {MAX_HEAD_SIZE} for {DTYPE_NAMES[self.dtype]}")
        fitting = fitting_block_sizes(self.head_size, self.head_size_v)
        sizes = f"head sizes {self.head_size}/{self.head_size_v}"
        _require(self.block_size in fitting, "block_size", self.block_size, f"one of {fitting} for {sizes}")

    # Identity

    @cached_property
    def id(self) -> str:
        """Canonical name, e.g. ``bicl1-linear-row-b64-e1-bf16-h8-k128-v128``. Data never changes meaning silently."""
        return (
            f"bicl{LAYOUT_VERSION}-{self.tile_format}-{self.tile_order}-b{self.block_size}-e{self.extent}"
            f"-{DTYPE_NAMES[self.dtype]}-h{self.num_kv_heads}-k{self.head_size}-v{self.head_size_v}"
        )

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(layout_id: str) -> Layout:
        """The layout named by an id. ValueError for anything that `id` does not produce."""
        match = _ID.fullmatch(layout_id)
        if match is None or int(match["version"]) != LAYOUT_VERSION or match["dtype"] not in _DTYPES:
            example = f"'bicl{LAYOUT_VERSION}-linear-row-b64-e1-bf16-h8-k128-v128'"
            raise ValueError(f"layout: unknown layout id {layout_id!r}; accepted are ids like {example}")
        layout = Layout(
            dtype=_DTYPES[match["dtype"]],
            num_kv_heads=int(match["num_kv_heads"]),
            head_size=int(match["head_size"]),
            head_size_v=int(match["head_size_v"]),
            block_size=int(match["block_size"]),
            extent=int(match["extent"]),
            tile_order=cast(TileOrder, match["tile_order"]),
            tile_format=cast(TileFormat, match["tile_format"]),
        )
        _require(layout.id == layout_id, "layout", layout_id, f"the canonical spelling {layout.id!r}")
        return layout

    def whole(self, length: int) -> Layout:
        """This layout with one page that holds a linear cache of `length` tokens, for `pack` and `unpack`."""
        return replace(self, extent=max(1, -(-length // self.block_size)))

    # Sizes

    @cached_property
    def row_bytes(self) -> int:
        item = self.dtype.itemsize
        return tile_row_bytes(self.block_size, self.head_size * item, self.head_size_v * item)

    @cached_property
    def tile_columns(self) -> int:
        return self.row_bytes // self.dtype.itemsize

    @cached_property
    def tile_elements(self) -> int:
        return self.block_size * self.tile_columns

    @cached_property
    def k_tiles(self) -> int:
        """Column tiles of a K row."""
        return -(-self.head_size // self.tile_columns)

    @cached_property
    def v_tiles(self) -> int:
        """Column tiles of a V row."""
        return -(-self.head_size_v // self.tile_columns)

    @cached_property
    def page_tokens(self) -> int:
        """Token slots per page: the granule of block tables, allocation and prefix reuse."""
        return self.block_size * self.extent

    @cached_property
    def head_elements(self) -> int:
        """Elements of one kv head's contiguous run within a page."""
        return self.extent * (self.k_tiles + self.v_tiles) * self.tile_elements

    @cached_property
    def page_bytes(self) -> int:
        return self.num_kv_heads * self.head_elements * self.dtype.itemsize

    def cache_shape(self, num_blocks: int) -> tuple[int, int, int, int, int]:
        """Shape of one layer's pool: [num_blocks, num_kv_heads, k_tiles + v_tiles, block_size, tile_columns].

        `num_blocks` counts pages; with extent E the third entry is E * (k_tiles + v_tiles).
        """
        tiles = self.extent * (self.k_tiles + self.v_tiles)
        return num_blocks, self.num_kv_heads, tiles, self.block_size, self.tile_columns

    # Addresses

    def columns(self, part: Part) -> int:
        return self.head_size if part == "k" else self.head_size_v

    def tile_rank(self, part: Part, token_block: int, column_tile: int) -> int:
        """Index of a tile within its head's run, V tiles after K tiles."""
        tiles = self.k_tiles if part == "k" else self.v_tiles
        first = 0 if part == "k" else self.extent * self.k_tiles
        if self.tile_order == "row":
            return first + token_block * tiles + column_tile
        return first + zorder_rank(token_block, column_tile, self.extent, tiles)

    def element_offset(self, part: Part, token: int, column: int) -> int:
        """Elements from the start of a head's run to (token of the page, column). ValueError outside the page."""
        _require(0 <= token < self.page_tokens, "token", token, f"in [0, {self.page_tokens})")
        _require(0 <= column < self.columns(part), "column", column, f"in [0, {self.columns(part)})")
        token_block, row = divmod(token, self.block_size)
        column_tile, in_tile = divmod(column, self.tile_columns)
        tile = self.tile_rank(part, token_block, column_tile)
        return tile * self.tile_elements + int(self._in_tile(part, row, in_tile))

    def _in_tile(self, part: Part, row: Any, column: Any) -> Any:
        """Element offset of (row, column) within a tile; integers or tensors that broadcast."""
        if self.tile_format == "paired" and part == "v":
            return paired_element(row, column, self.tile_columns)
        step = CHUNK_BYTES // self.dtype.itemsize
        chunk = column // step
        if self.tile_format == "swizzle":
            chunk = swizzled_chunk(row, chunk, self.row_bytes)
        return row * self.tile_columns + chunk * step + column % step

    def byte_offset(self, block: int, head: int, part: Part, token: int, column: int) -> int:
        """Bytes from the start of the pool to one element. Exact for any pool: Python integers do not wrap."""
        _require(block >= 0, "block", block, "at least 0")
        _require(0 <= head < self.num_kv_heads, "head", head, f"in [0, {self.num_kv_heads})")
        run = (block * self.num_kv_heads + head) * self.head_elements
        return (run + self.element_offset(part, token, column)) * self.dtype.itemsize

    def head_index(self, part: Part, device: torch.device | str = "cpu") -> torch.Tensor:
        """int64 [page_tokens, columns]: `element_offset` of every element of a part of one head's run."""
        pooled = self.extent in POOL_EXTENTS  # whole linear caches are long and rarely asked for twice
        return (_pool_head_index if pooled else _head_index)(self, part, torch.device(device))

    def tiles(self, part: Part) -> Iterator[tuple[int, int]]:
        """(token block, column tile) of a part in storage order."""
        tiles = self.k_tiles if part == "k" else self.v_tiles
        for rank in range(self.extent * tiles):
            yield divmod(rank, tiles) if self.tile_order == "row" else zorder_cell(rank, self.extent, tiles)


def _head_index(layout: Layout, part: Part, device: torch.device) -> torch.Tensor:
    ranks = [0] * len(list(layout.tiles(part)))
    tiles_per_row = len(ranks) // layout.extent
    for token_block, column_tile in layout.tiles(part):
        ranks[token_block * tiles_per_row + column_tile] = layout.tile_rank(part, token_block, column_tile)
    token = torch.arange(layout.page_tokens)[:, None]
    column = torch.arange(layout.columns(part))[None, :]
    tile = torch.tensor(ranks)[token // layout.block_size * tiles_per_row + column // layout.tile_columns]
    in_tile = layout._in_tile(part, token % layout.block_size, column % layout.tile_columns)
    index: torch.Tensor = tile * layout.tile_elements + in_tile
    return index.to(device)


_pool_head_index = lru_cache(maxsize=256)(_head_index)


def _require(condition: bool, argument: str, value: object, accepted: str) -> None:
    if not condition:
        raise ValueError(f"{argument}: {value} is not accepted; it must be {accepted}")
