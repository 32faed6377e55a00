// Inside one tile: row width, and where a piece of a row is stored. Mirror of layout/tile.py, which explains the
// formats.
#pragma once

#include "layout/zorder.h"

namespace dfc {

enum class TileFormat : int { kLinear = 0, kPaired = 1, kSwizzle = 2 };

constexpr Offset kChunkBytes = 16;
constexpr Offset kWideRowBytes = 128;
constexpr Offset kNarrowRowBytes = 64;

DFC_HOST_DEVICE constexpr Offset tile_row_bytes(Offset block_size, Offset k_bytes, Offset v_bytes) {
  const bool wide = block_size == 64 && k_bytes % kWideRowBytes == 0 && v_bytes % kWideRowBytes == 0;
  return wide ? kWideRowBytes : kNarrowRowBytes;
}

// Where chunk `chunk` of row `row` is stored in a "swizzle" tile. Its own inverse.
DFC_HOST_DEVICE constexpr Offset swizzled_chunk(Offset row, Offset chunk, Offset row_bytes) {
  return chunk ^ (row_bytes == kWideRowBytes ? row & 7 : (row >> 1) & 3);
}

// Element offset of (row, column) in a V tile of format "paired".
DFC_HOST_DEVICE constexpr Offset paired_element(Offset row, Offset column, Offset columns) {
  return (row / 2 * columns + column) * 2 + row % 2;
}

}  // namespace dfc
