// Inside one tile: row width, and where a 16-byte chunk of a row is stored. Mirror of layout/tile.py.
#pragma once

#include "layout/zorder.h"

namespace dfc {

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

}  // namespace dfc
