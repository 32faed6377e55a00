// One head's row between a linear buffer and its tiles.
#pragma once

#include <cstring>

#include "api/params.h"

namespace dfc {

// Calls move(column byte, byte offset within the head's run, bytes) for each contiguous piece of one row: whole tile
// rows of a linear tile, 16-byte chunks of a swizzled one. All pieces are multiples of 16 bytes. Not for paired parts.
template <typename Move>
inline void for_each_piece(const Storage& storage, Part part, Offset token, const Move& move) {
  const Layout& layout = storage.layout;
  const Offset item = layout.spec.item_bytes;
  const Offset row = token % layout.spec.block_size;
  const Offset tiles = layout.column_tiles(part);
  const Offset* tile = storage.tile(part) + token / layout.spec.block_size * tiles;
  const Offset row_end = layout.columns(part) * item;
  const Offset piece = layout.spec.format == TileFormat::kSwizzle ? kChunkBytes : layout.row_bytes;
  for (Offset byte = 0; byte < row_end; byte += piece) {
    const Offset chunk = byte % layout.row_bytes / kChunkBytes;
    const Offset target = tile[byte / layout.row_bytes] * item + layout.chunk_offset(row, chunk);
    move(byte, target, smaller(piece, row_end - byte));
  }
}

// The tiles of one row of a paired part: visit(first column, columns, element offset of the first within the run).
template <typename Visit>
inline void for_each_paired_tile(const Storage& storage, Part part, Offset token, const Visit& visit) {
  const Layout& layout = storage.layout;
  const Offset row = token % layout.spec.block_size;
  const Offset* tile = storage.tile(part) + token / layout.spec.block_size * layout.column_tiles(part);
  for (Offset first = 0; first < layout.columns(part); first += layout.tile_columns, ++tile) {
    const Offset columns = smaller(layout.tile_columns, layout.columns(part) - first);
    visit(first, columns, *tile + paired_element(row, 0, layout.tile_columns));
  }
}

// The 16-bit elements of one row of a paired part: move(column, element offset within the head's run).
template <typename Move>
inline void for_each_paired(const Storage& storage, Part part, Offset token, const Move& move) {
  for_each_paired_tile(storage, part, token, [&](Offset first, Offset columns, Offset start) {
    for (Offset column = 0; column < columns; ++column) move(first + column, start + 2 * column);
  });
}

// row -> run, the head's run within its page.
inline void store_row(const Storage& storage, Part part, Offset token, const char* row, char* run) {
  if (storage.layout.is_paired(part)) {
    const auto* from = reinterpret_cast<const uint16_t*>(row);
    auto* to = reinterpret_cast<uint16_t*>(run);
    return for_each_paired(storage, part, token, [&](Offset column, Offset place) { to[place] = from[column]; });
  }
  for_each_piece(storage, part, token, [&](Offset byte, Offset target, Offset bytes) {
    std::memcpy(run + target, row + byte, static_cast<size_t>(bytes));
  });
}

// Both rows of a pair -> run, whole 32-bit words. `token` is even.
inline void store_row_pair(const Storage& storage, Part part, Offset token, const char* even, const char* odd,
                           char* run) {
  const auto* low = reinterpret_cast<const uint16_t*>(even);
  const auto* high = reinterpret_cast<const uint16_t*>(odd);
  for_each_paired_tile(storage, part, token, [&](Offset first, Offset columns, Offset start) {
    char* words = run + start * storage.layout.spec.item_bytes;
    for (Offset column = 0; column < columns; ++column) {
      const uint32_t word = low[first + column] | static_cast<uint32_t>(high[first + column]) << 16;
      std::memcpy(words + 4 * column, &word, sizeof word);
    }
  });
}

// run -> row.
inline void load_row(const Storage& storage, Part part, Offset token, const char* run, char* row) {
  if (storage.layout.is_paired(part)) {
    const auto* from = reinterpret_cast<const uint16_t*>(run);
    auto* to = reinterpret_cast<uint16_t*>(row);
    return for_each_paired(storage, part, token, [&](Offset column, Offset place) { to[column] = from[place]; });
  }
  for_each_piece(storage, part, token, [&](Offset byte, Offset source, Offset bytes) {
    std::memcpy(row + byte, run + source, static_cast<size_t>(bytes));
  });
}

}  // namespace dfc
