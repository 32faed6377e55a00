// Which rows and keys a thread block works on; everything about masks is here.
#pragma once

#include "cuda/attend/args.h"
#include "dev/dev.h"

namespace dfc {

struct Sequence {
  int index, first_token, tokens, kv_len;

  DEV int rows(const AttendArgs& args) const { return tokens * args.group; }
};

DEV Sequence sequence_at(const AttendArgs& args, int index) {
  const int first = dev::ldg<int32_t>(args.cu_seqlens_q + index);
  const int end = dev::ldg<int32_t>(args.cu_seqlens_q + index + 1);
  return Sequence{index, first, end - first, dev::ldg<int32_t>(args.kv_lens + index)};
}

struct KeyRange {
  int begin, end;
};

// Keys that query token `token` of a sequence sees.
DEV KeyRange visible_keys(const AttendArgs& args, const Sequence& sequence, int token) {
  const int64_t position = int64_t{sequence.kv_len} - sequence.tokens + token;
  int64_t begin = 0, end = sequence.kv_len;
  if (args.window_left >= 0) begin = larger(0, position - args.window_left);
  if (args.causal) {
    end = smaller(end, position + 1);
  } else if (args.window_right >= 0) {
    end = smaller(end, position + args.window_right + 1);
  }
  begin = smaller(begin, sequence.kv_len);
  return KeyRange{static_cast<int>(begin), static_cast<int>(larger(begin, end))};
}

// A tile of packed rows of one sequence and kv head, and the keys that any of them sees.
struct RowTile {
  Sequence sequence;
  int kv_head, first_row, num_rows;
  KeyRange keys;

  DEV int token(const AttendArgs& args, int row) const { return (first_row + row) / args.group; }
  DEV int head(const AttendArgs& args, int row) const { return kv_head * args.group + (first_row + row) % args.group; }
};

DEV RowTile row_tile(const AttendArgs& args, const Sequence& sequence, int kv_head, int first_row, int most_rows) {
  RowTile tile{sequence, kv_head, first_row, 0, KeyRange{0, 0}};
  tile.num_rows = static_cast<int>(smaller(most_rows, sequence.rows(args) - first_row));
  const KeyRange first = visible_keys(args, sequence, tile.token(args, 0));
  const KeyRange last = visible_keys(args, sequence, tile.token(args, tile.num_rows - 1));
  tile.keys = KeyRange{first.begin, last.end > first.begin ? last.end : first.begin};
  return tile;
}

// Finds the sequence that owns unit `unit`, where sequence b owns count(b) units in order of b. All lanes of a warp
// take part and get the same answer: the sequence and the unit counted within it; index -1 past the last unit.
struct Found {
  int sequence;
  int64_t unit;   // within the sequence
  int64_t total;  // of all sequences, where the search ran to the end
};

template <typename Count>
DEV Found find_unit(int batch, int64_t unit, const Count& count) {
  int64_t before = 0;
  for (int base = 0; base < batch; base += 32) {
    const int b = base + dev::lane();
    const int own = b < batch ? count(b) : 0;
    int through = own;  // units of this lane's sequence and those before it, from `base` on
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int other = dev::shfl_up(through, delta);
      if (dev::lane() >= delta) through += other;
    }
    const uint32_t owners = dev::ballot(before + through > unit);
    if (owners != 0) {
      int source = 0;
      while (!(owners >> source & 1u)) ++source;
      const int start = dev::shfl(through - own, source);
      return Found{base + source, unit - before - start, -1};
    }
    before += dev::shfl(through, 31);
  }
  return Found{-1, 0, before};
}

}  // namespace dfc
