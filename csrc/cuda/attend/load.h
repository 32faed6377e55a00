// From global to shared memory: rows of the query, and blocks of keys and values, byte for byte as they are stored.
#pragma once

#include "cuda/attend/config.h"
#include "cuda/attend/rows.h"

namespace dfc {

template <class C>
DEV const char* query_row(const AttendArgs& args, const RowTile& tile, int row) {
  return args.query + (tile.sequence.first_token + tile.token(args, row)) * args.query_token_stride +
         tile.head(args, row) * args.query_head_stride;
}

// Rows past the tile are zeros. For fp8 keys the columns of each sixteen are permuted as their fragments come out of
// shared memory, see scores.h: pairs (0, 2, 4, 6 | 1, 3, 5, 7).
template <class C>
DEV void load_query(const AttendArgs& args, const RowTile& tile) {
  using Tiles = typename C::QueryTiles;
  constexpr int kChunks = C::kHeadSize / 8;
  for (int i = dev::tid(); i < C::kRows * kChunks; i += C::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = row < tile.num_rows;
    const char* source = query_row<C>(args, tile, valid ? row : 0) + chunk * 16;
    if constexpr (C::Type::kFp8) {
      const u128 words = valid ? dev::ldg<u128>(source) : u128{0, 0, 0, 0};
      const int even = chunk & ~1;
      const uint32_t half = (chunk & 1) * 8;
      dev::sts<u64x>(C::kQueryOffset + Tiles::offset(row, even) + half, u64x{words.x, words.z});
      dev::sts<u64x>(C::kQueryOffset + Tiles::offset(row, even + 1) + half, u64x{words.y, words.w});
    } else {
      dev::cp_async16(C::kQueryOffset + Tiles::offset(row, chunk), source, valid ? 16 : 0);
    }
  }
}

// Where block `block` of a sequence's keys starts for one kv head, and which of its page's blocks it is.
struct BlockPlace {
  const char* run;
  Offset token_block;
};

DEV BlockPlace block_place(const AttendArgs& args, const RowTile& tile, int block) {
  const int extent = static_cast<int>(args.layout.spec.extent);
  const int page = dev::ldg<int32_t>(args.block_table + tile.sequence.index * args.table_stride + block / extent);
  return BlockPlace{args.cache + args.layout.run_offset(page, tile.kv_head), block % extent};
}

// Copies one part of a block. Rows of keys that no row of the tile sees become zeros, whatever the pool holds there:
// a probability of 0 times NaN would be NaN.
template <class C, class Tiles>
DEV void load_part(const AttendArgs& args, const BlockPlace& place, Part part, KeyRange rows, uint32_t target) {
  constexpr int kChunks = Tiles::kRows * Tiles::kChunksPerRow;  // of one tile
#pragma unroll
  for (int t = 0; t < Tiles::kCount; ++t) {
    const Offset rank = args.layout.tile_rank(part, place.token_block, t);
    const char* source = place.run + rank * Tiles::kTileBytes;
#pragma unroll
    for (int i = 0; i < (kChunks + C::kThreads - 1) / C::kThreads; ++i) {
      const int chunk = dev::tid() + i * C::kThreads;
      if (kChunks % C::kThreads != 0 && chunk >= kChunks) break;
      const int row = chunk / Tiles::kChunksPerRow;
      const bool valid = row >= rows.begin && row < rows.end;
      dev::cp_async16(target + t * Tiles::kTileBytes + chunk * 16, source + chunk * 16, valid ? 16 : 0);
    }
  }
}

// Keys and values of one block, as two groups of copies; past the last block two empty groups.
template <class C>
DEV void load_block(const AttendArgs& args, const RowTile& tile, int block, int end_block) {
  if (block >= end_block) {
    dev::cp_async_commit();
    dev::cp_async_commit();
    return;
  }
  const uint32_t stage = static_cast<uint32_t>(block % C::kStages) * C::kStageBytes;
  const BlockPlace place = block_place(args, tile, block);
  const KeyRange rows{tile.keys.begin - block * C::kBlock, tile.keys.end - block * C::kBlock};
  load_part<C, typename C::KeyTiles>(args, place, Part::kKey, rows, stage);
  dev::cp_async_commit();
  load_part<C, typename C::ValueTiles>(args, place, Part::kValue, rows, stage + C::KeyTiles::kBytes);
  dev::cp_async_commit();
}

}  // namespace dfc
