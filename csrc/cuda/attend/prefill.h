// attend for sequences with many query rows: one thread block per tile of rows and kv head, over all keys it sees.
//
// The grid covers ceil(total rows / tile) + batch tiles, which no batch of that many rows exceeds; a block finds its
// tile by the lengths on the device, so that the host needs none.
#pragma once

#include "cuda/attend/tile.h"

namespace dfc {

template <class C>
struct AttendPrefill {
  using Args = AttendArgs;
  static constexpr int kThreads = C::kThreads, kMinBlocks = 1, kSharedBytes = C::kSharedBytes;

  static DEV int tiles_of(const AttendArgs& args, int index) {
    const int rows = sequence_at(args, index).rows(args);
    return rows <= args.most_decode_rows ? 0 : (rows + C::kRows - 1) / C::kRows;
  }

  // With a causal mask the last tiles of a sequence take longest: they come first.
  static DEV void run(const Args& args) {
    const Found found = find_unit(args.batch, dev::block_x(), [&](int b) { return tiles_of(args, b); });
    if (found.sequence < 0) return;
    const Sequence sequence = sequence_at(args, found.sequence);
    const int last = tiles_of(args, found.sequence) - 1;
    const int first_row = (last - static_cast<int>(found.unit)) * C::kRows;
    const RowTile tile = row_tile(args, sequence, dev::block_y(), first_row, C::kRows);
    const int begin = tile.keys.begin / C::kBlock;
    const int end = tile.keys.end > tile.keys.begin ? (tile.keys.end + C::kBlock - 1) / C::kBlock : begin;
    attend_tile<C>(args, tile, begin, end, -1);
  }
};

}  // namespace dfc
