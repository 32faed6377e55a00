// How decode work is dealt out: key blocks of all (sequence, row tile, kv head) in one row, cut into equal shares, one
// per thread block. Long histories are cut, short ones are not, whatever the batch looks like; the grid is fixed and
// the lengths are read on the device. (Stream-K, arXiv 2301.03598, for attention.)
//
// A tile whose blocks lie in several shares gets one partial result from each: share i writes slot 2 * i for the tile
// it starts in the middle of, slot 2 * i + 1 for the one it leaves unfinished.
#pragma once

#include "cuda/attend/rows.h"

namespace dfc {

// Units of one sequence: [row tile][kv head][key block]. A tile that sees no key is one unit, which writes zeros.
struct SequenceUnits {
  int tiles, heads, first_block, blocks;

  DEV int total() const { return tiles * heads * blocks; }
};

template <int kBlock>
DEV SequenceUnits units_of(const AttendArgs& args, const Sequence& sequence) {
  const int rows = sequence.rows(args);
  SequenceUnits units{0, static_cast<int>(args.layout.spec.num_kv_heads), 0, 1};
  if (rows > args.most_decode_rows || rows <= 0) return units;
  units.tiles = (rows + kDecodeRows - 1) / kDecodeRows;
  const KeyRange first = visible_keys(args, sequence, 0), last = visible_keys(args, sequence, sequence.tokens - 1);
  units.first_block = first.begin / kBlock;
  const int end = (last.end + kBlock - 1) / kBlock;
  units.blocks = end > units.first_block ? end - units.first_block : 1;
  return units;
}

// Cuts `total` units into `shares`.
struct Shares {
  int64_t total, shares;

  DEV int64_t begin(int64_t share) const { return share * total / shares; }
  DEV int64_t owner(int64_t unit) const { return ((unit + 1) * shares - 1) / total; }
};

// Small batches are not cut finer than pays off.
template <int kBlock>
DEV Shares shares_of(const AttendArgs& args) {
  const auto count = [&](int b) { return units_of<kBlock>(args, sequence_at(args, b)).total(); };
  const int64_t total = find_unit(args.batch, INT64_MAX, count).total;
  const int64_t most = total / kLeastDecodeUnits;
  return Shares{total, larger(1, smaller(args.decode_blocks, most))};
}

// One tile's place in the row of units.
struct TileUnits {
  RowTile tile;
  int64_t first;            // unit
  int first_block, blocks;  // of keys
};

// The tile that unit `unit` belongs to.
template <int kBlock>
DEV TileUnits tile_of_unit(const AttendArgs& args, int64_t unit) {
  const auto count = [&](int b) { return units_of<kBlock>(args, sequence_at(args, b)).total(); };
  const Found found = find_unit(args.batch, unit, count);
  const Sequence sequence = sequence_at(args, found.sequence);
  const SequenceUnits units = units_of<kBlock>(args, sequence);
  const int group = static_cast<int>(found.unit / units.blocks);  // row tile and head
  const int rank = group / units.heads, head = group % units.heads;
  const RowTile tile = row_tile(args, sequence, head, rank * kDecodeRows, kDecodeRows);
  return TileUnits{tile, unit - found.unit % units.blocks, units.first_block, units.blocks};
}

}  // namespace dfc
