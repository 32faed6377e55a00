// A page of the pool. Mirror of deepseek_flash_cache/layout/page.py: the only C++ place that knows byte order.
//
//   page  = heads one after another
//   head  = all its K tiles, then all its V tiles           (head_elements)
//   part  = grid of extent token blocks x column tiles, in row order or along the Z-order curve
//   tile  = block_size rows of row_bytes                    (tile_elements)
#pragma once

#include "layout/tile.h"

namespace dfc {

enum class Part : int { kKey = 0, kValue = 1 };

struct LayoutSpec {
  Offset item_bytes, num_kv_heads, head_size, head_size_v, block_size, extent;
  bool zorder;
  TileFormat format;
};

// Plain data, so that it can be a kernel argument; the sizes after `spec` are computed once by make_layout.
struct Layout {
  LayoutSpec spec;
  Offset row_bytes, tile_columns, tile_elements;
  Offset k_tiles, v_tiles;  // column tiles of one row
  Offset page_tokens, head_elements, page_bytes;

  DFC_HOST_DEVICE constexpr Offset columns(Part part) const {
    return part == Part::kKey ? spec.head_size : spec.head_size_v;
  }

  DFC_HOST_DEVICE constexpr Offset column_tiles(Part part) const { return part == Part::kKey ? k_tiles : v_tiles; }

  // Index of a tile within its head's run, V tiles after K tiles.
  DFC_HOST_DEVICE constexpr Offset tile_rank(Part part, Offset token_block, Offset column_tile) const {
    const Offset tiles = column_tiles(part);
    const Offset first = part == Part::kKey ? 0 : spec.extent * k_tiles;
    if (!spec.zorder) return first + token_block * tiles + column_tile;
    return first + zorder_rank(Cell{token_block, column_tile}, spec.extent, tiles);
  }

  // Are rows 2i and 2i + 1 of this part's tiles interleaved? Then a row has no contiguous pieces.
  DFC_HOST_DEVICE constexpr bool is_paired(Part part) const {
    return spec.format == TileFormat::kPaired && part == Part::kValue;
  }

  // Bytes from the start of a tile to 16-byte chunk `chunk` of row `row`; not for paired parts.
  DFC_HOST_DEVICE constexpr Offset chunk_offset(Offset row, Offset chunk) const {
    return row * row_bytes +
           (spec.format == TileFormat::kSwizzle ? swizzled_chunk(row, chunk, row_bytes) : chunk) * kChunkBytes;
  }

  // Elements from the start of a head's run to (token of the page, column).
  DFC_HOST_DEVICE constexpr Offset element_offset(Part part, Offset token, Offset column) const {
    const Offset tile = tile_rank(part, token / spec.block_size, column / tile_columns);
    const Offset row = token % spec.block_size;
    if (is_paired(part)) return tile * tile_elements + paired_element(row, column % tile_columns, tile_columns);
    const Offset byte = column % tile_columns * spec.item_bytes;
    const Offset chunk = chunk_offset(row, byte / kChunkBytes);
    return tile * tile_elements + (chunk + byte % kChunkBytes) / spec.item_bytes;
  }

  // Bytes from the start of the pool to the run of one head of one page.
  DFC_HOST_DEVICE constexpr Offset run_offset(Offset block, Offset head) const {
    return (block * spec.num_kv_heads + head) * head_elements * spec.item_bytes;
  }

  DFC_HOST_DEVICE constexpr Offset byte_offset(Offset block, Offset head, Part part, Offset token,
                                               Offset column) const {
    return run_offset(block, head) + element_offset(part, token, column) * spec.item_bytes;
  }
};

DFC_HOST_DEVICE constexpr Layout make_layout(const LayoutSpec& spec) {
  Layout layout{};
  layout.spec = spec;
  const Offset item = spec.item_bytes;
  layout.row_bytes = tile_row_bytes(spec.block_size, spec.head_size * item, spec.head_size_v * item);
  layout.tile_columns = layout.row_bytes / item;
  layout.tile_elements = spec.block_size * layout.tile_columns;
  layout.k_tiles = ceil_div(spec.head_size, layout.tile_columns);
  layout.v_tiles = ceil_div(spec.head_size_v, layout.tile_columns);
  layout.page_tokens = spec.block_size * spec.extent;
  layout.head_elements = spec.extent * (layout.k_tiles + layout.v_tiles) * layout.tile_elements;
  layout.page_bytes = spec.num_kv_heads * layout.head_elements * item;
  return layout;
}

// Rows outside a pool, as the kernels see them: a row is one column tile, `spec.block_size` rows are one block, and
// `page_tokens` rows are one page. Where a page starts is for AttendParams to say.
DFC_HOST_DEVICE constexpr Layout make_row_layout(const LayoutSpec& spec, Offset page_tokens) {
  Layout layout{};
  layout.spec = spec;
  const Offset columns = spec.head_size > spec.head_size_v ? spec.head_size : spec.head_size_v;
  layout.tile_columns = ceil_div(columns, kChunkBytes) * kChunkBytes;  // whole vectors on every ISA level
  layout.row_bytes = layout.tile_columns * spec.item_bytes;
  layout.k_tiles = layout.v_tiles = 1;
  layout.page_tokens = page_tokens;
  return layout;
}

}  // namespace dfc
