// attend for sequences with few query rows (decode, speculative tokens), and the kernel that joins what it had to
// split.
#pragma once

#include "cuda/attend/tile.h"
#include "cuda/attend/units.h"

namespace dfc {

// Rows of the query that belong to no sequence: out = 0, LSE = -inf.
template <class C>
DEV void clear_rest(const AttendArgs& args) {
  constexpr int kChunks = C::kHeadSizeV / 8;
  const int first = dev::ldg<int32_t>(args.cu_seqlens_q + args.batch);
  for (int token = first + dev::block_x(); token < args.total; token += dev::grid_x()) {
    for (int i = dev::tid(); i < args.num_heads * kChunks; i += C::kThreads) {
      const int head = i / kChunks, chunk = i % kChunks;
      char* out = args.out + token * args.out_token_stride + head * args.out_head_stride;
      dev::stg<u128>(out + chunk * 16, u128{0, 0, 0, 0});
      if (chunk == 0 && args.lse != nullptr) {
        dev::stg<float>(args.lse + int64_t{head} * args.total + token, -INFINITY);
      }
    }
  }
}

template <class C>
struct AttendDecode {
  using Args = AttendArgs;
  static constexpr int kThreads = C::kThreads, kMinBlocks = 1, kSharedBytes = C::kSharedBytes;
  static_assert(C::kRows == kDecodeRows, "partial results have as many rows");

  static DEV void run(const Args& args) {
    clear_rest<C>(args);
    const Shares shares = shares_of<C::kBlock>(args);
    const int share = dev::block_x();
    if (share >= shares.shares || shares.total == 0) return;
    const int64_t end = shares.begin(share + 1);
    for (int64_t unit = shares.begin(share); unit < end;) {
      const TileUnits units = tile_of_unit<C::kBlock>(args, unit);
      const int64_t stop = smaller(end, units.first + units.blocks);
      const int begin_block = units.first_block + static_cast<int>(unit - units.first);
      const int end_block = units.first_block + static_cast<int>(stop - units.first);
      const bool starts = unit == units.first, finishes = stop == units.first + units.blocks;
      const int64_t slot = starts && finishes ? -1 : 2 * int64_t{share} + (starts ? 1 : 0);
      const bool seen = units.tile.keys.end > units.tile.keys.begin;
      attend_tile<C>(args, units.tile, begin_block, seen ? end_block : begin_block, slot);
      unit = stop;
    }
  }
};

// One thread block per share boundary: the tile that lies across it, if this is the tile's first boundary.
template <class Query, int kBlock>
struct AttendCombine {
  using Args = AttendArgs;
  static constexpr int kThreads = kCombineThreads, kMinBlocks = 1;

  static DEV void run(const Args& args) {
    const Shares shares = shares_of<kBlock>(args);
    const int64_t first_share = dev::block_x();
    if (first_share + 1 >= shares.shares || shares.total == 0) return;
    const int64_t boundary = shares.begin(first_share + 1);
    if (boundary == shares.begin(first_share)) return;
    const TileUnits units = tile_of_unit<kBlock>(args, boundary - 1);
    const int64_t last_unit = units.first + units.blocks - 1;
    if (last_unit < boundary || shares.owner(units.first) != first_share) return;
    const int64_t last_share = shares.owner(last_unit);
    const int columns = static_cast<int>(args.layout.spec.head_size_v);
    const int pairs = columns / 2;
    for (int i = dev::tid(); i < units.tile.num_rows * pairs; i += kThreads) {
      combine_pair(args, units.tile, i / pairs, i % pairs * 2, first_share, last_share);
    }
  }

  // Slot of share `share`: the first one left the tile unfinished, the others started in its middle.
  static DEV int64_t slot_of(int64_t share, int64_t first_share) { return 2 * share + (share == first_share ? 1 : 0); }

  static DEV void combine_pair(const Args& args, const RowTile& tile, int row, int column, int64_t first_share,
                               int64_t last_share) {
    float maximum = -INFINITY;
    for (int64_t share = first_share; share <= last_share; ++share) {
      const int64_t place = slot_of(share, first_share) * kDecodeRows + row;
      maximum = dev::max(maximum, dev::ldg<float>(args.partial_maximum + place));
    }
    const float base = maximum == -INFINITY ? 0.0f : maximum;
    float sum = 0.0f, low = 0.0f, high = 0.0f;
    for (int64_t share = first_share; share <= last_share; ++share) {
      const int64_t slot = slot_of(share, first_share), place = slot * kDecodeRows + row;
      const float weight = dev::exp2(dev::ldg<float>(args.partial_maximum + place) - base);
      const u64x part = dev::ldg<u64x>(partial_row(args, slot, row) + column);
      const float part_sum = dev::ldg<float>(args.partial_sum + place);
      // A share whose logits were all NaN has maximum -inf and sum NaN: its weight of 0 must not hide it.
      sum += part_sum == part_sum ? part_sum * weight : part_sum;
      low += dev::bits_float(part.x) * weight;
      high += dev::bits_float(part.y) * weight;
    }
    const Result result = final_result(args, tile, row, maximum, sum, column == 0);
    dev::stg<uint32_t>(result.out + column * 2, Query::pack2(low * result.factor, high * result.factor));
  }
};

}  // namespace dfc
