// Which chunk a thread owns, and where it lies in a page.
#pragma once

#include "cuda/storage/args.h"
#include "dev/dev.h"

namespace dfc {

struct Chunk {
  Part part;
  uint32_t head, index;  // which 16-byte chunk of the head's row
};

DEV Chunk chunk_at(const TokenChunks& chunks, uint32_t rank) {
  if (rank < chunks.key_end) return Chunk{Part::kKey, rank / chunks.key, rank % chunks.key};
  rank -= chunks.key_end;
  return Chunk{Part::kValue, rank / chunks.value, rank % chunks.value};
}

// A slot's page and where it lies there. 32-bit divisions: host code sees to it that a pool has fewer token blocks.
struct SlotPlace {
  Offset page;
  uint32_t block, row;  // token block of the page, row of its tiles
};

DEV SlotPlace place_of(const Layout& layout, Offset slot) {
  const auto block_size = static_cast<uint32_t>(layout.spec.block_size);  // 32 or 64
  const auto extent = static_cast<uint32_t>(layout.spec.extent);
  const auto block = static_cast<uint32_t>(slot >> (block_size == 64 ? 6 : 5));
  return SlotPlace{block / extent, block % extent, static_cast<uint32_t>(slot) % block_size};
}

// Bytes from the start of the pool to one chunk of slot `slot`. Not for paired tiles.
DEV Offset chunk_place(const Layout& layout, Offset slot, const Chunk& chunk) {
  const SlotPlace place = place_of(layout, slot);
  const uint32_t tile_chunks = static_cast<uint32_t>(layout.row_bytes / kChunkBytes);
  const Offset tile = layout.tile_rank(chunk.part, place.block, chunk.index / tile_chunks);
  return layout.run_offset(place.page, chunk.head) + tile * (layout.spec.block_size * layout.row_bytes) +
         layout.chunk_offset(place.row, chunk.index % tile_chunks);
}

// Rows are dealt to the blocks of grid.y; grid.x covers the chunks of a token. visit(row) for each of this block's.
template <typename Visit>
DEV void for_each_row(Offset num_rows, const Visit& visit) {
  for (Offset row = dev::block_y(); row < num_rows; row += dev::grid_y()) visit(row);
}

DEV uint32_t chunk_rank() { return static_cast<uint32_t>(dev::block_x()) * dev::block_threads() + dev::tid(); }

}  // namespace dfc
