// append: rows of any strides into their slots, 16 bytes per thread: one token's row of one head's tile is one 128-byte
// line, written by eight neighbours. A slot outside the pool is skipped: device code cannot raise, and the host never
// looks at slots. Of several rows for one slot any may win, chunk by chunk; the rows that pad a batch of a CUDA graph
// may therefore share slots that nobody reads.
#pragma once

#include "cuda/storage/convert.h"
#include "cuda/storage/place.h"

namespace dfc {

DEV Offset slot_of_row(const int64_t* slots, Offset row) {
  return slots == nullptr ? row : dev::ldg<int64_t>(slots + row);
}

template <class Convert>
struct Append {
  using Args = AppendArgs;
  static constexpr int kThreads = kStorageThreads, kMinBlocks = 4;

  static DEV void run(const Args& args) {
    const uint32_t rank = chunk_rank();
    if (rank >= args.chunks.total) return;
    const Chunk chunk = chunk_at(args.chunks, rank);
    const bool is_key = chunk.part == Part::kKey;
    const RowBytes& rows = is_key ? args.key : args.value;
    const float scale = is_key ? args.k_scale : args.v_scale;
    const char* source = rows.data + chunk.head * rows.head_stride + Offset{chunk.index} * Convert::kSourceBytes;
    for_each_row(args.num_rows, [&](Offset row) {
      const Offset slot = slot_of_row(args.slots, row);
      if (slot < 0 || slot >= args.num_slots) return;
      const u128 stored = Convert::chunk(source + row * rows.row_stride, args.aligned, scale);
      dev::stg<u128>(args.cache + chunk_place(args.layout, slot, chunk), stored);
    });
  }
};

// Calls a gate for every group of tokens whose last slot was written by this append, one block of threads per (row,
// head). A launch of its own: a group's rows are written by many blocks, and only the end of a launch orders them
// without counters. A gate is a class with
//
//   struct Args;    plain data
//   static DEV void filled(const Args&, const Layout&, const char* cache, Offset page, Offset first_token, Offset
//   head);
//
// which must give the same result when it is called twice. `first_token` is the group's first, counted in its page.
template <class Gate>
struct CloseGroups {
  using Args = CloseArgs<Gate>;
  static constexpr int kThreads = kCloseThreads, kMinBlocks = 1;

  static DEV void run(const Args& args) {
    const CloseHead& head = args.head;
    for_each_row(head.num_rows, [&](Offset row) {
      const Offset slot = slot_of_row(head.slots, row);
      if (slot < 0 || slot >= head.num_slots || slot % head.group_tokens != head.group_tokens - 1) return;
      const SlotPlace last = place_of(head.layout, slot);
      const Offset first = last.block * head.layout.spec.block_size + last.row + 1 - head.group_tokens;
      Gate::filled(args.gate, head.layout, head.cache, last.page, first, dev::block_x());
    });
  }
};

}  // namespace dfc
