// Moving one head's row between a linear buffer and its tiles.
#pragma once

#include <cstring>

#include "api/params.h"

namespace dfc {

// Calls move(column byte, byte offset within the head's run, bytes) for each contiguous piece of one row: whole tile
// rows of a linear tile, 16-byte chunks of a swizzled one. All pieces are multiples of 16 bytes.
template <typename Move>
inline void for_each_piece(const Storage& storage, Part part, Offset token, const Move& move) {
  const Layout& layout = storage.layout;
  const Offset item = layout.spec.item_bytes;
  const Offset row = token % layout.spec.block_size;
  const Offset tiles = layout.column_tiles(part);
  const Offset* tile = storage.tile(part) + token / layout.spec.block_size * tiles;
  const Offset row_end = layout.columns(part) * item;
  const Offset piece = layout.spec.swizzle ? kChunkBytes : layout.row_bytes;
  for (Offset byte = 0; byte < row_end; byte += piece) {
    const Offset chunk = byte % layout.row_bytes / kChunkBytes;
    const Offset target = tile[byte / layout.row_bytes] * item + layout.chunk_offset(row, chunk);
    move(byte, target, smaller(piece, row_end - byte));
  }
}

}  // namespace dfc
